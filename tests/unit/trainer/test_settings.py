"""How the launcher reads its environment."""

from pathlib import Path

import pytest
from megatron_trainer import settings

POD = {
    "PET_NNODES": "2",
    "PET_NODE_RANK": "1",
    "PET_NPROC_PER_NODE": "4",
    "MASTER_ADDR": "run-master-0",
    "MASTER_PORT": "23456",
}


def test_a_pod_of_a_pytorchjob_with_the_defaults() -> None:
    pod = settings.read(POD)
    assert (pod.node_rank, pod.nodes, pod.ranks_per_node, pod.world_size) == (1, 2, 4, 8)
    assert (pod.master_addr, pod.master_port, pod.progress_port) == ("run-master-0", 23456, 8432)
    assert pod.platform == "gpu"
    assert (pod.max_rank_restarts, pod.rendezvous_timeout, pod.keep_checkpoints) == (3, 600, 0)
    assert pod.termination_log == Path("/dev/termination-log")
    assert not pod.require_checkpoint
    assert (pod.hang_timeout, pod.preflight) == ("auto", False)
    assert (pod.loss_spike_factor, pod.loss_spike_window, pod.loss_on_repeat) == (None, 50, "fail")


def test_the_window_of_the_profiler_is_set_by_environment() -> None:
    assert settings.read(POD).profile_window is None
    window = settings.read(POD | {"MEGATRON_PROFILE": "100-104:0,8"}).profile_window
    assert window == settings.ProfileWindow(100, 104, frozenset({0, 8}))


def test_trackers_are_set_by_environment() -> None:
    assert settings.read(POD).tracking.trackers == ()
    tracking = settings.read(POD | {"MEGATRON_TRACKING": '{"tensorboard": true}'}).tracking
    assert tracking.trackers == ("tensorboard",)
    mlflow = '{"mlflow": {"trackingUri": "http://127.0.0.1", "experiment": "x"}}'
    assert settings.read(POD | {"MEGATRON_TRACKING": mlflow}).tracking.trackers == ("mlflow",)


def test_recovery_is_set_by_environment() -> None:
    variables = {
        "MEGATRON_HANG_TIMEOUT": "600",
        "MEGATRON_PREFLIGHT": "1",
        "MEGATRON_LOSS_SPIKE_FACTOR": "2.5",
        "MEGATRON_LOSS_SPIKE_WINDOW": "100",
        "MEGATRON_LOSS_ON_REPEAT": "skip",
    }
    pod = settings.read(POD | variables)
    assert (pod.hang_timeout, pod.preflight) == (600.0, True)
    assert (pod.loss_spike_factor, pod.loss_spike_window, pod.loss_on_repeat) == (2.5, 100, "skip")


def test_a_single_pod_needs_no_setting() -> None:
    pod = settings.read({})
    assert (pod.node_rank, pod.nodes, pod.ranks_per_node, pod.master_addr) == (0, 1, 1, "127.0.0.1")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"PET_NODE_RANK": "2"}, "PET_NODE_RANK is 2 of PET_NNODES 2; set a number below 2"),
        ({"PET_NODE_RANK": ""}, "PET_NODE_RANK is not set"),
        (
            {"PET_NPROC_PER_NODE": "auto"},
            "PET_NPROC_PER_NODE is 'auto', not a whole number; set a number >= 1",
        ),
        ({"PET_NNODES": "0"}, "PET_NNODES is 0; set a number >= 1"),
        ({"MASTER_ADDR": ""}, "MASTER_ADDR is not set; set the name of the Master pod"),
        ({"MEGATRON_PLATFORM": "tpu"}, "MEGATRON_PLATFORM is 'tpu'; set gpu or cpu"),
        ({"MEGATRON_HANG_TIMEOUT": "soon"}, "MEGATRON_HANG_TIMEOUT is 'soon'; set auto, off or a number"),
        ({"MEGATRON_HANG_TIMEOUT": "0"}, "MEGATRON_HANG_TIMEOUT is '0'; set auto, off or a number"),
        ({"MEGATRON_LOSS_SPIKE_FACTOR": "1"}, "MEGATRON_LOSS_SPIKE_FACTOR is '1'; set a number > 1"),
        ({"MEGATRON_LOSS_SPIKE_WINDOW": "2"}, "MEGATRON_LOSS_SPIKE_WINDOW is 2; set a number >= 3"),
        ({"MEGATRON_TRACKING": "tensorboard"}, "MEGATRON_TRACKING: not JSON"),
        ({"MEGATRON_PROFILE": "10"}, "MEGATRON_PROFILE is '10'; set first-last:ranks"),
        ({"MEGATRON_PROFILE": "10-9:0"}, "MEGATRON_PROFILE is '10-9:0'; set first-last:ranks"),
        ({"MEGATRON_LOSS_ON_REPEAT": "stop"}, "MEGATRON_LOSS_ON_REPEAT is 'stop'; set fail or skip"),
        ({"MEGATRON_MAX_RANK_RESTARTS": "-1"}, "MEGATRON_MAX_RANK_RESTARTS is -1; set a number >= 0"),
    ],
)
def test_an_invalid_setting_is_refused_with_its_name_and_value(change: dict[str, str], message: str) -> None:
    with pytest.raises(settings.SettingError) as refusal:
        settings.read(POD | change)
    assert str(refusal.value).startswith(message)
