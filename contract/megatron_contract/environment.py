"""What the operator sets up for a trainer pod: container name, ports, directories, environment variables."""

from typing import Final

CONTAINER_NAME: Final = "pytorch"
"""The container that the training-operator looks for in a PyTorchJob's pods."""

PROGRESS_PORT: Final = 8432
PROGRESS_PORT_NAME: Final = "progress"

DATA_DIR: Final = "/data"
CHECKPOINT_DIR: Final = "/checkpoints"
LOCAL_CHECKPOINT_DIR: Final = "/local-checkpoints"
PROGRESS_FILE: Final = "progress.jsonl"
"""Appended to in the run's save directory, one JSON object per iteration."""

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

DEFAULT_MAX_RANK_RESTARTS: Final = 3
DEFAULT_RENDEZVOUS_TIMEOUT: Final = 600
"""Seconds."""
DEFAULT_TERMINATION_GRACE: Final = 25
"""Seconds."""
DEFAULT_LOSS_SPIKE_WINDOW: Final = 50
"""Iterations."""
DEFAULT_LOSS_ON_REPEAT: Final = "fail"
DEFAULT_TERMINATION_LOG: Final = "/dev/termination-log"
