"""Names that other programs read: group, kind, labels, annotations, conditions, reasons."""

from enum import StrEnum
from typing import Final

GROUP: Final = "megatron.training"
VERSION: Final = "v1alpha1"
API_VERSION: Final = f"{GROUP}/{VERSION}"
KIND: Final = "MegatronRecipe"
PLURAL: Final = "megatronrecipes"
SINGULAR: Final = "megatronrecipe"
SHORT_NAME: Final = "mr"

FIELD_MANAGER: Final = "megatron-operator"

LABEL_MANAGED_BY: Final = "app.kubernetes.io/managed-by"
LABEL_RECIPE: Final = f"{GROUP}/recipe"
LABEL_ROLE: Final = f"{GROUP}/role"
LABEL_CLIQUE: Final = "nvidia.com/gpu.clique"
"""NVIDIA's feature discovery gives it to nodes: the same value, the same NVLink domain."""
ANNOTATION_HASH: Final = f"{GROUP}/hash"


class Phase(StrEnum):
    """Where a run is, in one word for `kubectl get`."""

    PENDING = "Pending"
    REFUSED = "Refused"
    PREPARING = "Preparing"
    STARTING = "Starting"
    TRAINING = "Training"
    RECOVERING = "Recovering"
    SUSPENDED = "Suspended"
    SUCCEEDED = "Succeeded"
    FAILED = "Failed"


class Condition(StrEnum):
    """Types of `status.conditions`."""

    PLANNED = "Planned"
    PREPARED = "Prepared"
    RUNNING = "Running"
    RECOVERING = "Recovering"
    SUCCEEDED = "Succeeded"
    FAILED = "Failed"
