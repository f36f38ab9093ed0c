#!/usr/bin/env bash
# The everyday command: lint, unit tests, refusals and Megatron's argument gate. No root, no cluster, no GPU.
# Stops at the first layer that fails and prints the seconds of each layer.
set -euo pipefail
cd "$(dirname "$0")/.."
source scripts/layers.sh

# Beside the others: lint uses one core only.
start_lane "megatron and trainer" \
    layer "megatron and trainer: every argument list against the real Megatron" run_tests_with_megatron
layer "lint: ruff, mypy --strict" make --no-print-directory lint
# Its processes leave the one with Megatron, which takes longest, a core of its own.
layer "unit and refusals: no cluster" nice -n 5 bash -c run_unit_tests
finish_lanes
