"""Plans a resolved recipe: returns a plan, or raises with every error that was found."""

from contextlib import suppress
from dataclasses import replace
from typing import Final

from megatron_operator.api.diagnostics import Diagnostics
from megatron_operator.api.errors import InvalidRecipeError
from megatron_operator.api.parallel_dims import SPEC_FIELDS, ParallelDims
from megatron_operator.api.status import Plan
from megatron_operator.api.training import ParallelismSpec
from megatron_operator.catalog.resolved import ResolvedRecipe
from megatron_operator.planner import bridge
from megatron_operator.planner.alternatives import Alternative, alternatives_to
from megatron_operator.planner.batch import global_batches
from megatron_operator.planner.bridge_notes import with_bridge_notes
from megatron_operator.planner.checks.determinism import determinism_errors
from megatron_operator.planner.checks.field_requirements import field_errors
from megatron_operator.planner.checks.image_packages import package_errors
from megatron_operator.planner.checks.ineffective_flags import check_ineffective_settings
from megatron_operator.planner.checks.lint import lint_errors
from megatron_operator.planner.checks.own_image import has_own_image
from megatron_operator.planner.checks.passthrough import passthrough_errors
from megatron_operator.planner.checks.precision import (
    optimizer_errors,
    precision_errors,
    recompute_errors,
    training_errors,
)
from megatron_operator.planner.checks.profile_window import profile_errors
from megatron_operator.planner.checks.tokenizer import tokenizer_errors
from megatron_operator.planner.checks.topology import elastic_notes, topology_errors
from megatron_operator.planner.checks.tracking import tracking_errors
from megatron_operator.planner.chosen_plan import plan_of
from megatron_operator.planner.estimate import hardware
from megatron_operator.planner.estimate.model_shape import model_shape
from megatron_operator.planner.estimate.workload import execution, numerics
from megatron_operator.planner.index_memory import index_notes
from megatron_operator.planner.notes import rejected_layout_warning
from megatron_operator.planner.retention import parallelism_of, same_layout
from megatron_operator.planner.search.problem import Candidate, PlanningProblem
from megatron_operator.planner.search.published_memory import keeps_published_memory
from megatron_operator.planner.search.rank import Ranking, rank
from megatron_operator.planner.without_layout import without_published_layout, without_rejected_layout

_LAYOUT_FIELDS = (
    *SPEC_FIELDS.values(),
    "sequence_parallel",
    "decoder_first_pipeline_num_layers",
    "decoder_last_pipeline_num_layers",
    "account_for_embedding_in_pipeline_split",
    "account_for_loss_in_pipeline_split",
    "pipeline_model_parallel_layout",
    "recompute_granularity",
    "recompute_method",
    "recompute_num_layers",
    "recompute_modules",
)
"""Fields of `spec.parallelism` that a published layout fixes and another layout may change."""
_SETTINGS = ("spec.megatronArgs.", "spec.training.")
"""Fields whose errors do not depend on the layout."""


def plan(resolved: ResolvedRecipe, previous: Plan | None = None, *, keeps_layout: bool = True) -> Plan:
    """The layout of the run, its sizes and the reasons for the choices.

    `previous` is the plan of a run that has started: its layout is kept where the recipe still allows it,
    also on another number of accelerators, because checkpoints may not load on another layout. Without
    `keeps_layout` it only shows the memory that has sufficed.
    Raises InvalidRecipeError with all errors when the recipe cannot run as written on these accelerators.
    """
    if resolved.engine == "bridge":
        # Another recipe ran before where sequences were split, and this one does not split any.
        splits = previous is not None and previous.context_parallel_size > 1
        keeps = resolved.starts and (not splits or resolved.may_split_sequences)
        return _plan_bridge(resolved, previous if keeps else None, keeps_layout=keeps_layout)
    return _plan_as_before(resolved, previous, keeps_layout=keeps_layout)


