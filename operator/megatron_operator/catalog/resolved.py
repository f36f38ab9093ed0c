"""A recipe with everything filled in that does not depend on planning."""

from pydantic import Field

from megatron_operator.api.base import ApiModel
from megatron_operator.api.fine_tuning import ExportSpec, InitSpec, ModelPart, PeftSpec
from megatron_operator.api.platform import (
    AcceleratorProfile,
    CpuJobs,
    GangScheduling,
    Hub,
    JobBackendName,
    NetworkPolicies,
)
from megatron_operator.api.pod_environment import EnvFromSource, EnvVarSource
from megatron_operator.api.recipe import CheckpointSpec, DataSpec, ProfileSpec, RecoverySpec, SchedulingSpec
from megatron_operator.api.tracking import TrackingSpec
from megatron_operator.api.training import ParallelismSpec, TrainingSpec
from megatron_operator.catalog import bridge_support
from megatron_operator.catalog.architecture import Architecture
from megatron_operator.catalog.bridge_support import Media
from megatron_operator.catalog.entry import Engine, LeftOut, Mode, PublishedLayout, PublishedSizes


class ResolvedRecipe(ApiModel):
    """Catalog entry, overridden by platform defaults and the recipe: the planner's input."""

    recipe: str | None
    """The catalog entry, if one was named."""
    engine: Engine = "megatron"
    """Training loop that runs it."""
    starts: bool = True
    """Whether the operator creates a job for it: not for every recipe of engine `bridge`."""
    planned_only: str | None = None
    """Why the operator starts it in no way, where Megatron-Bridge has no function for it."""
    mode: Mode = "pretrain"
    """What is trained: all weights from scratch, all weights of an existing model, or its adapters."""
    function: PublishedLayout | None = None
    """Settings of the Megatron-Bridge function that the recipe names, or that starts it (engine `bridge`)."""
    layout: PublishedLayout | None = None
    """The published layout in use; none unless one is for exactly these accelerators."""
    published: list[PublishedSizes] = Field(default_factory=list)
    """Sizes of the entry's published layouts for these accelerators, whatever their count."""
    model: Architecture
    training: TrainingSpec
    parallelism: ParallelismSpec
    """Settings of the user or of the published layout; the rest is planned."""
    accelerator_type: str
    """Name of the platform's accelerator profile."""
    profile: AcceleratorProfile
    accelerator_count: int
    per_node: int
    data: DataSpec
    init: InitSpec = InitSpec()
    peft: PeftSpec | None = None
    """Adapters of a run of mode `lora`, complete; None where they are not known here."""
    frozen: list[ModelPart] = Field(default_factory=list)
    """Parts of a vision-language model that are not trained, in the order of ModelPart."""
    export: ExportSpec | None = None
    checkpoint: CheckpointSpec
    recovery: RecoverySpec
    profile_window: ProfileSpec | None = None
    """Iterations that torch's profiler records (`profile` is the platform's)."""
    tracking: TrackingSpec | None = None
    scheduling: SchedulingSpec
    image: str | None
    conversion_image: str | None = None
    """Image with Megatron-Bridge, for the Jobs that import and export weights."""
    image_pull_secrets: list[str] = Field(default_factory=list)
    network_policies: NetworkPolicies = NetworkPolicies()
    """The platform's."""
    hub: Hub = Hub()
    """The platform's."""
    cpu_jobs: CpuJobs | None = None
    """The platform's."""
    job_backend: JobBackendName = "pytorchjob"
    """The platform's."""
    gang_scheduling: GangScheduling | None = None
    """The platform's."""
    recovery_priority_class_name: str | None = None
    """The platform's PriorityClass of pods with which a run goes on, where it has none of its own."""
    topology_aware_queues: bool = False
    """The platform's."""
    env: dict[str, str] = Field(default_factory=dict)
    env_value_from: dict[str, EnvVarSource] = Field(default_factory=dict)
    """The recipe's, and the credentials of its trackers."""
    env_from: list[EnvFromSource] = Field(default_factory=list)
    service_account_name: str | None = None
    """One of the platform's `serviceAccounts`; None for the namespace's default."""
    megatron_args: dict[str, str | int | float | bool | list[str | int | float]] = Field(default_factory=dict)
    origins: dict[str, str] = Field(default_factory=dict)
    """Path of a value -> where it came from (`recipe`, `catalog llama3-8b`, `platform`)."""
    notes: list[str] = Field(default_factory=list)

    @property
    def may_split_sequences(self) -> bool:
        """Whether Megatron-Bridge may split its sequences over context-parallel ranks: not packed ones."""
        function = self.function
        return function is not None and function.splits_sequences and not self.data.packing

    @property
    def media(self) -> Media:
        """What its samples have beside text: images or sound."""
        return bridge_support.media(self._function_name) if self.fine_tunes else ""

    @property
    def joins_experts(self) -> bool:
        """Whether its files may have one tensor for a matrix of all experts of a layer.

        Of the models of Megatron's own loop that convert, GPT-OSS: it alone has `quickGeglu`.
        """
        return bool(self.model.quick_geglu) or bridge_support.joins_experts(self._function_name)

    @property
    def reads_latents(self) -> bool:
        """Whether it trains a diffusion model, on latents that were made beforehand."""
        return self.engine == "bridge" and bridge_support.reads_latents(self._function_name)

    @property
    def has_sequence_parallelism(self) -> bool:
        """Whether the model takes sequence parallelism where it runs."""
        if self.engine == "bridge" and self.profile.platform == "cpu":
            return bridge_support.splits_sequences_on_cpus(self._function_name)
        return bridge_support.has_sequence_parallelism(self._function_name)

    @property
    def fine_tunes(self) -> bool:
        """Whether Megatron-Bridge trains an existing model, of mode `pretrain` its projector."""
        if self.engine != "bridge":
            return False
        return self.mode != "pretrain" or bridge_support.aligns_projector(self._function_name)

    @property
    def freezes_otherwise(self) -> bool:
        """Whether other parts are frozen than its function freezes itself."""
        return tuple(self.frozen) != bridge_support.frozen_parts(self._function_name)

    @property
    def _function_name(self) -> str:
        return (self.function and self.function.function) or ""

    @property
    def replaced_dispatcher(self) -> LeftOut | None:
        """The dispatcher flex of the function that Megatron-Bridge runs, if the image lacks its package."""
        started = self.engine == "bridge" and self.starts and self.profile.platform == "gpu"
        if self.function is None or not started:
            return None
        return self.function.dispatcher_without(self.profile.image_has)

    @property
    def computes_sparse_attention(self) -> bool:
        """Whether the trainer's own layers compute its sparse attention: those of DeepSeek-V4."""
        return self.engine == "bridge" and self.starts and self.model.csa_compress_ratios is not None

    def is_set_by_user(self, path: str) -> bool:
        """Whether the recipe itself sets a value; a path without a recorded origin counts as set."""
        return self.origins.get(path, "recipe") == "recipe"
