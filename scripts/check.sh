#!/usr/bin/env bash
# The everyday command: lint, unit tests, refusals and Megatron's argument gate. No root, no cluster, no GPU.
# Stops at the first layer that fails. Arguments go to pytest: `scripts/check.sh -x -k recovery`.
set -euo pipefail
cd "$(dirname "$0")/.."
source scripts/layers.sh
python=.venv/bin/python
parallel=(-n auto --maxprocesses 8 --dist worksteal)

layer "lint: ruff, mypy --strict" make --no-print-directory lint
layer "unit and refusals: no cluster" $python -m pytest -q "${parallel[@]}" tests/unit tests/refusals "$@"
# In one process: importing Megatron once per worker costs more than the second core saves.
layer "megatron: every argument list against the real Megatron" $python -m pytest -q tests/megatron "$@"