def _plan_as_before(resolved: ResolvedRecipe, previous: Plan | None, *, keeps_layout: bool) -> Plan:
    """A plan with the layout of `previous` where the recipe still allows it, and keeps it; else a new one.

    Raises InvalidRecipeError with the errors of a new plan: those of the layout that is kept may be about
    settings that the recipe does not have.
    """
    if previous is None or not keeps_layout:
        return _plan_from_scratch(resolved, previous)
    try:
        new = _plan_from_scratch(resolved, previous)
    except InvalidRecipeError as invalid:
        try:
            return _plan_with_layout_of(previous, resolved)
        except InvalidRecipeError:
            raise invalid from None
    if same_layout(new, previous):
        return new
    try:
        kept = _plan_with_layout_of(previous, resolved)
    except InvalidRecipeError:
        return new
    if same_layout(new, kept):
        return new
    layout = ParallelDims.of_plan(new).describe(("tp", "pp"))
    note = f"the layout of the running job is kept; a new plan would use {layout}"
    return kept.model_copy(update={"notes": [*kept.notes, note]})


def plan_and_alternatives(resolved: ResolvedRecipe, most: int = 5) -> tuple[Plan, list[Alternative]]:
    """The plan, and up to `most` other layouts that keep what the recipe, not the catalog, sets.

    Raises InvalidRecipeError as `plan` does.
    """
    if resolved.engine == "bridge":
        return _plan_bridge(resolved), []
    try:
        return _plan_and_compare(resolved, most)
    except InvalidRecipeError as invalid:
        return _plan_and_compare(without_rejected_layout(resolved, invalid), most)


def _plan_from_scratch(resolved: ResolvedRecipe, before: Plan | None = None) -> Plan:
    try:
        return _plan_layout(resolved, before)
    except InvalidRecipeError as invalid:
        return _plan_layout(without_rejected_layout(resolved, invalid), before)


def as_planned(resolved: ResolvedRecipe, before: Plan | None = None) -> ResolvedRecipe:
    """The recipe whose arguments Megatron gets; `before` is the plan of a run that has started.

    It lacks a published layout that the planner rejects; that of a function which the recipe names only where
    one of its settings is rejected, such as NVFP4 on Hopper: planned without it, the run must not be started
    with it.
    """
    if resolved.layout is None or resolved.engine == "bridge":
        return resolved
    try:
        _plan_layout(resolved, before)
    except InvalidRecipeError as invalid:
        if resolved.function is None or any(error.field.startswith(_SETTINGS) for error in invalid.errors):
            with suppress(InvalidRecipeError):
                return without_rejected_layout(resolved, invalid)
    return resolved


def _plan_layout(resolved: ResolvedRecipe, before: Plan | None = None) -> Plan:
    micro_batch = resolved.training.micro_batch_size
    return plan_of(*_solve(resolved, resolved.parallelism, micro_batch, before=before))


def _plan_bridge(
    resolved: ResolvedRecipe, previous: Plan | None = None, *, keeps_layout: bool = True
) -> Plan:
    """A plan for engine `bridge`: the planner's where its estimates apply, else the published layout."""
    resolved = bridge.for_function(resolved)
    found = Diagnostics(notes=list(resolved.notes))
    if bridge.is_searched(resolved):
        try:
            free = bridge.for_function(without_published_layout(resolved))
            return with_bridge_notes(_plan_as_before(free, previous, keeps_layout=keeps_layout), resolved)
        except InvalidRecipeError as invalid:
            if resolved.layout is None:
                raise
            error = invalid.errors[0]
            if "GiB" in error.message and not keeps_published_memory(resolved):
                raise
            found.note(rejected_layout_warning(error))
    pod = _ranks_per_pod(resolved, found)
    found.raise_errors()
    made = bridge.plan_as_published(resolved, pod, found.notes)
    made = made.model_copy(update={"notes": [*made.notes, *index_notes(resolved, made)]})
    return with_bridge_notes(made, resolved)


def _plan_with_layout_of(previous: Plan, resolved: ResolvedRecipe) -> Plan:
    """A plan with the layout of `previous`. Raises InvalidRecipeError where the recipe rules it out."""
    asked = parallelism_of(previous, resolved)
    # A packed sequence is a micro batch of many samples.
    fixed = resolved.is_set_by_user("training.microBatchSize") or resolved.data.packing
    own = resolved.training.micro_batch_size if fixed else None
    micro_batch = own or previous.micro_batch_size
    return plan_of(*_solve(resolved, asked, micro_batch, refine=False, before=previous))


def _plan_and_compare(resolved: ResolvedRecipe, most: int) -> tuple[Plan, list[Alternative]]:
    micro_batch = resolved.training.micro_batch_size
    problem, ranking, found = _solve(resolved, resolved.parallelism, micro_batch)
    chosen = plan_of(problem, ranking, found)
    free, free_batch = _without_layout(resolved)
    if free != resolved.parallelism or free_batch != micro_batch:
        try:
            _, ranking, _ = _solve(resolved, free, free_batch, refine=True)
        except InvalidRecipeError:
            return chosen, []
    return chosen, alternatives_to(chosen, ranking, most, published=_is_published(resolved))


