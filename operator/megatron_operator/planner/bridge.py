"""Recipes that Megatron-Bridge runs: their layout as its function has it, and the command that starts it.

The command is that of `scripts/training/run_recipe.py` of Megatron-Bridge's repository at the release that
`catalog.functions` names; the wheel has the functions, not the script.
"""

import math
import re
from collections.abc import Iterator
from typing import Final

from megatron_contract.environment import CHECKPOINT_DIR

from megatron_operator.api.errors import FieldError, InvalidRecipeError
from megatron_operator.api.status import Plan
from megatron_operator.api.training import ParallelismSpec, TrainingSpec
from megatron_operator.catalog.resolved import ResolvedRecipe
from megatron_operator.planner.batch import iterations
from megatron_operator.planner.estimate.model_shape import model_shape
from megatron_operator.planner.estimate.parameters import flops_per_token, parameters

SCRIPT: Final = "scripts/training/run_recipe.py"

_SIZES: Final = (
    "tensor_model_parallel_size",
    "pipeline_model_parallel_size",
    "virtual_pipeline_model_parallel_size",
    "context_parallel_size",
    "expert_model_parallel_size",
    "expert_tensor_parallel_size",
)
_OF_PLAN: Final = {"virtual_pipeline_model_parallel_size": "num_virtual_stages_per_pipeline_rank"}
_STAGES: Final = {
    "decoder_first_pipeline_num_layers": "model.num_layers_in_first_pipeline_stage",
    "decoder_last_pipeline_num_layers": "model.num_layers_in_last_pipeline_stage",
    "account_for_embedding_in_pipeline_split": "model.account_for_embedding_in_pipeline_split",
    "account_for_loss_in_pipeline_split": "model.account_for_loss_in_pipeline_split",
    "pipeline_model_parallel_layout": "model.pipeline_model_parallel_layout",
}
_RECOMPUTATION: Final = ("recompute_granularity", "recompute_method", "recompute_num_layers")
_FURTHER: Final = {
    "optimizer": "optimizer.optimizer",
    "weight_decay": "optimizer.weight_decay",
    "clip_grad": "optimizer.clip_grad",
    "adam_beta1": "optimizer.adam_beta1",
    "adam_beta2": "optimizer.adam_beta2",
    "adam_eps": "optimizer.adam_eps",
    "lr_decay_style": "scheduler.lr_decay_style",
    "lr_decay_iters": "scheduler.lr_decay_iters",
    "seed": "rng.seed",
    "log_interval": "logger.log_interval",
}
"""Ours -> the field of Bridge's ConfigContainer, where run_recipe.py has no option of its own."""


def is_modelled(resolved: ResolvedRecipe) -> bool:
    """Whether the planner's estimates hold: the whole model is known, and all of it is trained."""
    return resolved.mode != "lora" and model_shape(resolved.model, []) is not None


def without_published_layout(resolved: ResolvedRecipe) -> ResolvedRecipe:
    """The recipe without the layout of a function that was published for other accelerators."""
    if resolved.layout is not None:
        return resolved

    def said(path: str) -> bool:
        return resolved.origins.get(path) == "recipe"

    sizes = {
        alias: value for alias, value in resolved.parallelism.wire().items() if said(f"parallelism.{alias}")
    }
    training = resolved.training
    if not said("training.microBatchSize"):
        training = training.model_copy(update={"micro_batch_size": None})
    update = {"parallelism": ParallelismSpec.model_validate(sizes), "training": training}
    return resolved.model_copy(update=update)


