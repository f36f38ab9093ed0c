"""Recipes of engine `bridge`: the layout of their Megatron-Bridge function, and the command that starts it.

The command is that of `scripts/training/run_recipe.py` in Megatron-Bridge's repository, at the release that
`catalog.bridge_tables` names; the wheel has the functions, but not the script.
"""

import math
import re
from collections.abc import Iterator
from typing import Any, Final

from megatron_contract.environment import CHECKPOINT_DIR

from megatron_operator.api.diagnostics import Diagnostics
from megatron_operator.api.errors import FieldError, InvalidRecipeError
from megatron_operator.api.parallel_dims import PLAN_FIELDS, SPEC_FIELDS, ParallelDims
from megatron_operator.api.status import Plan
from megatron_operator.api.training import TrainingSpec
from megatron_operator.catalog import PublishedLayout, bridge_support
from megatron_operator.catalog.resolved import ResolvedRecipe
from megatron_operator.planner import diffusion_plan
from megatron_operator.planner.batch import iterations
from megatron_operator.planner.bridge_notes import function_name, missing_kernels
from megatron_operator.planner.estimate import group_communication, memory, step_time
from megatron_operator.planner.estimate.adapters import Adapters
from megatron_operator.planner.estimate.diffusion import sample_tokens
from megatron_operator.planner.estimate.model_shape import ModelShape, model_shape
from megatron_operator.planner.estimate.parameters import allocated_parameters, flops_per_token, parameters
from megatron_operator.planner.notes import with_memory_warnings
from megatron_operator.planner.search.pipeline_split import automatic_split, requested_split

SCRIPT: Final = "scripts/training/run_recipe.py"

_STAGES: Final = {
    "decoder_first_pipeline_num_layers": "model.num_layers_in_first_pipeline_stage",
    "decoder_last_pipeline_num_layers": "model.num_layers_in_last_pipeline_stage",
    "account_for_embedding_in_pipeline_split": "model.account_for_embedding_in_pipeline_split",
    "account_for_loss_in_pipeline_split": "model.account_for_loss_in_pipeline_split",
    "pipeline_model_parallel_layout": "model.pipeline_model_parallel_layout",
}
_RECOMPUTATION: Final = ("recompute_granularity", "recompute_method", "recompute_num_layers")
DECAY_LENGTH: Final = "scheduler.lr_decay_iters"
"""Path of the length of the decay, which without one is the run's."""
_OF_TRAINING: Final = {
    "optimizer.optimizer": "optimizer",
    "optimizer.weight_decay": "weight_decay",
    # The scheduler's replace the optimizer's at every step.
    "scheduler.start_weight_decay": "weight_decay",
    "scheduler.end_weight_decay": "weight_decay",
    "optimizer.clip_grad": "clip_grad",
    "optimizer.adam_beta1": "adam_beta1",
    "optimizer.adam_beta2": "adam_beta2",
    "optimizer.adam_eps": "adam_eps",
    "scheduler.lr_decay_style": "lr_decay_style",
    "rng.seed": "seed",
    "logger.log_interval": "log_interval",
}
"""Field of Bridge's ConfigContainer, where run_recipe.py has no option -> that of `spec.training`."""


def is_modelled(resolved: ResolvedRecipe) -> bool:
    """Whether the planner's estimates apply: the model and what is trained of it are known completely."""
    shape = model_shape(resolved.model, Diagnostics())
    if shape is None:
        return False
    return resolved.mode != "lora" or Adapters.of(resolved) is not None


def is_searched(resolved: ResolvedRecipe) -> bool:
    """Whether the planner may choose other sizes than the function's: not for diffusion, of which Bridge does
    not split every part."""
    return is_modelled(resolved) and resolved.model.diffusion is None


def for_function(resolved: ResolvedRecipe) -> ResolvedRecipe:
    """The recipe with what the functions that the operator starts have in common.

    Few of them split sequences over ranks, packed ones never, and none that fine-tunes overlaps communication
    of gradients and parameters; no CPU does. Functions that it does not start keep their own sequence
    parallelism.
    """
    if not resolved.starts:
        return _split_as_function(resolved)
    fixed: dict[str, bool | int] = {} if resolved.may_split_sequences else {"context_parallel_size": 1}
    if resolved.fine_tunes or resolved.profile.platform == "cpu":
        fixed |= {"overlap_grad_reduce": False, "overlap_param_gather": False}
    if not resolved.has_sequence_parallelism:
        fixed["sequence_parallel"] = False
    update: dict[str, Any] = {"parallelism": resolved.parallelism.model_copy(update=fixed)}
    if resolved.data.packing:
        # A packed sequence is a micro batch of many samples.
        update["training"] = resolved.training.model_copy(update={"micro_batch_size": 1})
    return resolved.model_copy(update=update)