def search(resolved: ResolvedRecipe) -> Ranking:
    """All layouts that keep what the recipe sets, best first, as if the catalog had no layout.

    Settings other than the layout are kept, whether recipe or catalog set them. Raises InvalidRecipeError
    without a candidate.
    """
    return _solve(resolved.model_copy(update={"layout": None}), *_without_layout(resolved), refine=True)[1]


def _without_layout(resolved: ResolvedRecipe) -> tuple[ParallelismSpec, int | None]:
    """Parallelism and micro batch size as the recipe, not the catalog, sets them."""
    free = resolved.parallelism.model_copy(
        update={
            name: None
            for name in _LAYOUT_FIELDS
            if not resolved.is_set_by_user(f"parallelism.{ParallelismSpec.model_fields[name].alias}")
        }
    )
    own = resolved.is_set_by_user("training.microBatchSize")
    return free, resolved.training.micro_batch_size if own else None


def _is_published(resolved: ResolvedRecipe) -> bool:
    """Whether the catalog fixes the pipeline stages."""
    return not resolved.is_set_by_user("parallelism.pipelineModelParallelSize")


def _solve(
    resolved: ResolvedRecipe,
    asked: ParallelismSpec,
    micro_batch: int | None,
    *,
    refine: bool | None = None,
    before: Plan | None = None,
) -> tuple[PlanningProblem, Ranking, Diagnostics]:
    """The problem, its ranked candidates and the notes. Raises InvalidRecipeError without a candidate.

    `refine`, `before`: as in `PlanningProblem`; `refine` by default unless the catalog fixes the stages.
    """
    if refine is None:
        refine = not _is_published(resolved) or resolved.parallelism.pipeline_model_parallel_size is None
    found = Diagnostics(notes=list(resolved.notes))
    problem = replace(_problem(resolved, asked, micro_batch, refine, found), before=before)
    ranking = rank(problem, found)
    if ranking.best is not None:
        _check_sequence_parallel(problem, ranking.best, found)
    found.raise_errors()
    assert ranking.best is not None, "a ranking without candidates has errors"
    return problem, ranking, found


_ONE_STAGE: Final = {"pipeline_model_parallel_size": 1, "context_parallel_size": 1}
"""Sizes of a run with Megatron FSDP."""


def _problem(
    resolved: ResolvedRecipe,
    asked: ParallelismSpec,
    micro_batch: int | None,
    refine: bool,
    found: Diagnostics,
) -> PlanningProblem:
    """The planning problem of a recipe; errors go to `found`.

    Raises InvalidRecipeError where model, sequence length or batch are missing.
    """
    accelerator = hardware.of_profile(resolved.accelerator_type, resolved.profile, resolved.per_node)
    on_cpu = resolved.profile.platform == "cpu"
    if asked.use_megatron_fsdp:
        asked = asked.model_copy(update=_ONE_STAGE)
    pod = _ranks_per_pod(resolved, found)
    shape = model_shape(resolved.model, found)
    distributed_optimizer = (
        True if asked.use_distributed_optimizer is None else asked.use_distributed_optimizer
    )
    found.extend(training_errors(resolved))
    found.extend(precision_errors(resolved, accelerator))
    found.extend(recompute_errors(asked, resolved))
    found.extend(optimizer_errors(asked, resolved.training, distributed_optimizer))
    check_ineffective_settings(resolved, found)
    args = resolved.megatron_args
    if resolved.engine == "bridge":
        # Modules of a later Megatron (`performance_options`), which the field does not accept.
        args = {flag: value for flag, value in args.items() if flag != "recompute-modules"}
    found.extend(passthrough_errors(args, own_image=has_own_image(resolved)))
    found.extend(profile_errors(resolved))
    found.extend(tracking_errors(resolved))
    found.extend(tokenizer_errors(resolved))
    found.extend(lint_errors(resolved))
    found.extend(field_errors(resolved))
    found.extend(package_errors(resolved))
    found.extend(determinism_errors(resolved))
    batches = global_batches(resolved.training, found)
    if shape is None or resolved.training.seq_length is None or not batches:
        raise InvalidRecipeError(found.errors)
    return PlanningProblem(
        shape=shape,
        resolved=resolved,
        asked=asked,
        micro_batch=micro_batch,
        refine=refine,
        world=resolved.accelerator_count,
        pod=pod,
        seq_length=resolved.training.seq_length,
        sequence_parallel=_splits_sequences(resolved, asked, has_experts=shape.experts > 0),
        distributed_optimizer=distributed_optimizer,
        fully_sharded=bool(asked.use_megatron_fsdp),
        batches=batches,
        accelerator=accelerator,
        numerics=numerics(resolved.training, resolved.megatron_args),
        execution=execution(
            resolved.training,
            asked,
            resolved.megatron_args,
            dispatcher=resolved.model.moe_token_dispatcher_type,
            gradient_overlap=not on_cpu and asked.overlap_grad_reduce is not False,
            parameter_overlap=not on_cpu and asked.overlap_param_gather is not False,
            trainers_layers=resolved.computes_sparse_attention,
        ),
    )


