"""A resolved recipe becomes a plan, or a refusal with every reason that was found."""

from megatron_operator.api.errors import FieldError, Refused
from megatron_operator.api.status import Plan
from megatron_operator.catalog.resolved import ResolvedRecipe
from megatron_operator.planner import accelerators
from megatron_operator.planner.architecture import architecture
from megatron_operator.planner.batch import global_batches, iterations
from megatron_operator.planner.candidates import Candidate, Request, best_candidate
from megatron_operator.planner.parameters import flops_per_token, parameters
from megatron_operator.planner.passthrough import passthrough_errors
from megatron_operator.planner.support import (
    optimizer_errors,
    precision_errors,
    recompute_errors,
    training_errors,
)


def plan(resolved: ResolvedRecipe) -> Plan:
    """The layout of the run, its sizes and the reasons for what was chosen.

    Raises Refused with all errors when the recipe cannot run as written on these accelerators.
    """
    errors: list[FieldError] = []
    notes = list(resolved.notes)
    accelerator = accelerators.of_profile(resolved.accelerator_type, resolved.profile)
    on_cpu = resolved.profile.platform == "cpu"
    pod = _pod(resolved, errors, notes)
    a = architecture(resolved.model, errors)
    distributed_optimizer = _distributed_optimizer(resolved)
    errors += training_errors(resolved)
    errors += precision_errors(resolved, accelerator)
    errors += recompute_errors(resolved)
    errors += optimizer_errors(resolved, distributed_optimizer)
    errors += passthrough_errors(resolved.megatron_args)
    batches = global_batches(resolved.training, errors)
    if a is None or resolved.training.seq_length is None or not batches:
        raise Refused(errors)
    if resolved.parallelism.sequence_parallel is None and not on_cpu:
        sequence_parallel = True
    else:
        sequence_parallel = bool(resolved.parallelism.sequence_parallel) and not on_cpu
    request = Request(
        a=a,
        resolved=resolved,
        world=resolved.accelerator_count,
        pod=pod,
        seq_length=resolved.training.seq_length,
        sequence_parallel=sequence_parallel,
        distributed_optimizer=distributed_optimizer,
        batches=batches,
        capacity=accelerator.memory if accelerator else None,
    )
    chosen = best_candidate(request, errors)
    if errors or chosen is None:
        raise Refused(errors)
    _sequence_parallel_notes(resolved, chosen, on_cpu, notes, errors)
    if errors:
        raise Refused(errors)
    return _plan(request, chosen, notes)


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


def _distributed_optimizer(resolved: ResolvedRecipe) -> bool:
    """On unless the recipe says otherwise."""
    asked = resolved.parallelism.use_distributed_optimizer
    return True if asked is None else asked


def _sequence_parallel_notes(
    resolved: ResolvedRecipe, chosen: Candidate, on_cpu: bool, notes: list[str], errors: list[FieldError]
) -> None:
    asked, tp = resolved.parallelism.sequence_parallel, chosen.layout.tp
    if tp > 1 and on_cpu:
        notes.append(f"sequenceParallel off: TP is {tp}, but local layers have none on the cpu platform")
    elif tp > 1 and asked is None:
        notes.append(f"sequenceParallel on: TP is {tp}, and it costs nothing")
    elif tp > 1 and asked is False:
        notes.append(f"sequenceParallel off as asked; on would keep 1/{tp} of the norms' activations")
    elif tp == 1 and asked and resolved.origins.get("parallelism.sequenceParallel") == "recipe":
        errors.append(
            FieldError(
                "spec.parallelism.sequenceParallel",
                "true at TP 1, where Megatron switches it off silently",
                "leave it out, or set tensorModelParallelSize above 1",
            )
        )


def _plan(request: Request, chosen: Candidate, notes: list[str]) -> Plan:
    a, resolved, layout = request.a, request.resolved, chosen.layout
    split = layout.split
    assert split is not None, "a chosen layout has stages"
    padded = a.padded_vocab(layout.tp)
    asked = resolved.parallelism
    overlap = resolved.profile.platform == "gpu"
    if not overlap and resolved.origins.get("parallelism.overlapGradReduce") != "recipe":
        asked = asked.model_copy(update={"overlap_grad_reduce": None, "overlap_param_gather": None})
        notes.append("overlapGradReduce and overlapParamGather off: gloo on a CPU has nothing to hide behind")
    grad_reduce = asked.overlap_grad_reduce if asked.overlap_grad_reduce is not None else overlap
    param_gather = (
        asked.overlap_param_gather
        if asked.overlap_param_gather is not None
        else grad_reduce and overlap and request.distributed_optimizer
    )
    if padded != a.vocab:
        notes.append(
            f"vocabulary padded from {a.vocab} to {padded}, a multiple of {a.vocab_multiple} x TP {layout.tp}"
        )
    largest = max(request.batches)
    return Plan(
        world_size=request.world,
        nodes=-(-request.world // request.pod),
        per_node=request.pod,
        tensor_model_parallel_size=layout.tp,
        pipeline_model_parallel_size=layout.pp,
        virtual_pipeline_model_parallel_size=split.virtual,
        context_parallel_size=layout.cp,
        expert_model_parallel_size=layout.ep,
        expert_tensor_parallel_size=layout.etp,
        data_parallel_size=chosen.dp,
        expert_data_parallel_size=chosen.expert_dp,
        sequence_parallel=request.sequence_parallel and layout.tp > 1,
        decoder_first_pipeline_num_layers=split.first,
        decoder_last_pipeline_num_layers=split.last,
        account_for_embedding_in_pipeline_split=split.count_embedding,
        account_for_loss_in_pipeline_split=split.count_loss,
        pipeline_model_parallel_layout=split.layout,
        stage_layers=list(split.layers),
        use_distributed_optimizer=request.distributed_optimizer,
        overlap_grad_reduce=grad_reduce,
        overlap_param_gather=param_gather,
        recompute_granularity=chosen.recompute,
        recompute_method=(asked.recompute_method or "uniform") if chosen.recompute == "full" else None,
        recompute_num_layers=(asked.recompute_num_layers or 1) if chosen.recompute == "full" else None,
        micro_batch_size=chosen.micro_batch,
        global_batch_size=largest,
        gradient_accumulation=largest // (chosen.micro_batch * chosen.dp),
        train_iters=iterations(resolved.training),
        train_samples=resolved.training.train_samples,
        parameters=parameters(a, a.vocab),
        parameters_padded=parameters(a, padded),
        active_parameters=parameters(a, a.vocab, active=True),
        flops_per_token=flops_per_token(a, request.seq_length, padded),
        memory_per_gpu=chosen.memory,
        notes=notes + chosen.notes,
    )
