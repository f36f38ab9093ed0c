#!/usr/bin/env bash
# All layers of tests, cheap ones first; stops at the first that fails. Each says how long it took.
# The binaries come early because the chart's unit tests use the helm that is built there.
set -euo pipefail
cd "$(dirname "$0")/.."
python=.venv/bin/python

layer() { # layer NAME COMMAND...
    local name=$1 started=$SECONDS
    shift
    printf '\n=== %s\n' "$name"
    "$@"
    printf '=== %s: %d s\n' "$name" $((SECONDS - started))
}

layer "lint" make --no-print-directory lint
layer "binaries of the local cluster (minutes the first time)" $python -m localcluster binaries
layer "unit: no cluster" $python -m pytest -q tests/unit tests/refusals
layer "megatron: every argument list against the real Megatron" $python -m pytest -q tests/megatron
layer "bridge: every recipe function of Megatron-Bridge, called" $python -m pytest -q tests/bridge
layer "trainer: real ranks on loopback" $python -m pytest -q tests/trainer
layer "control plane: API server, training-operator, KWOK nodes" $python -m pytest -q tests/control_plane
$python -m localcluster down --profile control-plane
layer "faults: kubelets, containers, training, and what may happen to it" $python -m pytest -q tests/faults
