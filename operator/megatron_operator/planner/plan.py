"""A resolved recipe becomes a plan, or a refusal with every reason that was found."""

from megatron_operator.api.errors import FieldError, InvalidRecipeError
from megatron_operator.api.status import Plan
from megatron_operator.api.training import ParallelismSpec
from megatron_operator.catalog.resolved import ResolvedRecipe
from megatron_operator.planner import bridge
from megatron_operator.planner.alternatives import Alternative, alternatives_to
from megatron_operator.planner.batch import global_batches, iterations
from megatron_operator.planner.checks.ineffective_flags import ineffective_setting_errors
from megatron_operator.planner.checks.lint import lint_errors, lint_warnings, suggestions
from megatron_operator.planner.checks.passthrough import passthrough_errors
from megatron_operator.planner.checks.precision import (
    optimizer_errors,
    precision_errors,
    recompute_errors,
    training_errors,
)
from megatron_operator.planner.estimate import hardware
from megatron_operator.planner.estimate.model_shape import model_shape
from megatron_operator.planner.estimate.parameters import flops_per_token, parameters
from megatron_operator.planner.estimate.workload import execution, numerics
from megatron_operator.planner.notes import planning_notes
from megatron_operator.planner.retention import parallelism_of, same_layout
from megatron_operator.planner.search.problem import Candidate, PlanningProblem
from megatron_operator.planner.search.rank import Ranking, rank