def plan_as_published(resolved: ResolvedRecipe, pod: int, notes: list[str]) -> Plan:
    """The function's own layout, with as much data parallelism as the accelerators give.

    Raises InvalidRecipeError where the sizes or the batch do not go with the number of accelerators.
    """
    p, t, world = resolved.parallelism, resolved.training, resolved.accelerator_count
    tp, pp = p.tensor_model_parallel_size or 1, p.pipeline_model_parallel_size or 1
    cp, ep = p.context_parallel_size or 1, p.expert_model_parallel_size or 1
    etp = p.expert_tensor_parallel_size or (tp if ep == 1 else 1)
    dp = world // (tp * pp * cp)
    dense, experts = tp * pp * cp, ep * etp * pp
    # Every group has to fit: attention's TP x PP x CP and the experts' EP x ETP x PP.
    least = math.lcm(dense, experts)
    errors = []
    if world % least:
        below = world // least * least
        errors.append(
            FieldError(
                "spec.accelerator.count",
                f"{world} is no multiple of {least}, which TP {tp} x PP {pp} x CP {cp} and EP {ep} x"
                f" ETP {etp} x PP {pp} of {_name(resolved)} need",
                f"set {f'{below} or ' if below else ''}{below + least}, or other sizes in parallelism",
            )
        )
    micro, batch = t.micro_batch_size or 1, t.global_batch_size or 1
    if not errors and batch % (micro * dp):
        upper = -(-batch // (micro * dp)) * micro * dp
        errors.append(
            FieldError(
                "spec.training.globalBatchSize",
                f"{batch} is no multiple of microBatchSize {micro} x DP {dp}",
                f"set {upper}, or fewer accelerators",
            )
        )
    if errors:
        raise InvalidRecipeError(errors)
    if resolved.layout is None and resolved.function is not None:
        copies = f"{_name(resolved)} is laid out for {resolved.function.title}: its sizes, and DP {dp}"
        notes = [*notes, copies]
    shape = model_shape(resolved.model, [])
    if shape is None:
        notes = [*notes, "parameters, memory and speed of this model are not modelled"]
    elif resolved.mode == "lora":
        notes = [*notes, "memory and speed with LoRA are not modelled"]
    padded = shape.padded_vocab(tp) if shape else 0
    return Plan(
        world_size=world,
        nodes=-(-world // pod),
        per_node=pod,
        tensor_model_parallel_size=tp,
        pipeline_model_parallel_size=pp,
        virtual_pipeline_model_parallel_size=p.num_virtual_stages_per_pipeline_rank,
        context_parallel_size=cp,
        expert_model_parallel_size=ep,
        expert_tensor_parallel_size=etp,
        data_parallel_size=dp,
        expert_data_parallel_size=world // experts,
        sequence_parallel=bool(p.sequence_parallel),
        decoder_first_pipeline_num_layers=p.decoder_first_pipeline_num_layers,
        decoder_last_pipeline_num_layers=p.decoder_last_pipeline_num_layers,
        pipeline_model_parallel_layout=p.pipeline_model_parallel_layout,
        account_for_embedding_in_pipeline_split=bool(p.account_for_embedding_in_pipeline_split),
        account_for_loss_in_pipeline_split=bool(p.account_for_loss_in_pipeline_split),
        recompute_granularity=p.recompute_granularity,
        recompute_method=p.recompute_method,
        recompute_num_layers=p.recompute_num_layers,
        stage_layers=[],
        use_distributed_optimizer=True,
        overlap_grad_reduce=True,
        overlap_param_gather=True,
        micro_batch_size=micro,
        global_batch_size=batch,
        gradient_accumulation=batch // (micro * dp),
        train_iters=iterations(t),
        train_samples=t.train_samples,
        parameters=parameters(shape, shape.vocab) if shape else None,
        parameters_padded=parameters(shape, padded) if shape else None,
        active_parameters=parameters(shape, shape.vocab, active=True) if shape else None,
        flops_per_token=flops_per_token(shape, t.seq_length or 1, padded) if shape else None,
        notes=notes,
    )


def with_bridge_note(plan: Plan, resolved: ResolvedRecipe) -> Plan:
    """The plan, saying who would run it."""
    note = (
        f"run by Megatron-Bridge ({_name(resolved)}; `megatron args` prints the command): this operator does"
        " not start its loop yet, and the command was not tried on hardware"
    )
    return plan.model_copy(update={"notes": [*plan.notes, note]})


def not_supported_error(resolved: ResolvedRecipe) -> FieldError:
    """Why there is no job for it."""
    return FieldError(
        "spec.recipe",
        f"{resolved.recipe} is run by Megatron-Bridge ({_name(resolved)}), whose loop the trainer image does"
        " not start yet",
        "choose a recipe of engine megatron (megatron recipes list), or start the command that"
        " `megatron args` prints yourself",
    )


def command(resolved: ResolvedRecipe, plan: Plan, name: str) -> list[str]:
    """The whole command on each node, from the root of Megatron-Bridge's repository.

    What the function itself sets is not said again; torchrun takes node rank and address from PET_NODE_RANK,
    PET_MASTER_ADDR and PET_MASTER_PORT.
    """
    function = resolved.function
    assert function is not None, "every recipe of engine bridge has a function"
    sets, batch = function.parallelism, function.training
    words = ["torchrun", "--nnodes", str(plan.nodes), "--nproc-per-node", str(plan.per_node), SCRIPT]
    words += ["--recipe", str(function.function), "--mode", resolved.mode]
    for size in _SIZES:
        planned, own = getattr(plan, size), getattr(sets, _OF_PLAN.get(size, size))
        if (planned or 1) != (own or 1) and not (size == "expert_tensor_parallel_size" and own is None):
            words += [f"--{size}", str(planned or 1)]
    asked, rates = resolved.training, resolved.origins
    for option, wanted, own in (
        ("--micro_batch_size", plan.micro_batch_size, batch.micro_batch_size),
        ("--global_batch_size", plan.global_batch_size, batch.global_batch_size),
        ("--seq_length", asked.seq_length, batch.seq_length),
        ("--max_steps", _steps(resolved, plan), batch.train_iters),
        ("--warmup_iters", asked.lr_warmup_iters, batch.lr_warmup_iters),
        ("--lr", asked.lr, batch.lr),
        ("--min_lr", asked.min_lr, batch.min_lr),
    ):
        if wanted is not None and wanted != own:
            words += [option, str(wanted)]
    if rates.get("checkpoint.saveInterval") != "default":
        words += ["--save_interval", str(resolved.checkpoint.save_interval)]
    words += ["--save_dir", f"{CHECKPOINT_DIR}/{name}", "--load_dir", f"{CHECKPOINT_DIR}/{name}"]
    return words + [f"{field}={_value(value)}" for field, value in _fields(resolved, plan, sets)]


def _fields(
    resolved: ResolvedRecipe, plan: Plan, sets: ParallelismSpec
) -> Iterator[tuple[str, str | int | float | bool | None]]:
    """What differs from the function and has no option: fields of its ConfigContainer."""
    if plan.sequence_parallel != bool(sets.sequence_parallel):
        yield "model.sequence_parallel", plan.sequence_parallel
    for name, field in _STAGES.items():
        planned, own = getattr(plan, name), getattr(sets, name)
        if (planned or None) != (own or None):
            yield field, planned
    if plan.recompute_granularity is not None:
        for name in _RECOMPUTATION:
            yield f"model.{name}", getattr(plan, name)
    for name, field in _FURTHER.items():
        alias = TrainingSpec.model_fields[name].alias
        if resolved.origins.get(f"training.{alias}") == "recipe":
            yield field, getattr(resolved.training, name)


def _value(value: str | float | bool | None) -> str:
    """A value in the words of an override: quoted where it is more than a word."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    text = str(value)
    return text if re.fullmatch(r"[\w.+-]+", text) else f"'{text}'"


def _steps(resolved: ResolvedRecipe, plan: Plan) -> int | None:
    samples = resolved.training.train_samples
    return plan.train_iters if samples is None else samples // plan.global_batch_size


def _name(resolved: ResolvedRecipe) -> str:
    return str(resolved.function.function) if resolved.function else str(resolved.recipe)
