#!/bin/sh
# install-bridge.sh VENV REQUIREMENTS: installs Megatron-Bridge without its dependencies into a venv.
#
# Its wheel asks for Python 3.12. It trains on 3.13 too (`make bridge-training` on either), which is the Python of the
# images' base, so the requirement is evaluated as on 3.12. Uses uv where it is installed, else the venv's pip.
set -eu
venv=$1 requirements=$2
if command -v uv > /dev/null; then
    uv pip install --quiet --python "$venv/bin/python" --python-version 3.12 --no-deps --require-hashes \
        --compile-bytecode -r "$requirements"
else
    without_markers=$(mktemp)
    sed 's/ ; [^\\]*//' "$requirements" > "$without_markers"
    PIP_CONSTRAINT='' "$venv/bin/python" -m pip install --quiet --no-cache-dir --ignore-requires-python --no-deps \
        --require-hashes -r "$without_markers"
    rm "$without_markers"
fi
