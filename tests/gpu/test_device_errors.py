"""Errors of a device during training: classified, reported, and answered without a checkpoint's loss."""

from collections.abc import Callable

import pytest

from tests.gpu.simulated.control import CudaError
from tests.trainer.gang import Gang

# The checkpoint of iteration 4 is complete then.
FAIL_AT = 6
STEPS = ("--train-iters", "8")


def checkpoints(run: Gang) -> list[str]:
    """Names of all directories with a checkpoint, also of those set aside."""
    return sorted(path.name for path in run.save.iterdir() if path.is_dir() and "iter_" in path.name)


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
    ],
)
def test_the_pod_ends_with_evidence_and_keeps_its_checkpoint_after(
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
