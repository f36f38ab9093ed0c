"""What operator and trainer agree on. Standard library only; the operator has a twin, a test holds them
equal."""

from enum import IntEnum
from typing import Final

ENV_PLATFORM: Final = "MEGATRON_PLATFORM"
ENV_RUN_ID: Final = "MEGATRON_RUN_ID"
ENV_PROGRESS_PORT: Final = "MEGATRON_PROGRESS_PORT"
ENV_MAX_RANK_RESTARTS: Final = "MEGATRON_MAX_RANK_RESTARTS"
ENV_RENDEZVOUS_TIMEOUT: Final = "MEGATRON_RENDEZVOUS_TIMEOUT"
ENV_REQUIRE_CHECKPOINT: Final = "MEGATRON_REQUIRE_CHECKPOINT"
ENV_KEEP_CHECKPOINTS: Final = "MEGATRON_KEEP_CHECKPOINTS"
ENV_TERMINATION_GRACE: Final = "MEGATRON_TERMINATION_GRACE"
ENV_TERMINATION_LOG: Final = "MEGATRON_TERMINATION_LOG"
ENV_HANG_TIMEOUT: Final = "MEGATRON_HANG_TIMEOUT"
ENV_PREFLIGHT: Final = "MEGATRON_PREFLIGHT"
ENV_LOSS_SPIKE_FACTOR: Final = "MEGATRON_LOSS_SPIKE_FACTOR"
ENV_LOSS_SPIKE_WINDOW: Final = "MEGATRON_LOSS_SPIKE_WINDOW"
ENV_LOSS_ON_REPEAT: Final = "MEGATRON_LOSS_ON_REPEAT"

PROGRESS_PORT: Final = 8432
PROGRESS_PORT_NAME: Final = "progress"
DEFAULT_MAX_RANK_RESTARTS: Final = 3
DEFAULT_RENDEZVOUS_TIMEOUT: Final = 600
DEFAULT_TERMINATION_GRACE: Final = 25
DEFAULT_LOSS_SPIKE_WINDOW: Final = 50
DEFAULT_LOSS_ON_REPEAT: Final = "fail"
DEFAULT_TERMINATION_LOG: Final = "/dev/termination-log"

PROGRESS_SCHEMA: Final = 1
PROGRESS_FILE: Final = "progress.jsonl"


class ExitCode(IntEnum):
    """Exit codes of the pod. PyTorchJob's ExitCode policy fails the job on 1-127, replaces the pod from
    128."""

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

TERMINATION_FIELDS: Final = (
    "reason",
    "message",
    "nodeRank",
    "rank",
    "iteration",
    "checkpointIteration",
    "exitCode",
)
