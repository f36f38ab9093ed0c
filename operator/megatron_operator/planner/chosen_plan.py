"""The plan of a layout: sizes, numbers for the status, and notes with the reasons."""

from collections.abc import Iterator
from typing import Any

from megatron_operator.api.communication_status import GroupCommunication
from megatron_operator.api.diagnostics import Diagnostics
from megatron_operator.api.status import Plan
from megatron_operator.planner.batch import iterations
from megatron_operator.planner.checks.checkpoint_volume import check_checkpoint_volumes
from megatron_operator.planner.checks.lint import lint_warnings, suggestions
from megatron_operator.planner.checks.topology import uplink_notes
from megatron_operator.planner.estimate.group_communication import communication
from megatron_operator.planner.estimate.parameters import allocated_parameters, flops_per_token, parameters
from megatron_operator.planner.gradient_overlap import ignores_overlaps, overlaps
from megatron_operator.planner.index_memory import index_notes
from megatron_operator.planner.left_out import cost_note
from megatron_operator.planner.notes import planning_notes
from megatron_operator.planner.search.problem import Candidate, PlanningProblem
from megatron_operator.planner.search.rank import Ranking


def plan_of(problem: PlanningProblem, ranking: Ranking, found: Diagnostics) -> Plan:
    """The plan of the best candidate, with all notes.

    Raises InvalidRecipeError with the errors that were found before, and those of the finished plan.
    """
    chosen = ranking.best
    assert chosen is not None, "a solved problem has a candidate"
    shape, resolved, dims = problem.shape, problem.resolved, chosen.dims
    padded = shape.padded_vocab(dims.tp)
    overlap = _overlap(problem, found)
    if cost := cost_note(problem, chosen):
        found.note(cost)
    if note := _recomputation_note(problem, chosen):
        found.note(note)
    if padded != shape.vocab:
        found.note(
            f"vocabulary padded from {shape.vocab} to {padded}, a multiple of {shape.vocab_multiple} x TP"
            f" {dims.tp}"
        )
    notes = found.notes + planning_notes(problem, ranking, chosen)
    made = Plan.model_validate(_fields(problem, chosen) | overlap | {"notes": notes})
    if too_large := next(_too_large(made.wire()), None):
        found.error("spec", *too_large)
    volumes = Diagnostics()
    check_checkpoint_volumes(resolved, made, volumes)
    found.extend(volumes.errors)
    found.raise_errors()
    notes = [*made.notes, *volumes.notes, *lint_warnings(resolved, made), *suggestions(resolved, made)]
    notes += [*uplink_notes(resolved), *index_notes(resolved, made)]
    return made.model_copy(update={"notes": notes})


def _fields(problem: PlanningProblem, chosen: Candidate) -> dict[str, Any]:
    """Fields of the plan that follow from the problem and the candidate alone."""
    shape, dims, training = problem.shape, chosen.dims, problem.resolved.training
    split = chosen.layout.split
    assert split is not None, "a chosen layout has stages"
    padded = shape.padded_vocab(dims.tp)
    recompute_all = chosen.recompute == "full"
    largest = max(problem.batches)
    return {
        "world_size": problem.world,
        "nodes": -(-problem.world // problem.pod),
        "per_node": problem.pod,
        **dims.plan_fields(),
        "virtual_pipeline_model_parallel_size": split.virtual,
        "expert_data_parallel_size": dims.expert_dp,
        "sequence_parallel": problem.sequence_parallel and dims.tp > 1,
        "decoder_first_pipeline_num_layers": split.first,
        "decoder_last_pipeline_num_layers": split.last,
        "account_for_embedding_in_pipeline_split": split.count_embedding,
        "account_for_loss_in_pipeline_split": split.count_loss,
        "pipeline_model_parallel_layout": split.layout,
        "stage_layers": list(split.layers),
        "use_distributed_optimizer": problem.distributed_optimizer,
        "use_megatron_fsdp": problem.fully_sharded or None,
        "recompute_granularity": chosen.recompute,
        "recompute_method": (problem.asked.recompute_method or "uniform") if recompute_all else None,
        "recompute_num_layers": (problem.asked.recompute_num_layers or 1) if recompute_all else None,
        "recompute_modules": list(chosen.modules) or None,
        "micro_batch_size": chosen.micro_batch,
        "global_batch_size": largest,
        "gradient_accumulation": largest // (chosen.micro_batch * dims.dp),
        "train_iters": iterations(training),
        "train_samples": training.train_samples,
        "parameters": parameters(shape, shape.vocab),
        "parameters_padded": allocated_parameters(shape, padded),
        "active_parameters": parameters(shape, shape.vocab, active=True),
        "flops_per_token": flops_per_token(shape, problem.seq_length, padded),
        "memory_per_gpu": chosen.memory,
        "expected": chosen.expected,
        "communication": _communication(problem, chosen),
    }


def _recomputation_note(problem: PlanningProblem, chosen: Candidate) -> str | None:
    """That `recomputeNumLayers` acts like a smaller one: Megatron counts within each block of layers."""
    asked, split = problem.asked.recompute_num_layers, chosen.layout.split
    if asked is None or split is None or chosen.recompute != "full":
        return None
    virtual = split.virtual or 1
    largest = -(-max(split.layers) // virtual)
    if asked <= largest:
        return None
    stage = "pipeline stage" if virtual == 1 else "virtual pipeline stage"
    where = f"each {stage}" if chosen.dims.pp > 1 else "the model"
    return f"recomputeNumLayers {asked} acts like {largest}, the most layers of {where}"


def _communication(problem: PlanningProblem, chosen: Candidate) -> list[GroupCommunication] | None:
    """None where nothing is timed."""
    if problem.accelerator is None:
        return None
    scheduling = problem.resolved.scheduling
    return communication(chosen.workload, problem.accelerator, problem.pod, scheduling)


def _too_large(fields: dict[str, Any], at: str = "") -> Iterator[tuple[str, str]]:
    """Message and fix for each integer that the status, with 64 bits for one, cannot hold."""
    for name, value in fields.items():
        if isinstance(value, dict):
            yield from _too_large(value, f"{at}{name}.")
        elif isinstance(value, int) and value >= 2**63:
            yield f"the plan's {at}{name} would be {value:.1e}, above 2^63", "set smaller sizes"


def _overlap(problem: PlanningProblem, found: Diagnostics) -> dict[str, bool]:
    """Whether gradient reduction and parameter gathering overlap computation, as fields of the plan."""
    if ignores_overlaps(problem.resolved):
        found.note("overlapGradReduce and overlapParamGather off: with gloo on a CPU nothing overlaps")
    reduce, gather = overlaps(problem.resolved)
    return {"overlap_grad_reduce": reduce, "overlap_param_gather": gather}
