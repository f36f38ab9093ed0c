"""A recipe with everything filled in that can be known without planning."""

from pydantic import Field

from megatron_operator.api.base import ApiModel
from megatron_operator.api.model import ModelSpec
from megatron_operator.api.platform import AcceleratorProfile
from megatron_operator.api.recipe import CheckpointSpec, DataSpec, RecoverySpec, SchedulingSpec
from megatron_operator.api.training import ParallelismSpec, TrainingSpec
from megatron_operator.catalog.entry import Engine, Mode, PublishedLayout


class ResolvedRecipe(ApiModel):
    """catalog entry <- platform defaults <- recipe. What the planner gets."""

    recipe: str | None
    """The catalog entry, if one was named."""
    engine: Engine = "megatron"
    """Whose training loop runs it."""
    mode: Mode = "pretrain"
    """What is trained: all weights from nothing, all weights of a model that is there, or adapters of it."""
    function: PublishedLayout | None = None
    """What Megatron-Bridge's function sets: the one that the recipe names, or with engine `bridge` the one
    that starts it."""
    layout: PublishedLayout | None = None
    """The published layout that is used; none where none is for exactly these accelerators."""
    model: ModelSpec
    training: TrainingSpec
    parallelism: ParallelismSpec
    """What the user or the matching published layout fixes; the rest is planned."""
    accelerator_type: str
    """Name of the platform's profile."""
    profile: AcceleratorProfile
    accelerator_count: int
    per_node: int
    data: DataSpec
    checkpoint: CheckpointSpec
    recovery: RecoverySpec
    scheduling: SchedulingSpec
    image: str | None
    image_pull_secrets: list[str] = Field(default_factory=list)
    env: dict[str, str] = Field(default_factory=dict)
    megatron_args: dict[str, str | int | float | bool | list[str | int | float]] = Field(default_factory=dict)
    origins: dict[str, str] = Field(default_factory=dict)
    """Path of a value -> where it came from (`recipe`, `catalog llama3-8b`, `platform`)."""
    notes: list[str] = Field(default_factory=list)
