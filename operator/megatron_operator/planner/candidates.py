"""Every layout that obeys the rules and keeps what the recipe fixes; the best of those that fit is chosen."""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from megatron_operator.api.errors import FieldError
from megatron_operator.api.status import MemoryPerGpu
from megatron_operator.catalog.resolved import ResolvedRecipe
from megatron_operator.planner.accelerators import GIB
from megatron_operator.planner.architecture import Architecture
from megatron_operator.planner.layout import Layout, Recompute, Setting, layout_errors, stages_error
from megatron_operator.planner.memory import memory_per_gpu
from megatron_operator.planner.stages import StageSplit, asked_split, automatic_split, check_virtual
from megatron_operator.planner.workload import Recomputation, Workload, numerics

ACCEPTED_BUBBLE = 0.05
"""Part of a step that pipeline stages may wait before virtual stages are added."""
TOKENS_PER_CP_RANK = 8192
"""Sequences up to this long are not split; longer ones may be, down to this length."""


@dataclass(frozen=True, slots=True)
class Request:
    """One question to the planner."""

    a: Architecture
    resolved: ResolvedRecipe
    world: int
    pod: int
    seq_length: int
    sequence_parallel: bool
    distributed_optimizer: bool
    batches: list[int]
    """Global batch sizes of the run; more than one under a ramp-up."""
    capacity: int | None
    """Bytes of one accelerator; none when it is not known."""

    @property
    def setting(self) -> Setting:
        training, parallelism = self.resolved.training, self.resolved.parallelism
        on_cpu = self.resolved.profile.platform == "cpu"
        return Setting(
            a=self.a,
            world=self.world,
            pod=self.pod,
            seq_length=self.seq_length,
            sequence_parallel=self.sequence_parallel,
            cp_comm_type=parallelism.cp_comm_type,
            local_layers=on_cpu or training.transformer_impl == "local",
        )


@dataclass(frozen=True, slots=True)
class Candidate:
    """A layout with what follows from it."""

    layout: Layout
    dp: int
    expert_dp: int
    micro_batch: int
    recompute: Recompute | None
    memory: MemoryPerGpu
    notes: list[str] = field(default_factory=list)

    @property
    def fits(self) -> bool:
        return self.memory.capacity is None or self.memory.total <= self.memory.capacity

    @property
    def preference(self) -> tuple[bool, int, int, int, int]:
        """Smaller is better: no recomputation, then least PP, CP, TP and EP."""
        layout = self.layout
        return (self.recompute == "full", layout.pp, layout.cp, layout.tp, layout.ep)


def best_candidate(request: Request, errors: list[FieldError]) -> Candidate | None:
    """The best layout that fits; none, with the reasons added to `errors`, when there is none."""
    micro_batch = request.resolved.training.micro_batch_size or 1
    split_errors: list[FieldError] = []
    setting = request.setting
    valid = [
        layout
        for layout in _layouts(request, split_errors)
        if layout.split
        and not layout_errors(layout, setting)
        and not _batch_errors(request, layout, micro_batch)
    ]
    if not valid:
        errors += _refusal(request, micro_batch)
        return None
    considered = [candidate for layout in valid for candidate in _with_memory(request, layout, micro_batch)]
    chosen = _choose(request, considered, errors)
    return None if chosen is None else replace(chosen, notes=_notes(request, chosen, len(valid)))


def _refusal(request: Request, micro_batch: int) -> list[FieldError]:
    """What is wrong with the layout that was asked for, everything not said being 1."""
    asked = request.resolved.parallelism
    tp, pp = asked.tensor_model_parallel_size or 1, asked.pipeline_model_parallel_size or 1
    split_errors: list[FieldError] = []
    base = Layout(
        tp,
        pp,
        asked.context_parallel_size or 1,
        asked.expert_model_parallel_size or 1,
        _etp(request, tp),
        _split(request, pp, split_errors),
    )
    found = layout_errors(base, request.setting)
    if base.split is None:
        found += split_errors or [stages_error(base, request.a)]
    if request.world % (base.tp * base.pp * base.cp) == 0:
        found += _batch_errors(request, base, micro_batch)
    return found


def _powers(limit: int, *, dividing: int) -> list[int]:
    return [2**k for k in range(limit.bit_length()) if 2**k <= limit and dividing % 2**k == 0]


