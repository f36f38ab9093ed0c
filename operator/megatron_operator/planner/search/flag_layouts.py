"""Layouts with which Megatron accepts the flags of `megatronArgs` that need a size or recomputation.

Sources: `validate_args` and the configurations of megatron-core 0.19.2. What recipe or catalog set to the
contrary is refused before (`flag_requirements`).
"""

from collections.abc import Callable
from typing import Final, NamedTuple

from megatron_operator.api.diagnostics import Diagnostics
from megatron_operator.catalog.resolved import ResolvedRecipe
from megatron_operator.planner.checks.context_sizes import CONTEXT_SIZES, context_ranks
from megatron_operator.planner.estimate.workload import OPTIMIZER_INSTANCES, optimizer_instances
from megatron_operator.planner.search.problem import Candidate

_EVALUATED_BATCH: Final = "eval-global-batch-size"
_EVALUATED_MICRO_BATCH: Final = "eval-micro-batch-size"


class _Need(NamedTuple):
    """The layouts that a flag needs, and the error where there are none."""

    is_met: Callable[[Candidate], bool]
    message: str
    fix: str


def _distributes_activations(candidate: Candidate) -> bool:
    splits_sequences = candidate.workload.sequence_parallel
    return candidate.dims.tp > 1 and candidate.recompute == "full" and not splits_sequences


def _divided_by(instances: int) -> Callable[[Candidate], bool]:
    """Whether so many instances of the distributed optimizer divide both of its groups."""

    def is_met(candidate: Candidate) -> bool:
        groups = candidate.dims.dp * candidate.dims.cp, candidate.dims.expert_dp
        return instances > 0 and not any(size % instances for size in groups)

    return is_met


def _number(resolved: ResolvedRecipe, flag: str) -> int | None:
    """The flag's whole number; None without one, and for what is refused as none."""
    try:
        return int(str(resolved.megatron_args[flag]))
    except (KeyError, ValueError):
        return None


def _evaluation(resolved: ResolvedRecipe) -> tuple[str, _Need] | None:
    """Ranks and micro batches split the samples of an evaluation; None where these are those of a step."""
    micro_batch, samples = _number(resolved, _EVALUATED_MICRO_BATCH), _number(resolved, _EVALUATED_BATCH)
    if micro_batch is None and samples is None:
        return None

    def is_met(candidate: Candidate) -> bool:
        size = candidate.micro_batch if micro_batch is None else micro_batch
        ranks, run = candidate.dims.dp, candidate.workload
        batch = run.micro_batches * run.micro_batch * ranks if samples is None else samples
        return size > 0 and batch > 0 and batch % (size * ranks) == 0

    if micro_batch is None:
        message = f"{samples} samples are no multiple of the micro batch x DP of any layout that fits"
        return _EVALUATED_BATCH, _Need(is_met, message, "set a multiple, or leave it out")
    batch = "the global batch size" if samples is None else f"{_EVALUATED_BATCH} {samples}"
    message = f"{micro_batch} x DP of any layout that fits does not divide {batch}"
    fix = f"set a divisor, {_EVALUATED_BATCH} to a multiple, or leave the flag out"
    return _EVALUATED_MICRO_BATCH, _Need(is_met, message, fix)


_NOT_WITH_FULL_RECOMPUTATION: Final = _Need(
    lambda candidate: candidate.recompute != "full",
    "excludes full recomputation, without which no layout fits",
    "leave it out, or use more accelerators",
)
_NEEDS: Final = {
    "enable-cuda-graph": _NOT_WITH_FULL_RECOMPUTATION,
    "external-cuda-graph": _NOT_WITH_FULL_RECOMPUTATION,
    "moe-layer-recompute": _NOT_WITH_FULL_RECOMPUTATION,
    "defer-embedding-wgrad-compute": _Need(
        lambda candidate: candidate.dims.pp > 1,
        "requires pipeline stages, and no layout that fits has any",
        "set parallelism.pipelineModelParallelSize above 1, or leave the flag out",
    ),
    "cpu-offloading-num-layers": _Need(
        lambda candidate: candidate.dims.pp == 1 and candidate.recompute is None,
        "excludes pipeline stages and recomputation, and no layout without both fits",
        "use more accelerators, or leave the flag out",
    ),
    "distribute-saved-activations": _Need(
        _distributes_activations,
        "requires tensor parallelism and full recomputation, without sequence parallelism",
        "set parallelism.tensorModelParallelSize above 1, recomputeGranularity: full and sequenceParallel:"
        " false, or leave the flag out",
    ),
    "no-overlap-p2p-communication": _Need(
        lambda candidate: candidate.dims.vp == 1 or candidate.dims.pp > 2,
        "requires 3 pipeline stages or more where these have virtual ones, and no layout that fits has them",
        "set parallelism.pipelineModelParallelSize above 2, or leave the virtual stages or the flag out",
    ),
    "hybrid-context-parallel": _Need(
        lambda candidate: candidate.dims.pp == 1,
        "excludes pipeline stages, and no layout without them fits",
        "use more accelerators, or leave the flag out",
    ),
}


def with_flags(resolved: ResolvedRecipe, candidates: list[Candidate], found: Diagnostics) -> list[Candidate]:
    """The candidates with which Megatron's own loop accepts the flags; none, with the error in `found`."""
    if resolved.engine != "megatron":
        return candidates
    needs = [(flag, need) for flag, need in _NEEDS.items() if resolved.megatron_args.get(flag)]
    if ranks := context_ranks(resolved):
        message = f"are {ranks} ranks, and no layout that fits has CP {ranks}"
        fix = f"set parallelism.contextParallelSize: {ranks}, or leave the flag out"
        needs.append((CONTEXT_SIZES, _Need(lambda candidate: candidate.dims.cp == ranks, message, fix)))
    if (instances := optimizer_instances(resolved.megatron_args)) != 1:
        groups = "DP x CP and the DP of experts" if resolved.model.num_experts else "DP x CP"
        message = f"{instances} instances do not divide {groups} of any layout that fits"
        fix = f"set a {'common ' if resolved.model.num_experts else ''}divisor, or leave the flag out"
        needs.append((OPTIMIZER_INSTANCES, _Need(_divided_by(instances), message, fix)))
    if (evaluation := _evaluation(resolved)) is not None:
        needs.append(evaluation)
    reported = {error.field for error in found.errors}
    for flag, need in needs:
        field = f"spec.megatronArgs.{flag}"
        if not candidates or field in reported:
            continue
        candidates = [candidate for candidate in candidates if need.is_met(candidate)]
        if not candidates:
            found.error(field, need.message, need.fix)
    return candidates
