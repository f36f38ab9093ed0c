"""Schema of an entry of the catalog."""

from collections.abc import Collection
from typing import Annotated, Any, Final, Literal

from pydantic import Field, PrivateAttr, model_validator

from megatron_operator.api.base import ApiModel
from megatron_operator.api.bounds import Accelerators, Width
from megatron_operator.api.fine_tuning import TargetModule
from megatron_operator.api.model import ModelSpec
from megatron_operator.api.platform import AcceleratorProfile, DispatcherPackage, ImagePackage
from megatron_operator.api.recipe import DataSpec
from megatron_operator.api.training import ParallelismSpec, TrainingSpec
from megatron_operator.catalog import bridge_support
from megatron_operator.catalog.architecture import Architecture
from megatron_operator.catalog.bridge_support import Media

AdaptedModule = TargetModule | Literal["in_proj", "out_proj"]
"""Linear layers that functions adapt; a recipe may set those of `TargetModule`."""
Name = Annotated[str, Field(pattern=r"^[a-z0-9]([a-z0-9.-]*[a-z0-9])?$")]
FunctionName = Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]*$")]
Text = Annotated[str, Field(min_length=1)]
MegatronArgs = dict[str, str | int | float | bool | list[str | int | float]]
Engine = Literal["megatron", "bridge"]
Mode = Literal["pretrain", "sft", "lora"]

BACKEND: Final = "moe-flex-dispatcher-backend"
"""Flag of the package by which the dispatcher flex exchanges tokens."""


class Correction(ApiModel):
    """A setting that differs from its source."""

    published: Text
    """Value in the source."""
    megatron: Text
    """Value in the entry."""
    why: Text
    """Why the value differs."""


PublishedSizes = tuple[int, int, int, int]
"""TP, PP, CP and EP of a layout."""


class LeftOut(ApiModel):
    """A setting of a function that this operator cannot use."""

    setting: Text
    reason: Text
    """Follows the setting and a comma."""
    needs: DispatcherPackage | None = None
    """Package of the image with which it is used; none where no image helps."""
    args: MegatronArgs | None = None
    """Its arguments, by which the planner predicts what leaving it out costs; none where it cannot."""
    less_memory: bool = False
    """It makes the function's layout fit: without it the planner may have to choose another one."""


class PublishedLayout(ApiModel):
    """Settings published for one kind and number of accelerators."""

    accelerators: Annotated[list[Text], Field(min_length=1)]
    """Names of the hardware that it is for."""
    count: Accelerators
    """World size: TP x PP x CP x DP."""
    parallelism: ParallelismSpec = ParallelismSpec()
    """Sizes, split and recomputation; override the entry's."""
    training: TrainingSpec = TrainingSpec()
    """Micro batch size and anything else that this layout changes; overrides the entry's."""
    model: ModelSpec | None = None
    """How the experts are dispatched; never the model's shape."""
    megatron_args: MegatronArgs | None = None
    """Further settings that make a function fast."""
    left_out: list[LeftOut] | None = None
    """Settings of the function that this operator cannot use; one that needs another follows it."""
    source: Text
    """Document, function or paper."""
    function: FunctionName | None = None
    """Megatron-Bridge's function that has these settings."""
    also_named: list[FunctionName] | None = None
    """Other names of the function."""
    precision: Text | None = None
    """Precision of the function, as Bridge names it (`bf16`, `fp8cs`, `nvfp4`)."""
    benchmark: bool | None = None
    """The function measures throughput, on random data."""
    later: bool | None = None
    """The function is not in the release of Megatron-Bridge that the image has."""
    own: bool | None = None
    """The function is this project's: its image has it beside those of Megatron-Bridge."""
    lora_rank: Width | None = None
    """Rank of the adapters that the function adds."""
    lora_alpha: Width | None = None
    """Adapters are scaled by alpha / rank."""
    lora_targets: list[AdaptedModule] | None = None
    """Linear layers that get an adapter, where not all do."""

    def with_image(self, packages: Collection[ImagePackage]) -> "PublishedLayout":
        """The layout on an image with these packages: it has what only they make possible."""
        taken = [each for each in self.left_out or () if each.needs in packages]
        if not taken:
            return self
        args = dict(self.megatron_args or {})
        for each in taken:
            args |= each.args or {}
        if args.get("cuda-graph-impl") == "full_iteration":
            args.pop("cuda-graph-modules", None)  # those of the graphs that it has without the packages
        remaining = [each for each in self.left_out or () if each not in taken]
        update: dict[str, Any] = {"megatron_args": args, "left_out": remaining or None}
        if BACKEND in args:
            update["model"] = (self.model or ModelSpec()).model_copy(
                update={"moe_token_dispatcher_type": "flex"}
            )
        return self.model_copy(update=update)

    def dispatcher_without(self, packages: Collection[ImagePackage]) -> LeftOut | None:
        """The function's dispatcher flex, if it needs another package than these."""
        dispatchers = (each for each in self.left_out or () if BACKEND in (each.args or {}))
        return next((each for each in dispatchers if each.needs not in packages), None)

    @property
    def lacks_memory_settings(self) -> bool:
        """Whether something is left out that changes how much memory the function needs."""
        return any(each.less_memory or each.args for each in self.left_out or ())

    @property
    def obstacle(self) -> str:
        """Why no recipe is started by this function, whatever its model; empty if one is."""
        if self.benchmark:
            return "measures throughput"
        if self.later and not self.own:
            return "is not in the image's release of Megatron-Bridge"
        if self.precision != "bf16":
            return f"trains in {self.precision}"
        splits = (self.parallelism.context_parallel_size or 1) > 1 and not self.splits_sequences
        if splits and not bridge_support.keeps_samples_whole(self.function or ""):
            return "splits samples over ranks"
        return bridge_support.OF_FUNCTION.get(self.function or "", "")

    @property
    def splits_sequences(self) -> bool:
        """Whether runs of its function may split sequences over context-parallel ranks."""
        return bridge_support.splits_sequences(self.function or "")

    @property
    def title(self) -> str:
        """`8 x h100-sxm`."""
        return f"{self.count} x {'/'.join(self.accelerators)}"