def _split_as_function(resolved: ResolvedRecipe) -> ResolvedRecipe:
    function = resolved.function
    if function is None or resolved.parallelism.sequence_parallel is not None:
        return resolved
    own = {"sequence_parallel": bool(function.parallelism.sequence_parallel)}
    return resolved.model_copy(update={"parallelism": resolved.parallelism.model_copy(update=own)})


def plan_as_published(resolved: ResolvedRecipe, pod: int, notes: list[str]) -> Plan:
    """A plan with the function's own layout; DP follows from the number of accelerators.

    `pod` is the number of ranks of a pod. Raises InvalidRecipeError where sizes or batch do not suit the
    number of accelerators.
    """
    p, t, world = resolved.parallelism, resolved.training, resolved.accelerator_count
    dims = ParallelDims.of_spec(p, world)
    _check_divisible(resolved, dims)
    diffusion_plan.check(resolved, dims, pod)
    micro, batch = t.micro_batch_size or 1, t.global_batch_size or 1
    if resolved.layout is None and resolved.function is not None:
        published = f"the layout of {function_name(resolved)} is for {resolved.function.title}"
        notes = [*notes, f"{published}: its sizes are used, with DP {dims.dp}"]
    shape = model_shape(resolved.model, Diagnostics())
    if shape is None:
        why = f": {resolved.model.not_estimated}" if resolved.model.not_estimated else ""
        notes = [*notes, f"parameters, memory and speed of this model are not estimated{why}"]
    elif not is_modelled(resolved):
        notes = [*notes, "memory and speed with these adapters are not estimated"]
    published_plan = Plan(
        world_size=world,
        nodes=-(-world // pod),
        per_node=pod,
        tensor_model_parallel_size=dims.tp,
        pipeline_model_parallel_size=dims.pp,
        virtual_pipeline_model_parallel_size=p.num_virtual_stages_per_pipeline_rank,
        context_parallel_size=dims.cp,
        expert_model_parallel_size=dims.ep,
        expert_tensor_parallel_size=dims.etp,
        data_parallel_size=dims.dp,
        expert_data_parallel_size=dims.expert_dp,
        sequence_parallel=bool(p.sequence_parallel),
        decoder_first_pipeline_num_layers=p.decoder_first_pipeline_num_layers,
        decoder_last_pipeline_num_layers=p.decoder_last_pipeline_num_layers,
        pipeline_model_parallel_layout=p.pipeline_model_parallel_layout,
        account_for_embedding_in_pipeline_split=bool(p.account_for_embedding_in_pipeline_split),
        account_for_loss_in_pipeline_split=bool(p.account_for_loss_in_pipeline_split),
        recompute_granularity=p.recompute_granularity,
        recompute_method=p.recompute_method,
        recompute_num_layers=p.recompute_num_layers,
        recompute_modules=p.recompute_modules,
        stage_layers=[],
        use_distributed_optimizer=True,
        overlap_grad_reduce=p.overlap_grad_reduce is not False,
        overlap_param_gather=p.overlap_param_gather is not False,
        micro_batch_size=micro,
        global_batch_size=batch,
        gradient_accumulation=batch // (micro * dims.dp),
        train_iters=iterations(t),
        train_samples=t.train_samples,
        **_sizes(shape, t.seq_length or 1, dims.tp),
        notes=notes,
    )
    return _estimated(published_plan, resolved) if is_modelled(resolved) else published_plan


def _sizes(shape: ModelShape | None, seq_length: int, tp: int) -> dict[str, int]:
    """Parameters and FLOPs of a model by the plan's fields; none where it is not modelled."""
    if shape is None:
        return {}
    padded = shape.padded_vocab(tp)
    return {
        "parameters": parameters(shape, shape.vocab),
        "parameters_padded": allocated_parameters(shape, padded),
        "active_parameters": parameters(shape, shape.vocab, active=True),
        "flops_per_token": flops_per_token(shape, sample_tokens(shape, seq_length), padded),
    }


def _estimated(plan: Plan, resolved: ResolvedRecipe) -> Plan:
    """The plan with memory and speed of its layout, fitting or not; as it is where the layers cannot fill the
    stages, and for runs that the operator starts, whose recomputation only the function knows: not of
    diffusion models, whose functions set it in the catalog."""
    found, layers = Diagnostics(), resolved.model.num_layers or 1
    pp, mtp = plan.pipeline_model_parallel_size, resolved.model.mtp_num_layers or 0
    split = requested_split(layers, mtp, pp, resolved.parallelism, found) or automatic_split(layers, pp)
    if split is None or (resolved.starts and not resolved.reads_latents):
        return plan
    estimated = plan.model_copy(update={"stage_layers": list(split.layers)})
    needed = memory.estimate(resolved, estimated)
    return estimated.model_copy(
        update={
            "memory_per_gpu": needed,
            "expected": step_time.estimate(resolved, estimated),
            "communication": group_communication.estimate(resolved, estimated),
            "notes": with_memory_warnings(plan.notes, needed),
        }
    )


def _check_divisible(resolved: ResolvedRecipe, dims: ParallelDims) -> None:
    """Raise InvalidRecipeError unless the groups divide the accelerators and the ranks the batch."""
    found, world, t = Diagnostics(), resolved.accelerator_count, resolved.training
    # Every group has to fit: attention's TP x PP x CP and the experts' EP x ETP x PP.
    multiple = math.lcm(dims.model_parallel, dims.expert_model_parallel)
    micro, batch = t.micro_batch_size or 1, t.global_batch_size or 1
    if world % multiple:
        lower = world // multiple * multiple
        found.error(
            "spec.accelerator.count",
            f"{world} is not a multiple of {multiple}, which TP {dims.tp} x PP {dims.pp} x CP {dims.cp} and"
            f" EP {dims.ep} x ETP {dims.etp} x PP {dims.pp} of {function_name(resolved)} require",
            f"set {f'{lower} or ' if lower else ''}{lower + multiple}, or other sizes in parallelism",
        )
    elif batch % (micro * dims.dp):
        upper = -(-batch // (micro * dims.dp)) * micro * dims.dp
        found.error(
            "spec.training.globalBatchSize",
            f"{batch} is not a multiple of microBatchSize {micro} x DP {dims.dp}",
            f"set {upper}, or fewer accelerators",
        )
    found.raise_errors()


def not_supported_error(resolved: ResolvedRecipe) -> FieldError:
    """Why no job is created for a recipe that the trainer image does not start."""
    if resolved.planned_only is not None:
        return FieldError(
            "spec.recipe",
            f"{resolved.recipe} is planned only, and not started: {resolved.planned_only}",
            "choose a recipe that is started (docs/catalog/README.md)",
        )
    function = resolved.function
    assert function is not None, "every other recipe of engine bridge has a function"
    reason = bridge_support.obstacle(str(function.function), resolved.mode, resolved.profile)
    if not reason:
        return FieldError(
            "spec.recipe",
            f"{function_name(resolved)} {function.obstacle}, and the trainer image does not start it",
            f"name the recipe instead: {resolved.recipe}",
        )
    missing = missing_kernels(resolved)
    packages, added = " and ".join(missing), ""
    if missing:
        reason = f"on GPUs the trainer's image lacks kernels that it needs: {packages}"
        added = f", add {packages} to imageHas of profile {resolved.accelerator_type} if its image has them"
    by_hand = "" if function.own else ", or start the command that `megatron args` prints yourself"
    return FieldError(
        "spec.recipe",
        f"{resolved.recipe} is run by Megatron-Bridge ({function_name(resolved)}) and not started: {reason}",
        f"choose a recipe that is started (docs/catalog/what-ran.md){added}{by_hand}",
    )


def command(resolved: ResolvedRecipe, plan: Plan, name: str) -> list[str]:
    """The whole command on each node, from the root of Megatron-Bridge's repository.

    What the function itself sets is not repeated; torchrun takes node rank and address from PET_NODE_RANK,
    PET_MASTER_ADDR and PET_MASTER_PORT. Raises InvalidRecipeError for a recipe without a function of
    Megatron-Bridge.
    """
    function = resolved.function
    if function is None or function.own:
        raise InvalidRecipeError([not_supported_error(resolved)])
    sets, batch = function.parallelism, function.training
    words = ["torchrun", "--nnodes", str(plan.nodes), "--nproc-per-node", str(plan.per_node), SCRIPT]
    words += ["--recipe", str(function.function), "--mode", resolved.mode]
    for dim in ("tp", "pp", "vp", "cp", "ep", "etp"):
        planned, own = getattr(plan, PLAN_FIELDS[dim]), getattr(sets, SPEC_FIELDS[dim])
        if (planned or 1) != (own or 1) and not (dim == "etp" and own is None):
            words += [f"--{PLAN_FIELDS[dim]}", str(planned or 1)]
    asked = resolved.training
    for option, value, own in (
        ("--micro_batch_size", plan.micro_batch_size, batch.micro_batch_size),
        ("--global_batch_size", plan.global_batch_size, batch.global_batch_size),
        ("--seq_length", asked.seq_length, batch.seq_length),
        ("--max_steps", _steps(resolved, plan), batch.train_iters),
        ("--lr", asked.lr, batch.lr),
    ):
        if value is not None and value != own:
            words += [option, str(value)]
    if resolved.origins.get("checkpoint.saveInterval") != "default":
        words += ["--save_interval", str(resolved.checkpoint.save_interval)]
    words += ["--save_dir", f"{CHECKPOINT_DIR}/{name}", "--load_dir", f"{CHECKPOINT_DIR}/{name}"]
    return words + [f"{field}={_override(value)}" for field, value in _fields(resolved, plan, function)]


def _fields(
    resolved: ResolvedRecipe, plan: Plan, function: PublishedLayout
) -> Iterator[tuple[str, str | int | float | bool | None]]:
    """Fields of Bridge's ConfigContainer that differ from the function and have no option."""
    sets = function.parallelism
    if plan.sequence_parallel != bool(sets.sequence_parallel):
        yield "model.sequence_parallel", plan.sequence_parallel
    for name, field in _STAGES.items():
        planned, own = getattr(plan, name), getattr(sets, name)
        if (planned or None) != (own or None):
            yield field, planned
    if plan.recompute_granularity is not None:
        for name in _RECOMPUTATION:
            yield f"model.{name}", getattr(plan, name)
    yield from left_out_states(resolved)
    yield from training_overrides(resolved)
    asked, own = resolved.training, function.training
    # The script's options for them ignore 0.
    for path, value, of_function in (
        ("scheduler.lr_warmup_iters", asked.lr_warmup_iters, own.lr_warmup_iters),
        ("optimizer.min_lr", asked.min_lr, own.min_lr),
    ):
        if value is not None and value != of_function:
            yield path, value
    if (_steps(resolved, plan), asked.lr_decay_iters) != (own.train_iters, own.lr_decay_iters):
        # The function's is that of its own run.
        yield DECAY_LENGTH, asked.lr_decay_iters


def left_out_states(resolved: ResolvedRecipe) -> Iterator[tuple[str, bool]]:
    """What checkpoints do not have, by its path in Bridge's ConfigContainer."""
    if resolved.checkpoint.no_save_optim:
        yield "checkpoint.save_optim", False
    if resolved.checkpoint.no_save_rng:
        yield "checkpoint.save_rng", False


def training_overrides(resolved: ResolvedRecipe) -> Iterator[tuple[str, str | float | bool | None]]:
    """Settings of `spec.training` that the recipe itself makes, by their path in Bridge's ConfigContainer."""
    for path, name in _OF_TRAINING.items():
        alias = TrainingSpec.model_fields[name].alias
        if resolved.origins.get(f"training.{alias}") == "recipe":
            yield path, getattr(resolved.training, name)


def _override(value: str | float | bool | None) -> str:
    """The value of an override on the command line: quoted where it is more than a word."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    text = str(value)
    return text if re.fullmatch(r"[\w.+-]+", text) else f"'{text}'"


def _steps(resolved: ResolvedRecipe, plan: Plan) -> int | None:
    samples = resolved.training.train_samples
    return plan.train_iters if samples is None else samples // plan.global_batch_size
