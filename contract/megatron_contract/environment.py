"""What the operator sets up for a trainer pod: container name, ports, directories, environment variables."""

from typing import Final

CONTAINER_NAME: Final = "pytorch"
"""The container that the training-operator expects in a PyTorchJob's pods."""

PROGRESS_PORT: Final = 8432
PROGRESS_PORT_NAME: Final = "progress"

DATA_DIR: Final = "/data"
CHECKPOINT_DIR: Final = "/checkpoints"
LOCAL_CHECKPOINT_DIR: Final = "/local-checkpoints"
GANG_TOKEN_DIR: Final = "/run/megatron/gang"
GANG_TOKEN_FILE: Final = "token"
"""In GANG_TOKEN_DIR, and the key of the Secret that is mounted there."""
PROGRESS_FILE: Final = "progress.jsonl"
"""In the run's save directory; the trainer appends one JSON object per iteration."""
JOURNAL_FILE: Final = "incidents.json"
"""Beside it; the run journal of node 0: when the run started first, its newest incidents."""
JOURNAL_SCHEMA: Final = 1
"""Version of the journal's format."""
LEASE_FILE: Final = "owner.json"
"""Beside it; which launcher may write there, and the UID of the recipe."""
HANGS_FOLDER: Final = "hangs"
"""Beside it; for each hang `TIME-generation-NUMBER/node-RANK.txt`, the stacks of the ranks of each pod."""
VALIDATION_FILE: Final = "validation.jsonl"
"""Beside it; one JSON object per evaluation of the validation data: iteration, lmLoss, generation, time.

A resume that discards evaluated iterations appends discardedAfter, the iteration that it started from.
"""
SCALARS_FILE: Final = "scalars.jsonl"
"""Beside it, where a tracker is set; one JSON object per iteration and per evaluation: iteration, values by
name, generation, time."""
TENSORBOARD_DIR: Final = "tensorboard"
"""Beside it; TensorBoard's event files."""
WANDB_DIR: Final = "wandb"
"""Beside it; the files that wandb writes."""
SAMPLES_DIR: Final = "samples"
"""Beside it; which samples each iteration read, a file for each data-parallel rank."""
PROFILE_DIR: Final = "profile"
"""Beside it; the traces that torch's profiler recorded, one file for each rank."""

ENV_PLATFORM: Final = "MEGATRON_PLATFORM"
ENV_ENGINE: Final = "MEGATRON_ENGINE"
ENV_RUN_ID: Final = "MEGATRON_RUN_ID"
ENV_GANG_TOKEN_FILE: Final = "MEGATRON_GANG_TOKEN_FILE"
ENV_PROGRESS_PORT: Final = "MEGATRON_PROGRESS_PORT"
ENV_MAX_RANK_RESTARTS: Final = "MEGATRON_MAX_RANK_RESTARTS"
ENV_RENDEZVOUS_TIMEOUT: Final = "MEGATRON_RENDEZVOUS_TIMEOUT"
ENV_REQUIRE_CHECKPOINT: Final = "MEGATRON_REQUIRE_CHECKPOINT"
ENV_KEEP_CHECKPOINTS: Final = "MEGATRON_KEEP_CHECKPOINTS"
ENV_KEEP_BEST: Final = "MEGATRON_KEEP_BEST"
ENV_TERMINATION_GRACE: Final = "MEGATRON_TERMINATION_GRACE"
ENV_TERMINATION_LOG: Final = "MEGATRON_TERMINATION_LOG"
ENV_HANG_TIMEOUT: Final = "MEGATRON_HANG_TIMEOUT"
ENV_PREFLIGHT: Final = "MEGATRON_PREFLIGHT"
ENV_BIND_CPUS: Final = "MEGATRON_BIND_CPUS"
ENV_NODE_NAME: Final = "MEGATRON_NODE_NAME"
ENV_LOSS_SPIKE_FACTOR: Final = "MEGATRON_LOSS_SPIKE_FACTOR"
ENV_LOSS_SPIKE_WINDOW: Final = "MEGATRON_LOSS_SPIKE_WINDOW"
ENV_LOSS_ON_REPEAT: Final = "MEGATRON_LOSS_ON_REPEAT"
ENV_PROFILE: Final = "MEGATRON_PROFILE"
ENV_TRACKING: Final = "MEGATRON_TRACKING"
ENV_SECRET_VARIABLES: Final = "MEGATRON_SECRET_VARIABLES"

