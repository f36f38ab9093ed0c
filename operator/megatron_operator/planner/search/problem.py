"""One question to the planner, and the answers that are weighed against each other."""

from dataclasses import dataclass, replace

from megatron_operator.api.status import Expected, MemoryPerGpu
from megatron_operator.api.training import ParallelismSpec
from megatron_operator.catalog.resolved import ResolvedRecipe
from megatron_operator.planner.estimate.hardware import Accelerator, nvlink_ranks
from megatron_operator.planner.estimate.model_shape import ModelShape
from megatron_operator.planner.estimate.workload import Execution, Numerics, Workload
from megatron_operator.planner.search.constraints import ConstraintContext, Layout, Recompute

COMFORTABLE_SHARE = 0.95
"""Part of the memory up to which layouts come before tighter ones: published runs fill at most 94 %."""


@dataclass(frozen=True, slots=True)
class PlanningProblem:
    """A whole model, its batches and the accelerators that it is to lie on."""

    shape: ModelShape
    resolved: ResolvedRecipe
    asked: ParallelismSpec
    """What the layout has to keep."""
    micro_batch: int | None
    """What the batch has to keep; none lets the planner choose."""
    interleave: bool
    """Whether the planner may add virtual stages that are not asked for."""
    world: int
    pod: int
    """Ranks of one pod."""
    seq_length: int
    sequence_parallel: bool
    distributed_optimizer: bool
    batches: list[int]
    """Global batch sizes of the run; more than one under a ramp-up."""
    accelerator: Accelerator | None
    """None where memory and speed are not known."""
    numerics: Numerics
    execution: Execution

    @property
    def capacity(self) -> int | None:
        """Bytes of one accelerator."""
        return self.accelerator.memory if self.accelerator else None

    @property
    def on_cpu(self) -> bool:
        return self.resolved.profile.platform == "cpu"

    @property
    def setting(self) -> ConstraintContext:
        """What single layouts are checked against."""
        return ConstraintContext(
            shape=self.shape,
            world=self.world,
            pod=self.pod,
            nvlink_ranks=nvlink_ranks(self.accelerator, self.pod),
            seq_length=self.seq_length,
            sequence_parallel=self.sequence_parallel,
            cp_comm_type=self.asked.cp_comm_type,
            local_layers=self.on_cpu or self.resolved.training.transformer_impl == "local",
        )

    def on(self, world: int) -> "PlanningProblem":
        """The same question on another number of accelerators."""
        return replace(self, world=world, pod=min(world, self.resolved.per_node))


@dataclass(frozen=True, slots=True)
class Candidate:
    """A layout with a micro batch, and what is expected of it."""

    layout: Layout
    dp: int
    expert_dp: int
    micro_batch: int
    recompute: Recompute | None
    modules: tuple[str, ...]
    """What selective recomputation does again; empty for Megatron's default."""
    workload: Workload
    memory: MemoryPerGpu
    expected: Expected | None = None

    @property
    def fits(self) -> bool:
        return self.memory.capacity is None or self.memory.total <= self.memory.capacity

    @property
    def is_comfortable(self) -> bool:
        """Whether the estimate may be somewhat wrong and the layout still fits."""
        return self.memory.capacity is None or self.memory.total <= COMFORTABLE_SHARE * self.memory.capacity

    @property
    def simplicity(self) -> tuple[bool, int, int, int, int, int]:
        """Smaller is simpler: no recomputation, then least PP, CP, TP, EP and virtual stages."""
        layout = self.layout
        virtual = (layout.split.virtual or 1) if layout.split else 1
        return (self.recompute == "full", layout.pp, layout.cp, layout.tp, layout.ep, virtual)

    @property
    def words(self) -> str:
        """The layout in one line."""
        layout = self.layout
        parts = [f"TP {layout.tp}", f"PP {layout.pp}"]
        if layout.split and layout.split.virtual:
            parts.append(f"VP {layout.split.virtual}")
        parts.append(f"CP {layout.cp}")
        if layout.ep > 1:
            parts.append(f"EP {layout.ep}")
        return ", ".join([*parts, f"DP {self.dp}"])