def _splits_sequences(resolved: ResolvedRecipe, asked: ParallelismSpec, *, has_experts: bool) -> bool:
    """Whether TP ranks split the sequence too: by default, but on CPUs only where experts require it."""
    if asked.sequence_parallel is not None:
        return asked.sequence_parallel
    return resolved.profile.platform != "cpu" or (has_experts and resolved.has_sequence_parallelism)


def _ranks_per_pod(resolved: ResolvedRecipe, found: Diagnostics) -> int:
    """Ranks of one pod: all accelerators of a node, or of a run that is smaller than a node.

    Errors of a count that nodes or one domain of the required topology cannot have go to `found`.
    """
    count, per_node = resolved.accelerator_count, resolved.per_node
    found.extend(topology_errors(resolved))
    for note in elastic_notes(resolved):
        found.note(note)
    if count < per_node:
        found.note(f"perNode {count}: fewer accelerators than the {per_node} of a node, so one pod uses all")
        return count
    if count % per_node:
        lower = count // per_node * per_node
        found.error(
            "spec.accelerator.count",
            f"{count} is not a multiple of the {per_node} accelerators of a node",
            f"set {lower} or {lower + per_node}, or perNode to a divisor of {count}",
        )
    elastic = resolved.recovery.elastic
    if elastic is not None and elastic.min_count > per_node and elastic.min_count % per_node:
        lower = elastic.min_count // per_node * per_node
        found.error(
            "spec.recovery.elastic.minCount",
            f"{elastic.min_count} is not a multiple of the {per_node} accelerators of a node",
            f"set {lower} or {lower + per_node}",
        )
    return per_node


_TP_OVERLAP = "parallelism.tpCommOverlap"


def _sets(problem: PlanningProblem, leaf: str) -> bool:
    """Whether the recipe itself sets this of `spec.parallelism`."""
    return problem.resolved.origins.get(f"parallelism.{leaf}") == "recipe"


def _check_sequence_parallel(problem: PlanningProblem, chosen: Candidate, found: Diagnostics) -> None:
    asked, tp = problem.asked.sequence_parallel, chosen.dims.tp
    if tp > 1 and asked is None and not problem.sequence_parallel:
        found.note(f"sequenceParallel off: TP is {tp}, but on CPUs only experts require it")
    elif tp > 1 and asked is None:
        why = "which experts require it with" if problem.on_cpu else "and it has no cost"
        found.note(f"sequenceParallel on: TP is {tp}, {why}")
    elif tp > 1 and asked is False and problem.resolved.has_sequence_parallelism:
        by = "as requested" if _sets(problem, "sequenceParallel") else "as in the function"
        found.note(f"sequenceParallel off {by}; on would keep 1/{tp} of the norms' activations")
    elif tp == 1 and asked and problem.resolved.is_set_by_user("parallelism.sequenceParallel"):
        found.error(
            "spec.parallelism.sequenceParallel",
            "true at TP 1, where Megatron switches it off silently",
            "leave it out, or set tensorModelParallelSize above 1",
        )
    if tp == 1 and problem.asked.tp_comm_overlap and problem.resolved.is_set_by_user(_TP_OVERLAP):
        found.error(
            f"spec.{_TP_OVERLAP}",
            "true at TP 1, where there is nothing to overlap and Megatron refuses it",
            "leave it out, or set tensorModelParallelSize above 1",
        )