_OF_A_LAYOUT = (
    "tensor_model_parallel_size",
    "pipeline_model_parallel_size",
    "num_virtual_stages_per_pipeline_rank",
    "context_parallel_size",
    "expert_model_parallel_size",
    "expert_tensor_parallel_size",
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
"""What a published layout fixes and another layout may have otherwise."""


def plan(resolved: ResolvedRecipe, previous: Plan | None = None) -> Plan:
    """The layout of the run, its sizes and the reasons for what was chosen.

    `previous` is the plan of a run that has begun: its layout is kept where the recipe still allows it, on
    another number of accelerators too, because checkpoints may load on no other.
    Raises InvalidRecipeError with all errors when the recipe cannot run as written on these accelerators.
    """
    if resolved.engine == "bridge":
        return _plan_bridge(resolved)
    if previous is None:
        return _plan_from_scratch(resolved)
    try:
        fresh = _plan_from_scratch(resolved)
    except InvalidRecipeError:
        return _plan_with_layout_of(resolved, previous)
    if same_layout(fresh, previous):
        return fresh
    try:
        kept = _plan_with_layout_of(resolved, previous)
    except InvalidRecipeError:
        return fresh
    if same_layout(fresh, kept):
        return fresh
    layout = f"TP {fresh.tensor_model_parallel_size}, PP {fresh.pipeline_model_parallel_size}"
    note = f"the layout that the run has is kept; planned anew it would be {layout}"
    return kept.model_copy(update={"notes": [*kept.notes, note]})


def _plan_from_scratch(resolved: ResolvedRecipe) -> Plan:
    try:
        return _plan_layout(resolved)
    except InvalidRecipeError as refused:
        return _plan_layout(_without_function(resolved, refused))


def _without_function(resolved: ResolvedRecipe, refused: InvalidRecipeError) -> ResolvedRecipe:
    """The recipe without the layout of the Bridge function that it names, which the planner refuses.

    Bridge shards such models whole (FSDP) or has more memory than the estimate leaves. Raises `refused` where
    no function is named.
    """
    if resolved.function is None or resolved.layout is None or resolved.engine == "bridge":
        raise refused
    note = f"the layout of {resolved.function.function} is not used ({refused.errors[0]}): planned"
    free = bridge.without_published_layout(resolved.model_copy(update={"layout": None}))
    return free.model_copy(update={"notes": [*free.notes, note]})


def _plan_layout(resolved: ResolvedRecipe) -> Plan:
    published = not _set_by_user(resolved, "parallelism.pipelineModelParallelSize")
    interleave = not published or resolved.parallelism.pipeline_model_parallel_size is None
    micro_batch = resolved.training.micro_batch_size
    return _plan(*_solve(resolved, resolved.parallelism, micro_batch, interleave=interleave))


def _plan_bridge(resolved: ResolvedRecipe) -> Plan:
    """By the planner's own rules where its estimates hold; else, or where they refuse it, as published."""
    notes = list(resolved.notes)
    if bridge.is_modelled(resolved):
        try:
            return bridge.with_bridge_note(
                _plan_from_scratch(bridge.without_published_layout(resolved)), resolved
            )
        except InvalidRecipeError as refused:
            if resolved.layout is None:
                raise
            notes.append(f"published, though by the planner's rules: {refused.errors[0]}")
    errors: list[FieldError] = []
    pod = _pod(resolved, errors, notes)
    if errors:
        raise InvalidRecipeError(errors)
    return bridge.with_bridge_note(bridge.plan_as_published(resolved, pod, notes), resolved)


def _plan_with_layout_of(resolved: ResolvedRecipe, previous: Plan) -> Plan:
    """The plan with the layout of the previous one. Raises InvalidRecipeError if the recipe excludes it."""
    asked = parallelism_of(previous, resolved)
    said = resolved.training.micro_batch_size if _set_by_user(resolved, "training.microBatchSize") else None
    return _plan(*_solve(resolved, asked, said or previous.micro_batch_size, interleave=False))


def plan_and_alternatives(resolved: ResolvedRecipe, most: int = 5) -> tuple[Plan, list[Alternative]]:
    """The plan, and other layouts: what the catalog fixes may differ in them, what the recipe fixes may not.

    Raises InvalidRecipeError as `plan` does.
    """
    if resolved.engine == "bridge":
        return _plan_bridge(resolved), []
    try:
        return _plan_and_compare(resolved, most)
    except InvalidRecipeError as refused:
        return _plan_and_compare(_without_function(resolved, refused), most)


def _plan_and_compare(resolved: ResolvedRecipe, most: int) -> tuple[Plan, list[Alternative]]:
    published = not _set_by_user(resolved, "parallelism.pipelineModelParallelSize")
    interleave = not published or resolved.parallelism.pipeline_model_parallel_size is None
    micro_batch = resolved.training.micro_batch_size
    problem, ranking, notes = _solve(resolved, resolved.parallelism, micro_batch, interleave=interleave)
    chosen = _plan(problem, ranking, notes)
    free = resolved.parallelism.model_copy(
        update={
            name: None
            for name in _OF_A_LAYOUT
            if not _set_by_user(resolved, f"parallelism.{ParallelismSpec.model_fields[name].alias}")
        }
    )
    free_batch = micro_batch if _set_by_user(resolved, "training.microBatchSize") else None
    if free != resolved.parallelism or free_batch != micro_batch:
        try:
            _, ranking, _ = _solve(resolved, free, free_batch, interleave=True)
        except InvalidRecipeError:
            return chosen, []
    return chosen, alternatives_to(chosen, ranking, most, published=published)


def _set_by_user(resolved: ResolvedRecipe, path: str) -> bool:
    return resolved.origins.get(path, "recipe") == "recipe"


def _solve(
    resolved: ResolvedRecipe, asked: ParallelismSpec, micro_batch: int | None, *, interleave: bool
) -> tuple[PlanningProblem, Ranking, list[str]]:
    """The question and its ranked answers. Raises InvalidRecipeError when there is none."""
    errors: list[FieldError] = []
    notes = list(resolved.notes)
    accelerator = hardware.of_profile(resolved.accelerator_type, resolved.profile)
    on_cpu = resolved.profile.platform == "cpu"
    pod = _pod(resolved, errors, notes)
    shape = model_shape(resolved.model, errors)
    distributed_optimizer = (
        True if asked.use_distributed_optimizer is None else asked.use_distributed_optimizer
    )
    errors += training_errors(resolved)
    errors += precision_errors(resolved, accelerator)
    errors += recompute_errors(asked, resolved)
    errors += optimizer_errors(asked, distributed_optimizer)
    errors += ineffective_setting_errors(resolved, notes)
    errors += passthrough_errors(resolved.megatron_args)
    errors += lint_errors(resolved)
    batches = global_batches(resolved.training, errors)
    if shape is None or resolved.training.seq_length is None or not batches:
        raise InvalidRecipeError(errors)
    problem = PlanningProblem(
        shape=shape,
        resolved=resolved,
        asked=asked,
        micro_batch=micro_batch,
        interleave=interleave,
        world=resolved.accelerator_count,
        pod=pod,
        seq_length=resolved.training.seq_length,
        sequence_parallel=asked.sequence_parallel is not False and not on_cpu,
        distributed_optimizer=distributed_optimizer,
        batches=batches,
        accelerator=accelerator,
        numerics=numerics(resolved.training, resolved.megatron_args),
        execution=execution(
            resolved.training,
            asked,
            resolved.megatron_args,
            dispatcher=resolved.model.moe_token_dispatcher_type,
            gradient_overlap=not on_cpu,
            parameter_overlap=not on_cpu,
        ),
    )
    ranking = rank(problem, errors)
    if ranking.best is not None:
        _sequence_parallel(problem, ranking.best, notes, errors)
    if errors or ranking.best is None:
        raise InvalidRecipeError(errors)
    return problem, ranking, notes


def _pod(resolved: ResolvedRecipe, errors: list[FieldError], notes: list[str]) -> int:
    """Ranks of one pod: a whole node's accelerators, or all of a run that is smaller than a node."""
    count, per_node = resolved.accelerator_count, resolved.per_node
    if count < per_node:
        notes.append(
            f"perNode {count}: fewer accelerators than a node's {per_node}, so one pod takes them all"
        )
        return count
    if count % per_node:
        whole = count // per_node * per_node
        errors.append(
            FieldError(
                "spec.accelerator.count",
                f"{count} is not a multiple of the {per_node} accelerators of a node",
                f"set {whole} or {whole + per_node}, or perNode to a divisor of {count}",
            )
        )
    return per_node


def _sequence_parallel(
    problem: PlanningProblem, chosen: Candidate, notes: list[str], errors: list[FieldError]
) -> None:
    asked, tp = problem.asked.sequence_parallel, chosen.layout.tp
    if tp > 1 and problem.on_cpu:
        notes.append(f"sequenceParallel off: TP is {tp}, but local layers have none on the cpu platform")
    elif tp > 1 and asked is None:
        notes.append(f"sequenceParallel on: TP is {tp}, and it costs nothing")
    elif tp > 1 and asked is False:
        notes.append(f"sequenceParallel off as asked; on would keep 1/{tp} of the norms' activations")
    elif tp == 1 and asked and _set_by_user(problem.resolved, "parallelism.sequenceParallel"):
        errors.append(
            FieldError(
                "spec.parallelism.sequenceParallel",
                "true at TP 1, where Megatron switches it off silently",
                "leave it out, or set tensorModelParallelSize above 1",
            )
        )


def _plan(problem: PlanningProblem, ranking: Ranking, notes: list[str]) -> Plan:
    chosen = ranking.best
    assert chosen is not None, "a refused request has no plan"
    shape, resolved, layout = problem.shape, problem.resolved, chosen.layout
    split = layout.split
    assert split is not None, "a chosen layout has stages"
    padded = shape.padded_vocab(layout.tp)
    asked = problem.asked
    overlap = resolved.profile.platform == "gpu"
    if not overlap and resolved.origins.get("parallelism.overlapGradReduce") != "recipe":
        asked = asked.model_copy(update={"overlap_grad_reduce": None, "overlap_param_gather": None})
        notes.append("overlapGradReduce and overlapParamGather off: gloo on a CPU has nothing to hide behind")
    grad_reduce = asked.overlap_grad_reduce if asked.overlap_grad_reduce is not None else overlap
    param_gather = (
        asked.overlap_param_gather
        if asked.overlap_param_gather is not None
        else grad_reduce and overlap and problem.distributed_optimizer
    )
    if layout.cp == 1 and asked.cp_comm_type and _set_by_user(resolved, "parallelism.cpCommType"):
        notes.append(f"cpCommType {asked.cp_comm_type} is not used: CP is 1")
    if padded != shape.vocab:
        notes.append(
            f"vocabulary padded from {shape.vocab} to {padded}, a multiple of {shape.vocab_multiple} x TP"
            f" {layout.tp}"
        )
    largest = max(problem.batches)
    made = Plan(
        world_size=problem.world,
        nodes=-(-problem.world // problem.pod),
        per_node=problem.pod,
        tensor_model_parallel_size=layout.tp,
        pipeline_model_parallel_size=layout.pp,
        virtual_pipeline_model_parallel_size=split.virtual,
        context_parallel_size=layout.cp,
        expert_model_parallel_size=layout.ep,
        expert_tensor_parallel_size=layout.etp,
        data_parallel_size=chosen.dp,
        expert_data_parallel_size=chosen.expert_dp,
        sequence_parallel=problem.sequence_parallel and layout.tp > 1,
        decoder_first_pipeline_num_layers=split.first,
        decoder_last_pipeline_num_layers=split.last,
        account_for_embedding_in_pipeline_split=split.count_embedding,
        account_for_loss_in_pipeline_split=split.count_loss,
        pipeline_model_parallel_layout=split.layout,
        stage_layers=list(split.layers),
        use_distributed_optimizer=problem.distributed_optimizer,
        overlap_grad_reduce=grad_reduce,
        overlap_param_gather=param_gather,
        recompute_granularity=chosen.recompute,
        recompute_method=(asked.recompute_method or "uniform") if chosen.recompute == "full" else None,
        recompute_num_layers=(asked.recompute_num_layers or 1) if chosen.recompute == "full" else None,
        recompute_modules=list(chosen.modules) or None,
        micro_batch_size=chosen.micro_batch,
        global_batch_size=largest,
        gradient_accumulation=largest // (chosen.micro_batch * chosen.dp),
        train_iters=iterations(resolved.training),
        train_samples=resolved.training.train_samples,
        parameters=parameters(shape, shape.vocab),
        parameters_padded=parameters(shape, padded),
        active_parameters=parameters(shape, shape.vocab, active=True),
        flops_per_token=flops_per_token(shape, problem.seq_length, padded),
        memory_per_gpu=chosen.memory,
        expected=chosen.expected,
        notes=notes + planning_notes(problem, ranking, chosen),
    )
    said = [*made.notes, *lint_warnings(resolved, made), *suggestions(resolved)]
    return made.model_copy(update={"notes": said})
