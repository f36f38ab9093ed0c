"""A planning problem and the candidates that are compared to solve it."""

from dataclasses import dataclass, replace

from megatron_operator.api.parallel_dims import ParallelDims
from megatron_operator.api.status import Expected, MemoryPerGpu, Plan
from megatron_operator.api.training import ParallelismSpec
from megatron_operator.catalog import bridge_support
from megatron_operator.catalog.entry import PublishedSizes
from megatron_operator.catalog.resolved import ResolvedRecipe
from megatron_operator.planner.checks.context_sizes import context_sizes
from megatron_operator.planner.estimate.adapters import Adapters
from megatron_operator.planner.estimate.hardware import GIB, Accelerator, nvlink_ranks
from megatron_operator.planner.estimate.model_shape import ModelShape
from megatron_operator.planner.estimate.workload import Execution, Numerics, Workload
from megatron_operator.planner.search.constraints import ConstraintContext, Layout, Recompute
from megatron_operator.planner.search.quantized_widths import width_multiple

COMFORTABLE_SHARE = 0.95
"""Share of the memory up to which layouts are preferred over tighter ones: published runs fill up to 94 %."""
UNESTIMATED = int(8.3 * GIB)
"""Bytes that overlapped experts with the dispatcher flex need beyond the estimate: a run of Qwen3 30B with
both, and CUDA graphs of parts, peaked at 62.2 GiB instead of 53.9 (`bench.memory`)."""


@dataclass(frozen=True, slots=True)
class PlanningProblem:
    """A complete model, its batches and the accelerators to run it on."""

    shape: ModelShape
    resolved: ResolvedRecipe
    asked: ParallelismSpec
    """Settings that the layout must keep."""
    micro_batch: int | None
    """Micro batch size that must be kept; none lets the planner choose."""
    refine: bool
    """Whether the planner may add virtual stages and split short sequences: not to a published layout."""
    world: int
    pod: int
    """Ranks of one pod."""
    seq_length: int
    sequence_parallel: bool
    distributed_optimizer: bool
    fully_sharded: bool
    """Whether data-parallel ranks shard weights and gradients too (Megatron FSDP)."""
    batches: list[int]
    """Global batch sizes of the run in samples; more than one under a ramp-up."""
    accelerator: Accelerator | None
    """None where memory and speed are unknown."""
    numerics: Numerics
    execution: Execution
    before: Plan | None = None
    """Plan of the run if it has started: its memory has sufficed."""

    @property
    def adapters(self) -> Adapters | None:
        """All that is trained, with LoRA."""
        return Adapters.of(self.resolved)

    @property
    def capacity(self) -> int | None:
        """Bytes of memory of one accelerator."""
        return self.accelerator.memory if self.accelerator else None

    @property
    def is_function(self) -> bool:
        """Whether the layout is that of a function of Megatron-Bridge, with its own recomputation."""
        layout = self.resolved.layout
        return (
            layout is not None
            and layout.function is not None
            and self.resolved.engine == "megatron"
            and self.asked.pipeline_model_parallel_size == layout.parallelism.pipeline_model_parallel_size
            and self.asked.tensor_model_parallel_size == layout.parallelism.tensor_model_parallel_size
        )

    @property
    def on_cpu(self) -> bool:
        """Whether the run has no GPUs (platform `cpu`)."""
        return self.resolved.profile.platform == "cpu"

    @property
    def constraints(self) -> ConstraintContext:
        """What single layouts are checked against."""
        return ConstraintContext(
            shape=self.shape,
            world=self.world,
            pod=self.pod,
            nvlink_ranks=nvlink_ranks(self.accelerator, self.pod),
            seq_length=self.seq_length,
            sequence_parallel=self.sequence_parallel,
            cp_comm_type=self.asked.cp_comm_type,
            cp_levels=context_sizes(self.resolved),
            local_layers=self.on_cpu or self.resolved.training.transformer_impl == "local",
            unfused_attention=self.resolved.training.attention_backend == "unfused",
            in_fp32=self.numerics.in_fp32 and not self.on_cpu,
            whole_norms=bridge_support.architecture(self._function) in bridge_support.NORMALIZED_WHOLE,
            one_stage=bridge_support.is_in_one_stage(self._function),
            virtual_stages=bridge_support.has_virtual_stages(self._function),
            splits_itself=self._splits_itself,
            has_sequence_parallelism=self.resolved.has_sequence_parallelism,
            adapters=self.adapters,
            width_multiple=1 if self.on_cpu else width_multiple(self.resolved.training),
        )

    @property
    def _function(self) -> str:
        """The function of Megatron-Bridge that trains it; empty where none does."""
        function = self.resolved.function if self.resolved.engine == "bridge" else None
        return (function and function.function) or ""

    @property
    def _splits_itself(self) -> bool:
        function = self.resolved.function
        return self.resolved.engine == "bridge" and function is not None and function.splits_sequences

    def with_world_size(self, world: int) -> "PlanningProblem":
        """The same problem on another number of accelerators."""
        return replace(self, world=world, pod=min(world, self.resolved.per_node))


@dataclass(frozen=True, slots=True)
class Candidate:
    """A layout with a micro batch size, and its estimated memory and speed."""

    layout: Layout
    micro_batch: int
    recompute: Recompute | None
    modules: tuple[str, ...]
    """Modules of selective recomputation; empty for Megatron's default."""
    workload: Workload
    memory: MemoryPerGpu
    expected: Expected | None = None

    @property
    def dims(self) -> ParallelDims:
        """Sizes of the parallel groups."""
        return self.layout.dims

    @property
    def fits(self) -> bool:
        """Whether the estimated memory is within the accelerator's capacity."""
        return self.memory.capacity is None or self.memory.total <= self.memory.capacity

    @property
    def is_comfortable(self) -> bool:
        """Whether the layout would fit even if the memory estimate were slightly too low."""
        if self.memory.capacity is None:
            return True
        run = self.workload.execution
        further = UNESTIMATED if run.expert_overlap and run.deduplicated_dispatch else 0
        return self.memory.total + further <= COMFORTABLE_SHARE * self.memory.capacity

    @property
    def sizes(self) -> PublishedSizes:
        """TP, PP, CP and EP."""
        return self.dims.tp, self.dims.pp, self.dims.cp, self.dims.ep

    @property
    def simplicity(self) -> tuple[bool, int, int, int, int, int]:
        """Sort key, simplest first: no full recomputation, then least PP, CP, TP, EP and virtual stages."""
        dims = self.dims
        return (self.recompute == "full", dims.pp, dims.cp, dims.tp, dims.ep, dims.vp)

    @property
    def seconds(self) -> float:
        """Estimated seconds of one step; the candidate must have been timed."""
        assert self.expected is not None, "the candidate has no time yet"
        return self.expected.step_seconds