DEFAULT_PLATFORM: Final = "gpu"
DEFAULT_ENGINE: Final = "megatron"
ENGINES: Final = ("megatron", "bridge")
DEFAULT_RUN_ID: Final = "run"
DEFAULT_MAX_RANK_RESTARTS: Final = 3
DEFAULT_RENDEZVOUS_TIMEOUT: Final = 600
"""Seconds that a pod waits for all others."""
DEFAULT_TERMINATION_GRACE: Final = 25
"""Seconds from SIGTERM for the last save."""
DEFAULT_TERMINATION_LOG: Final = "/dev/termination-log"
DEFAULT_HANG_TIMEOUT: Final = "auto"
DEFAULT_LOSS_SPIKE_WINDOW: Final = 50
"""Iterations."""
DEFAULT_LOSS_ON_REPEAT: Final = "fail"

SETTINGS: Final[dict[str, str]] = {
    ENV_PLATFORM: f"gpu or cpu (default {DEFAULT_PLATFORM})",
    ENV_ENGINE: "megatron: Megatron's own loop with its flags; bridge: a recipe function of Megatron-Bridge "
    f"and overrides of its configuration (default {DEFAULT_ENGINE})",
    ENV_RUN_ID: f"name of the run (default {DEFAULT_RUN_ID})",
    ENV_GANG_TOKEN_FILE: "file with the token that a pod needs to use the gang's store (default none)",
    ENV_PROGRESS_PORT: f"port of /progress, /metrics and /healthz (default {PROGRESS_PORT})",
    ENV_MAX_RANK_RESTARTS: f"rank restarts without a new checkpoint (default {DEFAULT_MAX_RANK_RESTARTS})",
    ENV_RENDEZVOUS_TIMEOUT: f"seconds to wait for other pods (default {DEFAULT_RENDEZVOUS_TIMEOUT})",
    ENV_REQUIRE_CHECKPOINT: "1: fail unless there is a checkpoint to start from",
    ENV_KEEP_CHECKPOINTS: "number of complete checkpoints to keep (default all)",
    ENV_KEEP_BEST: "1: keep the checkpoint with the lowest validation loss as well",
    ENV_TERMINATION_GRACE: f"seconds from SIGTERM for the last save (default {DEFAULT_TERMINATION_GRACE})",
    ENV_TERMINATION_LOG: f"file for the termination message (default {DEFAULT_TERMINATION_LOG})",
    ENV_HANG_TIMEOUT: "auto (3 step times and 75 s), off, or seconds without a step "
    f"(default {DEFAULT_HANG_TIMEOUT})",
    ENV_BIND_CPUS: "0: leave ranks on all cores (default: on those of their GPU's NUMA node)",
    ENV_PREFLIGHT: "1: check the devices of each new pod and the connections between nodes first",
    ENV_NODE_NAME: "name of the cluster's node, for messages of the preflight (default the host's name)",
    ENV_LOSS_SPIKE_FACTOR: "fail on a loss above this multiple of the median (default off)",
    ENV_LOSS_SPIKE_WINDOW: f"losses that the median is taken over (default {DEFAULT_LOSS_SPIKE_WINDOW})",
    ENV_LOSS_ON_REPEAT: "fail, or skip the iterations that failed, if an older checkpoint does not help "
    f"(default {DEFAULT_LOSS_ON_REPEAT})",
    ENV_PROFILE: "first and last iteration that torch's profiler records, and the ranks: 100-104:0,8 "
    "(default none)",
    ENV_TRACKING: 'where curves are recorded, as JSON: {"tensorboard": true} (default nowhere)',
    ENV_SECRET_VARIABLES: "variables whose values enter no message; * -NAME: all but these (default none)",
}
"""Environment variable -> meaning, unit and default. The operator sets these; users cannot override them."""
