#!/usr/bin/env bash
# The everyday command: lint, unit tests, refusals and Megatron's argument gate. No root, no cluster, no GPU.
# Stops at the first layer that fails and prints the seconds of each layer.
set -euo pipefail
cd "$(dirname "$0")/.."
source scripts/layers.sh
python=.venv/bin/python

layer "lint: ruff, mypy --strict" make --no-print-directory lint
layer "unit and refusals: no cluster" run_unit_tests
# In one process: importing Megatron once per worker costs more than the second core saves.
layer "megatron: every argument list against the real Megatron" $python -m pytest -q tests/megatron
