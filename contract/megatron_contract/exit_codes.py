"""Exit codes of a trainer pod, and the reason that the termination message gives for each."""

from enum import IntEnum
from typing import Final


class ExitCode(IntEnum):
    """Exit codes of a trainer pod.

    PyTorchJob's restart policy `ExitCode` fails the job on 1 to 127 and replaces the pod from 128 on, so a
    code below 128 means that a retry would fail in the same way.
    """

    OK = 0
    USAGE = 64
    BAD_DATA = 65
    NO_CHECKPOINT = 66
    LOSS_NOT_FINITE = 67
    UNSUPPORTED = 69
    INTERNAL = 70
    WORKER_DIED = 138
    PEER_LOST = 140
    HANG = 142
    TERMINATED = 143

    @property
    def retryable(self) -> bool:
        """Whether the training-operator replaces a pod that ends with this code."""
        return self >= FIRST_RETRYABLE_EXIT_CODE


FIRST_RETRYABLE_EXIT_CODE: Final = 128
"""From this exit code on the training-operator replaces the pod."""

REASONS: Final[dict[ExitCode, str]] = {
    ExitCode.OK: "Completed",
    ExitCode.USAGE: "BadFlags",
    ExitCode.BAD_DATA: "BadData",
    ExitCode.NO_CHECKPOINT: "NoCheckpoint",
    ExitCode.LOSS_NOT_FINITE: "LossNotFinite",
    ExitCode.UNSUPPORTED: "Unsupported",
    ExitCode.INTERNAL: "Internal",
    ExitCode.WORKER_DIED: "WorkerDied",
    ExitCode.PEER_LOST: "PeerLost",
    ExitCode.HANG: "Hang",
    ExitCode.TERMINATED: "Terminated",
}
"""Exit code -> `reason` of the termination message."""

REASON_COMPLETED: Final = REASONS[ExitCode.OK]
"""The last iteration is done and its checkpoint is verified."""