class Entry(ApiModel):
    """A named recipe, including everything that it inherits."""

    name: Name
    family: Name
    aliases: list[Name] = Field(default_factory=list)
    engine: Engine = "megatron"
    """`megatron`: Megatron Core's own training loop; `bridge`: requires Megatron-Bridge."""
    modes: Annotated[tuple[Mode, ...], Field(min_length=1)] = ("pretrain",)
    description: Text
    model: Architecture = Architecture()
    training: TrainingSpec = TrainingSpec()
    parallelism: ParallelismSpec = ParallelismSpec()
    """Settings of every layout."""
    data: DataSpec = DataSpec()
    """Tokenizer, split and, where published, the blend."""
    megatron_args: MegatronArgs = Field(default_factory=dict)
    layouts: list[PublishedLayout] = Field(default_factory=list)
    functions: list[PublishedLayout] = Field(default_factory=list)
    """Engine `megatron`: settings of Megatron-Bridge's functions for this model, for recipes that name one.
    With engine `bridge` the functions are the layouts."""
    source: Text
    """Origin of the values."""
    corrections: list[Correction] = Field(default_factory=list)
    planned_only: Text | None = None
    """Why no recipe starts it: of engine `bridge`, where Megatron-Bridge has no function for it. Follows
    `because`, or a colon."""
    _profile: AcceleratorProfile | None = PrivateAttr(default=None)

    def on(self, profile: AcceleratorProfile) -> "Entry":
        """The entry as it runs on these accelerators: some of engine `bridge` start only on some."""
        if self.engine == "megatron":
            return self
        found = self.model_copy()
        found._profile = profile
        return found

    @property
    def starts(self) -> bool:
        """Whether the operator creates a job for it."""
        return not self.obstacle

    @property
    def obstacle(self) -> str:
        """Why it is planned only, without `on` on GPUs with the project's image; empty if it starts."""
        if self.planned_only is not None:
            return self.planned_only
        if self.engine == "megatron":
            return ""
        function = next((x.function for x in self.layouts if x.function), "")
        return bridge_support.obstacle(function, self.modes[0], self._profile)

    @property
    def fine_tunes(self) -> bool:
        """Whether Megatron-Bridge trains an existing model with it, of mode `pretrain` its projector."""
        return self.engine == "bridge" and (self.modes[0] != "pretrain" or self.aligns_projector)

    @property
    def aligns_projector(self) -> bool:
        """Whether it trains the projector of a vision-language model between frozen towers."""
        return bridge_support.aligns_projector(next((x.function for x in self.layouts if x.function), ""))

    @property
    def media(self) -> Media:
        """What its samples have beside text: images or sound."""
        function = next((x.function for x in self.layouts if x.function), "")
        return bridge_support.media(function) if self.fine_tunes else ""

    @property
    def reads_latents(self) -> bool:
        """Whether it trains a diffusion model, on latents that were made beforehand."""
        return bridge_support.reads_latents(next((x.function for x in self.layouts if x.function), ""))

    @property
    def leaves_sizes_open(self) -> bool:
        """Whether a recipe gives the sizes of the model that its function builds."""
        return any(bridge_support.leaves_sizes_open(x.function or "") for x in self.layouts)

    @property
    def has_sequence_parallelism(self) -> bool:
        """Whether Megatron-Bridge's model takes sequence parallelism."""
        function = next((x.function for x in self.layouts if x.function), "")
        return bridge_support.has_sequence_parallelism(function)

    @property
    def splits_norms_on_cpus(self) -> bool:
        """Whether its model takes sequence parallelism on CPUs."""
        function = next((x.function for x in self.layouts if x.function), "")
        return self.engine == "megatron" or bridge_support.splits_sequences_on_cpus(function)

    @property
    def splits_sequences(self) -> bool:
        """Whether Megatron-Bridge may split its sequences over context-parallel ranks."""
        return self.engine == "bridge" and any(layout.splits_sequences for layout in self.layouts)

    @property
    def converts(self) -> bool:
        """Whether a recipe may import weights before it and export its result."""
        return self.starts and not self.reads_latents

    def can_start(self, function: PublishedLayout) -> bool:
        """Whether the operator starts it by this function.

        Of engine `bridge` by those of the image's release, in BF16, that neither measure throughput nor split
        samples over ranks in a way that was not tried.
        """
        return self.starts and (self.engine == "megatron" or not function.obstacle)

    @model_validator(mode="after")
    def _one_layout_each(self) -> "Entry":
        seen: set[tuple[str, int]] = set()
        for layout in self.layouts:
            for accelerator in layout.accelerators if layout.function is None else ():
                if (accelerator, layout.count) in seen:
                    raise ValueError(f"two layouts for {layout.count} x {accelerator}; keep one")
                seen.add((accelerator, layout.count))
        return self

    @model_validator(mode="after")
    def _built_by_its_engine(self) -> "Entry":
        if self.engine == "megatron" and (beyond := self.model.beyond_megatron):
            raise ValueError(f"model.{beyond[0]} needs engine bridge; leave it out")
        return self

    @model_validator(mode="after")
    def _started_or_not(self) -> "Entry":
        if self.planned_only is None:
            return self
        if self.engine == "megatron":
            raise ValueError("plannedOnly needs engine bridge; leave it out")
        if self.layouts:
            raise ValueError("plannedOnly is set together with layouts; leave one of them out")
        return self

    @property
    def usable_layouts(self) -> list[PublishedLayout]:
        """The published layouts that a run can have: those of functions that start it, if it starts."""
        return [layout for layout in self.layouts if self.can_start(layout)] if self.starts else self.layouts

    def layout_for(
        self, hardware: str, count: int, *, fp8: bool | None = None, fp4: bool = False
    ) -> PublishedLayout | None:
        """The published layout for exactly this hardware and count, if there is one.

        Of several functions the one with the requested precision (default: the entry's), not a benchmark.
        """
        matching = [x for x in self.usable_layouts if x.count == count and hardware in x.accelerators]
        requested = (self.training.fp8_format is not None and not fp4) if fp8 is None else fp8

        def order(layout: PublishedLayout) -> tuple[bool, bool, bool]:
            precise = layout.training.fp8_format is not None
            return (precise != requested, (layout.precision == "nvfp4") != fp4, bool(layout.benchmark))

        return min(matching, key=order, default=None)

    def published_sizes(self, hardware: str) -> list[PublishedSizes]:
        """Sizes of the layouts that are published for this hardware, whatever their count.

        Not of functions that fit only with what this operator leaves out.
        """
        found: dict[PublishedSizes, None] = {}
        for layout in (*self.usable_layouts, *self.functions):
            sizes = layout.parallelism
            whole = not any(each.less_memory for each in layout.left_out or ())
            if whole and hardware in layout.accelerators and sizes.tensor_model_parallel_size:
                found[
                    sizes.tensor_model_parallel_size,
                    sizes.pipeline_model_parallel_size or 1,
                    sizes.context_parallel_size or 1,
                    sizes.expert_model_parallel_size or 1,
                ] = None
        return list(found)

    def function(self, name: str) -> PublishedLayout | None:
        """Settings of the function of this name, if the entry has it."""
        functions = (*self.functions, *(x for x in self.layouts if x.function))
        return next((x for x in functions if name == x.function or name in (x.also_named or ())), None)
