#!/usr/bin/env bash
# All layers of tests. Stops at the first that fails and prints the seconds of each layer.
# The binaries come early because the chart's unit tests use the helm that is built there. The control-plane layer, the
# faults and the trainer's real ranks often wait, for timeouts and for each other, so they run beside the layers that
# need the processor.
set -euo pipefail
cd "$(dirname "$0")/.."
source scripts/layers.sh
python=.venv/bin/python

run_control_plane() {
    # JobSet, TrainJob and Kueue have commands of their own, make test-jobset, test-trainjob and test-kueue: their
    # controllers take minutes to build.
    layer "control plane: API server, training-operator, KWOK nodes" \
        $python -m pytest -q --tb short --ignore tests/control_plane/test_jobset.py \
        --ignore tests/control_plane/test_trainjob.py \
        --ignore tests/control_plane/test_kueue.py tests/control_plane
    $python -m localcluster down --profile control-plane
}

run_local_cluster_and_trainer() {
    # Layers of their own: what does not start is printed once, and not as the error of every test.
    layer "local cluster: two nodes with kubelets" $python -m localcluster up
    layer "images of the operator and the trainer, loaded into the nodes" $python -m localcluster images
    layer "faults: kubelets, containers, training, injected faults" $python -m pytest -q tests/faults
    layer "image of the trainer with Megatron-Bridge, loaded into the nodes" \
        $python -m localcluster images megatron-trainer-bridge-cpu
    layer "fine-tuning: weights in, chats, experts, injected faults, weights out" \
        $python -m pytest -q -s -m "not fine_tuning_only" tests/fine_tuning
    $python -m localcluster down # frees two kubelets' and a control plane's share of the processor
    # Three at a time: ranks that wait for timeouts leave a processor idle, and most other layers have ended by then.
    layer "trainer: real ranks on loopback" \
        $python -m pytest -q -n 3 --dist loadfile -m "not repeats" tests/trainer
}

layer "lint: ruff, mypy --strict" make --no-print-directory lint
layer "binaries of the local cluster (minutes the first time)" $python -m localcluster binaries
layer "Prometheus and Chromium: Debian's packages, for the tests of alerts, dashboard and page" \
    $python scripts/install_test_programs.py
start_lane "control plane" run_control_plane
start_lane "local cluster, then the trainer" run_local_cluster_and_trainer
layer "unit and refusals: no cluster" run_unit_tests
layer "protocol: the recovery protocol explored exhaustively" $python -m pytest -q -rP tests/protocol
layer "megatron and trainer: every argument list against the real Megatron" run_tests_with_megatron
layer "bridge: every recipe function of Megatron-Bridge, called" $python -m pytest -q tests/bridge
layer "packages of Megatron-Bridge in an environment of their own" scripts/setup_bridge.sh
# All sizes: make bridge-recipes.
layer "bridge: a small model of every kind of function that starts on one rank, trained two iterations" \
    .venv-bridge/bin/python -m pytest -q -m "not repeats" tests/trainer/test_bridge_recipes.py
layer "bridge: what the loss sees of chats and packed samples, compared with their sources" \
    .venv-bridge/bin/python -m pytest -q tests/trainer/test_chats.py tests/trainer/test_harmony_chats.py \
    tests/trainer/test_packing.py tests/trainer/test_packed_attention.py tests/trainer/test_packed_chats.py \
    tests/trainer/test_step_layers.py
layer "fuzz: 470 texts and 10 walks of a simulated cluster, the same each time" $python -m pytest -q tests/fuzz
layer "gpu: what a start on GPUs needs, without a GPU" $python -m pytest -q tests/gpu
finish_lanes
