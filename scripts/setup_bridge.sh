#!/usr/bin/env bash
# Creates .venv-bridge: the trainer's packages with those of Megatron-Bridge, and the test tools.
set -euo pipefail
cd "$(dirname "$0")/.."
source scripts/package_index.sh
venv=.venv-bridge
uv="$PWD/.venv/bin/uv"
requirements=(requirements/dev.txt trainer-image/requirements-bridge-run.txt)
bridge=trainer-image/requirements-bridge.txt

digest=$(cat "${requirements[@]}" $bridge VERSION ./*/pyproject.toml | sha256sum)
if [ "$(cat $venv/.stamp 2> /dev/null)" = "$digest" ]; then exit 0; fi
echo "setup: creating $venv, seconds with a warm cache of packages"
rm -rf $venv
"$uv" venv --quiet --python .venv/bin/python $venv
for file in "${requirements[@]}"; do
    "$uv" pip install --quiet --python $venv/bin/python --no-deps --require-hashes -r "$file"
done
PATH="$PWD/.venv/bin:$PATH" trainer-image/install-bridge.sh $venv $bridge
"$uv" pip install --quiet --python $venv/bin/python --no-deps -e contract -e . -e cluster -e trainer-image
echo "$digest" > $venv/.stamp
