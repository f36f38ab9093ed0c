#!/usr/bin/env bash
# Creates .venv-gpu: the packages of the GPU image, Transformer Engine included, and the test tools. No GPU is needed.
# `bridge`: .venv-gpu-bridge, with those of the GPU image with Megatron-Bridge.
# Transformer Engine's wheel is built into .cache/wheels if it is not there: about 15 CPU minutes, with g++.
set -euo pipefail
cd "$(dirname "$0")/.."
source scripts/package_index.sh
image=${1:-}
venv=.venv-gpu${image:+-$image} requirements=trainer-image/requirements-${image:+$image-}gpu.txt
PATH="$PATH:$PWD/.venv/bin" # uv

digest=$(cat requirements/dev.txt trainer-image/requirements-*.txt VERSION ./*/pyproject.toml | sha256sum)
if [ "$(cat $venv/.stamp 2> /dev/null)" = "$digest" ]; then exit 0; fi
# The Python of the GPU image, for which its requirements are locked. pyenv's shims fail for inactive versions, so each
# candidate is run.
python=''
for candidate in python3.13 "${PYENV_ROOT:-$HOME/.pyenv}"/versions/3.13.*/bin/python; do
    if "$candidate" -c '' 2> /dev/null; then python=$candidate; fi
done
if [ -z "$python" ]; then
    echo "setup: no Python 3.13, which the GPU image has; install python3.13 with its headers (python3.13-dev)" >&2
    exit 1
fi
echo "setup: creating $venv with $python"
rm -rf $venv
"$python" -m venv $venv
uv pip install --quiet --python $venv/bin/python --no-deps --require-hashes -r requirements/dev.txt
trainer-image/install-gpu.sh $venv .cache/wheels $requirements
if [ "$image" = bridge ]; then trainer-image/install-bridge.sh $venv trainer-image/requirements-bridge.txt; fi
uv pip install --quiet --python $venv/bin/python --no-deps -e contract -e . -e cluster -e trainer-image
echo "$digest" > $venv/.stamp
