"""Names in trainer pods that the operator or the training-operator sets; nothing else may use them."""

from typing import Final

from megatron_contract.environment import (
    CHECKPOINT_DIR,
    CONTAINER_NAME,
    DATA_DIR,
    GANG_TOKEN_DIR,
    LOCAL_CHECKPOINT_DIR,
    PROGRESS_PORT,
    SETTINGS,
)

VOLUMES: Final = frozenset({"checkpoints", "shm", "tmp", "data", "local-checkpoints", "gang-token"})
MOUNT_PATHS: Final = (CHECKPOINT_DIR, DATA_DIR, LOCAL_CHECKPOINT_DIR, GANG_TOKEN_DIR, "/dev/shm", "/tmp")
CONTAINERS: Final = frozenset({CONTAINER_NAME, "init-pytorch"})
CLAIMS: Final = frozenset({"imex-channel"})
ENVIRONMENT: Final = frozenset(
    {
        *SETTINGS,
        "LOCAL_RANK",
        # Set by the training-operator.
        "MASTER_ADDR",
        "MASTER_PORT",
        "RANK",
        "WORLD_SIZE",
        "PET_NNODES",
        "PET_NODE_RANK",
        "PET_NPROC_PER_NODE",
    }
)
HIDES_DEVICES: Final = "CUDA_VISIBLE_DEVICES"
"""The device plugin decides which devices a pod has, and a rank uses that of its LOCAL_RANK."""
PORTS: Final = {PROGRESS_PORT: "the trainer's progress", 23456: "the training-operator's MASTER_PORT"}
ANNOTATION_PREFIXES: Final = ("megatron.training/", "kueue.x-k8s.io/", "training.kubeflow.org/")
