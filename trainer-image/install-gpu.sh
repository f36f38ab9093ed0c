#!/usr/bin/env bash
# install-gpu.sh VENV WHEELS REQUIREMENTS: installs the packages of a GPU image into a venv that has pip.
#
# Transformer Engine's PyTorch part exists only as an sdist, 33 C++ files that take about 15 CPU minutes: its wheel is
# kept in WHEELS, by version, Python, torch and processor. The sdist is verified by its hash; the wheel is this machine's own and has none. Needs g++ and Python's
# headers when it builds, no CUDA toolkit and no GPU. Uses uv where it is installed.
set -euo pipefail
venv=$1 wheels=$2 requirements=$3
folder=$(cd "$(dirname "$0")" && pwd)
# NVIDIA's images constrain pip to their own versions; everything here is pinned by hash.
export PIP_CONSTRAINT='' PIP_DISABLE_PIP_VERSION_CHECK=1 UV_HTTP_TIMEOUT=${UV_HTTP_TIMEOUT:-180}
exact=(--no-deps --require-hashes)

install() {
    if command -v uv > /dev/null; then
        uv pip install --quiet --python "$venv/bin/python" --compile-bytecode "$@"
    else
        "$venv/bin/python" -m pip install --quiet --no-cache-dir "$@"
    fi
}

part() { # part NAME_OR_'!'NAME: the requirements of one package with their hashes, or all others
    awk -v name="${1#!}" -v others="$([ "${1#!}" != "$1" ] && echo 1 || echo 0)" \
        '/^[a-z]/ { found = ($0 ~ "^" name "==") } found != others' "$requirements"
}

version() { sed -n "s/^$1==\([^ ]*\).*/\1/p" "$requirements"; }

scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
part '!transformer-engine-torch' > "$scratch/others.txt"
part transformer-engine-torch > "$scratch/sdist.txt"
install "${exact[@]}" -r "$scratch/others.txt"
if [ ! -s "$scratch/sdist.txt" ]; then exit 0; fi # the base image has Transformer Engine

kept=$wheels/torch-$(version torch)
python=$("$venv/bin/python" -c 'import sys; print("cp%d%d" % sys.version_info[:2])')
find_wheel() {
    find "$kept" -name "transformer_engine_torch-$(version transformer-engine-torch)-$python-$python-linux_$(uname -m).whl"
}
mkdir -p "$kept"
if [ -z "$(find_wheel)" ]; then
    echo "building Transformer Engine $(version transformer-engine-torch): about 15 CPU minutes"
    install "${exact[@]}" -r "$folder/requirements-te-build.txt"
    # FORCE_BUILD: no search for a wheel on GitHub. NO_LOCAL_VERSION: no hash of the checkout that this is in.
    PATH="$(cd "$venv" && pwd)/bin:$PATH" NVTE_PYTORCH_FORCE_BUILD=TRUE NVTE_NO_LOCAL_VERSION=1 NVTE_FRAMEWORK=pytorch \
        NVTE_BUILD_USE_NVIDIA_WHEELS=1 MAX_JOBS=${MAX_JOBS:-$(nproc)} \
        "$venv/bin/python" -m pip wheel "${exact[@]}" --no-build-isolation --no-cache-dir \
        --wheel-dir "$scratch/built" -r "$scratch/sdist.txt"
    mv "$scratch"/built/*.whl "$kept/"
    names() { sed -n 's/^\([a-z0-9-]*\)==.*/\1/p' "$1"; }
    names "$folder/requirements-te-build.txt" | grep -vxF -f <(names "$requirements") > "$scratch/build-only.txt"
    "$venv/bin/python" -m pip uninstall --quiet --yes -r "$scratch/build-only.txt"
fi
install --no-deps "$(find_wheel)"
