#!/usr/bin/env bash
# Creates .venv-bridge: the trainer's packages with those of Megatron-Bridge, on Python 3.12, and the test tools.
set -euo pipefail
cd "$(dirname "$0")/.."
source scripts/package_index.sh
venv=.venv-bridge
uv="$PWD/.venv/bin/uv"
requirements=(requirements/dev.txt trainer-image/requirements-bridge-run.txt trainer-image/requirements-bridge.txt)

digest=$(cat "${requirements[@]}" VERSION ./*/pyproject.toml | sha256sum)
if [ "$(cat $venv/.stamp 2> /dev/null)" = "$digest" ]; then exit 0; fi
if ! .venv/bin/python -c 'import sys; sys.exit(sys.version_info[:2] != (3, 12))'; then
    echo "setup: .venv has another Python than 3.12, which Megatron-Bridge needs; install it and make setup again" >&2
    exit 1
fi
echo "setup: creating $venv, seconds with a warm cache of packages"
rm -rf $venv
"$uv" venv --quiet --python .venv/bin/python $venv
for file in "${requirements[@]}"; do
    "$uv" pip install --quiet --python $venv/bin/python --no-deps --require-hashes -r "$file"
done
"$uv" pip install --quiet --python $venv/bin/python --no-deps -e contract -e . -e cluster -e trainer-image
echo "$digest" > $venv/.stamp
