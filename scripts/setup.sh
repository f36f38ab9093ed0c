#!/usr/bin/env bash
# Makes .venv: operator, CLI, local cluster, demo and test tools; with `trainer` also torch and megatron-core.
# Registries come from the environment (pip's and uv's own settings). Repeating it costs a second.
set -euo pipefail
cd "$(dirname "$0")/.."
with_trainer=${1:-}
uv_version=$(sed -n 's/^uv==\([0-9.]*\).*/\1/p' requirements/dev.txt)

say() { printf 'setup: %s\n' "$*"; }

# uv reads UV_*; pip's settings are what most machines have, so they are carried over.
export UV_HTTP_TIMEOUT=${UV_HTTP_TIMEOUT:-${PIP_DEFAULT_TIMEOUT:-180}}
[ -n "${PIP_INDEX_URL:-}" ] && export UV_DEFAULT_INDEX=${UV_DEFAULT_INDEX:-$PIP_INDEX_URL}
export UV_SYSTEM_CERTS=1

uv=$(command -v uv || true)
if [ -z "$uv" ]; then
    uv=.cache/uv/bin/uv
    if [ ! -x "$uv" ]; then
        say "no uv on PATH: installing uv $uv_version with pip into .cache/uv"
        python3 -m venv .cache/uv
        .cache/uv/bin/python -m pip install --quiet --disable-pip-version-check "uv==$uv_version"
    fi
fi

# Megatron Core needs Python 3.12 or 3.13. pyenv's shims fail for versions that are not chosen, so each is tried.
find_python() {
    local version candidate
    for version in 3.12 3.13; do
        candidate=$(command -v "python$version" || true)
        if [ -n "$candidate" ] && "$candidate" -c '' 2>/dev/null; then echo "$candidate"; return; fi
        for candidate in "${PYENV_ROOT:-$HOME/.pyenv}"/versions/"$version".*/bin/python; do
            if [ -x "$candidate" ]; then echo "$candidate"; return; fi
        done
    done
    echo 3.12 # uv downloads one where it may
}
if [ ! -x .venv/bin/python ]; then
    python=$(find_python)
    say "making .venv with $python"
    "$uv" venv --quiet --python "$python" .venv
fi

install() { # install STAMP REQUIREMENTS [EDITABLE...]
    local stamp=.venv/$1 requirements=$2 wanted
    shift 2
    wanted=$(cat "$requirements" VERSION pyproject.toml ./*/pyproject.toml | sha256sum)
    if [ "$(cat "$stamp" 2>/dev/null)" = "$wanted" ]; then return; fi
    say "installing $requirements"
    # Every requirement is in the file; --no-deps holds Megatron-Bridge's off, which pin other versions.
    "$uv" pip install --quiet --python .venv/bin/python --no-deps --require-hashes -r "$requirements"
    if [ $# -gt 0 ]; then "$uv" pip install --quiet --python .venv/bin/python --no-deps "$@"; fi
    echo "$wanted" > "$stamp"
}
started=$SECONDS
install .stamp-dev requirements/dev.txt -e contract -e . -e cluster
if [ "$with_trainer" = trainer ]; then
    install .stamp-trainer trainer-image/requirements-cpu.txt -e trainer-image
    install .stamp-bridge requirements/bridge.txt
fi
# Where Python may not write bytecode itself (PYTHONDONTWRITEBYTECODE), compiling is half of every short command:
# it is written here, for the operator's sources each time, for what these commands import once it is installed.
.venv/bin/python -m compileall -q contract operator
if [ ! -e .venv/.stamp-bytecode ] || [ .venv/.stamp-dev -nt .venv/.stamp-bytecode ]; then
    for command in "megatron render -f examples/tiny-gpt.yaml" "megatron-operator --help"; do
        # shellcheck disable=SC2086  # words
        env -u PYTHONDONTWRITEBYTECODE .venv/bin/$command > /dev/null
    done
    touch .venv/.stamp-bytecode
fi
say ".venv is ready ($(.venv/bin/python --version), $((SECONDS - started)) s)"
