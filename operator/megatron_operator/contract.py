"""What operator and trainer agree on: exit codes, environment names, ports, the progress format.

Standard library only. The trainer holds the same values in its own `contract` module; a test compares both.
"""

from enum import IntEnum
from typing import Final

CONTAINER_NAME: Final = "pytorch"
"""The container that the training-operator looks for in a PyTorchJob's pods."""

PROGRESS_PORT: Final = 8432
PROGRESS_PORT_NAME: Final = "progress"
PROGRESS_SCHEMA: Final = 1

DATA_DIR: Final = "/data"
CHECKPOINT_DIR: Final = "/checkpoints"
LOCAL_CHECKPOINT_DIR: Final = "/local-checkpoints"
PROGRESS_FILE: Final = "progress.jsonl"
"""Appended in the run's save directory, one JSON object an iteration."""

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


REASON_COMPLETED: Final = "Completed"
"""What the termination log says when the last iteration is done and its checkpoint verified."""


class ExitCode(IntEnum):
    """How a trainer pod ends. Below 128 nothing is gained by another start; from 128 on it is worth one."""

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
