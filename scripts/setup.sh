#!/usr/bin/env bash
# Creates .venv: operator, CLI, local cluster, demo and test tools; with `trainer` also torch and megatron-core.
# Package indexes come from the environment (settings of pip and uv). A repeated run takes about a second.
set -euo pipefail
cd "$(dirname "$0")/.."
with_trainer=${1:-}
uv_version=$(sed -n 's/^uv==\([0-9.]*\).*/\1/p' requirements/dev.txt)

log() { printf 'setup: %s\n' "$*"; }
source scripts/package_index.sh

uv=$(command -v uv || true)
if [ -z "$uv" ]; then
    uv=.cache/uv/bin/uv
    if [ ! -x "$uv" ]; then
        log "no uv on PATH: installing uv $uv_version with pip into .cache/uv"
        python3 -m venv .cache/uv
        .cache/uv/bin/python -m pip install --quiet --disable-pip-version-check "uv==$uv_version"
    fi
fi

# Megatron Core needs Python 3.12 or 3.13. pyenv's shims fail for inactive versions, so each candidate is run.
find_python() {
    local version candidate
    for version in 3.12 3.13; do
        candidate=$(command -v "python$version" || true)
        if [ -n "$candidate" ] && "$candidate" -c '' 2>/dev/null; then echo "$candidate"; return; fi
        for candidate in "${PYENV_ROOT:-$HOME/.pyenv}"/versions/"$version".*/bin/python; do
            if [ -x "$candidate" ]; then echo "$candidate"; return; fi
        done
    done
    echo 3.12 # uv downloads it if it can
}
if [ ! -x .venv/bin/python ]; then
    python=$(find_python)
    log "creating .venv with $python"
    "$uv" venv --quiet --python "$python" .venv
fi

install() { # install STAMP REQUIREMENTS [EDITABLE...]
    local stamp=.venv/$1 requirements=$2 digest
    shift 2
    digest=$(cat "$requirements" VERSION pyproject.toml ./*/pyproject.toml | sha256sum)
    if [ "$(cat "$stamp" 2>/dev/null)" = "$digest" ]; then return; fi
    log "installing $requirements"
    # Every requirement is in the file; --no-deps ignores those of Megatron-Bridge, which pin other versions.
    "$uv" pip install --quiet --python .venv/bin/python ${into:+--target "$into"} ${as_python:+--python-version "$as_python"} \
        --no-deps --require-hashes -r "$requirements"
    if [ $# -gt 0 ]; then "$uv" pip install --quiet --python .venv/bin/python --no-deps "$@"; fi
    echo "$digest" > "$stamp"
}
started=$SECONDS
install .stamp-dev requirements/dev.txt -e contract -e . -e cluster
if [ "$with_trainer" = trainer ]; then
    install .stamp-trainer trainer-image/requirements-cpu.txt -e trainer-image
    # Its wheel asks for 3.12; what the tests call of it runs on 3.13 too.
    as_python=3.12 install .stamp-bridge trainer-image/requirements-bridge.txt
    # Beside the packages of ranks, as in the image.
    into=.venv/tracking install .stamp-tracking trainer-image/requirements-tracking.txt
    into=.venv/tracking-tests install .stamp-tracking-tests requirements/tracking-tests.txt
fi
# With PYTHONDONTWRITEBYTECODE set, compiling takes half the time of every short command. Bytecode is written here:
# for the operator's sources at each run, for imported packages once after they are installed.
.venv/bin/python -m compileall -q contract operator
if [ ! -e .venv/.stamp-bytecode ] || [ .venv/.stamp-dev -nt .venv/.stamp-bytecode ]; then
    for command in "megatron render -f examples/tiny-gpt.yaml" "megatron-operator --help"; do
        # shellcheck disable=SC2086  # words
        env -u PYTHONDONTWRITEBYTECODE .venv/bin/$command > /dev/null
    done
    touch .venv/.stamp-bytecode
fi
log ".venv is ready ($(.venv/bin/python --version), $((SECONDS - started)) s)"
