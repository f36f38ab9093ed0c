"""Errors of a device during training: classified, reported, and answered without a checkpoint's loss."""

from collections.abc import Callable
from typing import Any

import pytest
from megatron_contract.environment import CONTAINER_NAME
from megatron_operator.api.recovery_status import RecoveryStatus
from megatron_operator.lifecycle.incidents import PodReplacement, pods_replaced
from megatron_operator.lifecycle.node_evidence import to_avoid
from megatron_operator.lifecycle.pod_termination import pod_end

from tests.gpu.simulated.control import CudaError
from tests.trainer.gang import Gang

# The checkpoint of iteration 4 is complete then.
FAIL_AT = 6
STEPS = ("--train-iters", "8")
AVOID_AFTER = 3


def checkpoints(run: Gang) -> list[str]:
    """Names of all directories with a checkpoint, also of those set aside."""
    return sorted(path.name for path in run.save.iterdir() if path.is_dir() and "iter_" in path.name)


def recovery_after(run: Gang, exit_code: int) -> RecoveryStatus:
    """Return what the operator records when the run's pod on node-1, which ended so, has been replaced."""
    terminated = {"exitCode": exit_code, "message": (run.folder / "termination-0").read_text()}
    pod = {
        "metadata": {"name": "run-master-0"},
        "spec": {"nodeName": "node-1"},
        "status": {
            "phase": "Failed",
            "containerStatuses": [{"name": CONTAINER_NAME, "state": {"terminated": terminated}}],
        },
    }
    end = pod_end(pod, "run")
    return pods_replaced(
        RecoveryStatus(), [PodReplacement("master-0", end)], 1_800_000_000.0, checkpoint=4, iteration=5
    )


@pytest.mark.parametrize(
    ("state", "evidence", "text"),
    [
        pytest.param(
            {"error": CudaError.ECC_UNCORRECTABLE},
            "DeviceMemory",
            "uncorrectable ECC error encountered",
            id="ECC error that CUDA reports",
        ),
        pytest.param(
            {"ecc_uncorrected": 1, "error": CudaError.LAUNCH_FAILED},
            "DeviceMemory",
            "(NVML: 1 uncorrectable ECC errors on device 0)",
            id="ECC error that NVML counts",
        ),
        pytest.param({"lost": 1}, "DeviceLost", "(NVML: device 0 is lost)", id="device off the bus"),
        pytest.param(
            {"xid": 94, "xid_count": 1, "error": CudaError.LAUNCH_FAILED},
            "DeviceMemory",
            "(NVML: Xid 94 of device 0)",
            id="Xid that NVML reports",
        ),
    ],
)
def test_the_pod_ends_with_evidence_keeps_its_checkpoint_and_has_its_node_avoided_after(
    state: dict[str, int], evidence: str, text: str, gpu_run: Callable[..., Gang]
) -> None:
    run = gpu_run()
    run.inject({"what": "device", "at": FAIL_AT, "generations": [1], "state": state})
    run.start(extra=STEPS)
    assert run.wait() == [138], run.log()[-3000:]
    message = run.termination(0)
    assert (message["reason"], message["evidence"]) == ("WorkerDied", evidence)
    assert text in message["message"]
    assert checkpoints(run) == ["iter_0000004"]
    recovery = recovery_after(run, 138)
    assert to_avoid(recovery, AVOID_AFTER) == ("node-1",)
    assert recovery.last_incident is not None
    assert (recovery.last_incident.kind, recovery.last_incident.rank) == ("pod", 0)


def test_an_ecc_error_that_aborts_the_rank_is_found_in_its_stderr(gpu_run: Callable[..., Gang]) -> None:
    """NVML does not count it here, and no exception of Python reports it."""
    run = gpu_run()
    state = {"error": CudaError.ECC_UNCORRECTABLE}
    run.inject(
        {"what": "device", "at": FAIL_AT, "generations": [1], "state": state},
        {"what": "abort", "at": FAIL_AT, "generations": [1]},
    )
    run.start(extra=STEPS)
    assert run.wait() == [138], run.log()[-3000:]
    message = run.termination(0)
    assert (message["reason"], message["evidence"]) == ("WorkerDied", "DeviceMemory")
    assert message["message"].startswith("rank 0 was killed by SIGABRT: ")
    assert "uncorrectable ECC error encountered" in message["message"]
    assert "uncorrectable ECC error encountered" in run.log(), "the log has it too"


def test_errors_of_the_program_restart_the_ranks_from_the_newest_checkpoint_without_evidence(
    gpu_run: Callable[..., Gang],
) -> None:
    """Also with the Xid that the driver reports of them."""
    errors: list[tuple[dict[str, int], str]] = [
        (
            {"xid": 31, "xid_count": 1, "error": CudaError.ILLEGAL_ADDRESS},
            "CUDA error: an illegal memory access was encountered",
        ),
        ({"error": CudaError.LAUNCH_FAILED}, "CUDA error: unspecified launch failure"),
        ({"error": CudaError.ASSERT}, "CUDA error: device-side assert triggered"),
        ({"failing_allocations": 1}, "out of memory"),
    ]
    run = gpu_run()
    faults: list[dict[str, Any]] = [
        {"what": "device", "at": FAIL_AT + 4 * n, "generations": [n + 1], "state": state}
        for n, (state, _) in enumerate(errors)
    ]
    run.inject(*faults)
    run.start(extra=("--train-iters", "20"))
    assert run.wait() == [0], run.log()[-3000:]
    incidents = run.incidents()
    assert [(each["kind"], each["resumedFrom"]) for each in incidents] == [
        ("rank", 4 * (n + 1)) for n in range(len(errors))
    ]
    for incident, (_, text) in zip(incidents, errors, strict=True):
        assert text in incident["cause"]
    assert run.termination(0)["evidence"] == ""
    assert checkpoints(run)[-1] == "iter_0000020"


def test_an_error_of_the_program_at_the_same_iteration_again_rolls_no_checkpoint_back_and_blames_no_node(
    gpu_run: Callable[..., Gang],
) -> None:
    run = gpu_run()
    run.inject({"what": "device", "at": FAIL_AT, "state": {"error": CudaError.LAUNCH_FAILED}})
    run.environment["MEGATRON_MAX_RANK_RESTARTS"] = "2"
    run.start(extra=STEPS)
    assert run.wait() == [138], run.log()[-3000:]
    assert [incident["resumedFrom"] for incident in run.incidents()[:2]] == [4, 4]
    assert checkpoints(run) == ["iter_0000004"]
    recovery = recovery_after(run, 138)
    assert to_avoid(recovery, AVOID_AFTER) == ()
    assert recovery.node_evidence == {}