def _layouts(request: Request, split_errors: list[FieldError]) -> Iterator[Layout]:
    asked, a, world = request.resolved.parallelism, request.a, request.world
    tps = _only(asked.tensor_model_parallel_size) or _powers(request.pod, dividing=request.pod)
    cps = _only(asked.context_parallel_size) or _powers(
        max(request.seq_length // TOKENS_PER_CP_RANK, 1), dividing=world
    )
    pps = _only(asked.pipeline_model_parallel_size) or [
        pp for pp in range(1, min(a.layers, world) + 1) if world % pp == 0
    ]
    eps = _only(asked.expert_model_parallel_size) or [
        ep for ep in range(1, (a.experts or 1) + 1) if (a.experts or 1) % ep == 0 and world % ep == 0
    ]
    if request.resolved.profile.platform == "cpu":
        eps = _only(asked.expert_model_parallel_size) or [1]
    for pp in pps:
        split = _split(request, pp, split_errors)
        for tp in tps:
            for cp in cps:
                for ep in eps:
                    yield Layout(tp, pp, cp, ep, _etp(request, tp), split)


def _only(value: int | None) -> list[int]:
    return [] if value is None else [value]


def _etp(request: Request, tp: int) -> int:
    """1 unless asked: experts stay whole. Without experts it is TP, Megatron's own default."""
    asked = request.resolved.parallelism.expert_tensor_parallel_size
    return asked or (1 if request.a.experts else tp)


def _split(request: Request, pp: int, errors: list[FieldError]) -> StageSplit | None:
    asked, a = request.resolved.parallelism, request.a
    found: list[FieldError] = []
    split = asked_split(a.layers, a.mtp_layers, pp, asked, found)
    if split is None and not found and asked.num_virtual_stages_per_pipeline_rank is None:
        split = automatic_split(a.layers, pp)
    if split is not None and (problem := check_virtual(split, pp, overlap=True)):
        found.append(problem)
    if found:
        errors += [e for e in found if e not in errors]
        return None
    return split


def _batch_errors(request: Request, layout: Layout, micro_batch: int) -> list[FieldError]:
    dp = request.world // (layout.tp * layout.pp * layout.cp)
    each = micro_batch * dp
    ramp = request.resolved.training.step_batch_size_schedule is not None
    name = "stepBatchSizeSchedule" if ramp else "globalBatchSize"
    errors = []
    for batch in request.batches:
        if batch % each:
            below = batch // each * each
            near = f"{below} or {below + each}" if below else f"{each}"
            errors.append(
                FieldError(
                    f"spec.training.{name}",
                    f"{batch} is not divisible by microBatchSize {micro_batch} x DP {dp} = {each}",
                    f"set {near}",
                )
            )
        elif layout.split and (layout.split.virtual or 1) > 1 and batch // each % layout.pp:
            errors.append(
                FieldError(
                    "spec.parallelism.numVirtualStagesPerPipelineRank",
                    f"interleaving needs a multiple of PP {layout.pp} micro batches, "
                    f"{name} {batch} makes {batch // each}",
                    f"set a {name} that is a multiple of {each * layout.pp}, or no virtual stages",
                )
            )
    return errors


def _interleaved(request: Request, layout: Layout, accumulation: list[int]) -> StageSplit | None:
    """The split with as few virtual stages as make the bubble small, where the planner may choose them."""
    split, pp = layout.split, layout.pp
    if split is None or pp == 1 or split.virtual is not None or split.layout is not None:
        return split
    said_elsewhere = (
        request.resolved.origins.get("parallelism.pipelineModelParallelSize", "recipe") != "recipe"
    )
    if said_elsewhere or request.resolved.profile.platform == "cpu":
        return split
    micro_batches = min(accumulation)
    if any(m % pp for m in accumulation) or (pp - 1) / micro_batches <= ACCEPTED_BUBBLE:
        return split
    chosen = split
    for virtual in range(2, split.layers[0] + 2):
        trial = replace(split, virtual=virtual)
        if check_virtual(trial, pp, overlap=True) is None:
            chosen = trial
            if (pp - 1) / (virtual * micro_batches) <= ACCEPTED_BUBBLE:
                break
    return chosen


def _with_memory(request: Request, layout: Layout, micro_batch: int) -> Iterator[Candidate]:
    dp = request.world // (layout.tp * layout.pp * layout.cp)
    expert_dp = request.world // (layout.etp * layout.ep * layout.pp)
    accumulation = [batch // (micro_batch * dp) for batch in request.batches]
    split = _interleaved(request, layout, accumulation)
    assert split is not None, "a valid layout has stages"
    asked = request.resolved.parallelism
    granularity = asked.recompute_granularity
    options: list[Recompute | None] = [granularity] if granularity is not None else [None, "full"]
    if request.capacity is None:
        options = options[:1]
    bytes_per_parameter = numerics(request.resolved.training, request.resolved.megatron_args)
    for recompute in options:
        workload = Workload(
            a=request.a,
            seq_length=request.seq_length,
            micro_batch=micro_batch,
            micro_batches=max(accumulation),
            tp=layout.tp,
            cp=layout.cp,
            dp=dp,
            stage_layers=split.layers,
            virtual=split.virtual or 1,
            ep=layout.ep,
            etp=layout.etp,
            expert_dp=expert_dp,
            sequence_parallel=request.sequence_parallel,
            distributed_optimizer=request.distributed_optimizer,
            numerics=bytes_per_parameter,
            recompute=Recomputation(
                recompute, asked.recompute_method or "uniform", asked.recompute_num_layers or 1
            ),
        )
        memory = memory_per_gpu(workload, request.capacity)
        yield Candidate(replace(layout, split=split), dp, expert_dp, micro_batch, recompute, memory)


def _choose(request: Request, considered: list[Candidate], errors: list[FieldError]) -> Candidate | None:
    fitting = [candidate for candidate in considered if candidate.fits]
    if fitting:
        return min(fitting, key=lambda candidate: candidate.preference)
    smallest = min(considered, key=lambda candidate: candidate.memory.total)
    memory, layout = smallest.memory, smallest.layout
    capacity = memory.capacity or 0
    if memory.total - memory.activations <= capacity and len({c.layout for c in considered}) == 1:
        return smallest
    asked = request.resolved.parallelism
    shape = f"TP {layout.tp} x PP {layout.pp} x CP {layout.cp}" + (
        f" x EP {layout.ep}" if layout.ep > 1 else ""
    )
    needs = f"{memory.total / GIB:.1f} GiB of {request.resolved.accelerator_type}'s {capacity / GIB:.1f} GiB"
    if len({c.layout for c in considered}) == 1:
        name = (
            "pipelineModelParallelSize" if asked.pipeline_model_parallel_size else "tensorModelParallelSize"
        )
        errors.append(
            FieldError(
                f"spec.parallelism.{name}",
                f"{shape} needs {needs} (states {(memory.total - memory.activations) / GIB:.1f} GiB)",
                "raise it, or leave parallelism to the planner",
            )
        )
        return None
    enough = _enough(request, smallest.micro_batch)
    more = f"use {enough} or more" if enough else "use more accelerators, a smaller microBatchSize"
    errors.append(
        FieldError(
            "spec.accelerator.count",
            f"on {request.world} accelerators even the leanest layout, {shape}, needs {needs}",
            f"{more}, or accelerators with more memory",
        )
    )
    return None


def _enough(request: Request, micro_batch: int) -> int | None:
    """The first doubling of the count on which some layout fits; none below a thousandfold."""
    per_node = request.resolved.per_node
    for doublings in range(1, 11):
        world = request.world * (1 << doublings)
        larger = replace(request, world=world, pod=min(world, per_node))
        setting = larger.setting
        for layout in _layouts(larger, []):
            if layout.split is None or layout_errors(layout, setting):
                continue
            if _batch_errors(larger, layout, micro_batch):
                continue
            if any(candidate.fits for candidate in _with_memory(larger, layout, micro_batch)):
                return world
    return None


def _notes(request: Request, chosen: Candidate, valid: int) -> list[str]:
    layout, asked, memory = chosen.layout, request.resolved.parallelism, chosen.memory
    split, notes = layout.split, []
    free = [
        name
        for name, value in (
            ("TP", asked.tensor_model_parallel_size),
            ("PP", asked.pipeline_model_parallel_size),
            ("CP", asked.context_parallel_size),
        )
        if value is None
    ]
    if free:
        sizes = f"TP {layout.tp}, PP {layout.pp}, CP {layout.cp}"
        reason = (
            f"the least of {valid} valid layouts that fits"
            if request.capacity is not None
            else f"the least of {valid} valid layouts; memory of an accelerator is not known here"
        )
        notes.append(f"{sizes} ({', '.join(free)} planned): {reason}")
    if request.a.experts and asked.expert_model_parallel_size is None:
        notes.append(f"expertModelParallelSize {layout.ep}: experts are split before layers are")
    if request.a.experts and asked.expert_tensor_parallel_size is None and layout.tp > 1:
        notes.append(f"expertTensorParallelSize 1: Megatron's default TP {layout.tp} would split each expert")
    if request.resolved.training.micro_batch_size is None:
        notes.append(f"microBatchSize {chosen.micro_batch}: none was given")
    if (
        split is not None
        and split.virtual
        and not asked.num_virtual_stages_per_pipeline_rank
        and not split.layout
    ):
        notes.append(
            f"numVirtualStagesPerPipelineRank {split.virtual}: stages would wait more than "
            f"{ACCEPTED_BUBBLE:.0%} of a step otherwise"
        )
    if split is not None and not split.even and asked.pipeline_model_parallel_layout is None:
        notes.append(f"layers of the stages: {', '.join(map(str, split.layers))}")
    if asked.recompute_granularity is None and chosen.recompute == "full":
        notes.append("recomputeGranularity full: activations do not fit otherwise")
    if not chosen.fits and memory.capacity:
        notes.append(
            f"memory may not suffice: {memory.total / GIB:.1f} GiB estimated, "
            f"{memory.capacity / GIB:.1f} GiB there"
        )
    return notes
