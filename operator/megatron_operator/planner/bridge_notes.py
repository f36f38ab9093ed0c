"""Notes of a plan about Megatron-Bridge, which runs it or would."""

import math
from collections.abc import Iterator

from megatron_operator.api.diagnostics import Diagnostics
from megatron_operator.api.status import Plan
from megatron_operator.catalog import bridge_support
from megatron_operator.catalog.bridge_support import SEEN_ON_A_GPU
from megatron_operator.catalog.chats import is_blended
from megatron_operator.catalog.resolved import ResolvedRecipe
from megatron_operator.planner import diffusion_plan
from megatron_operator.planner.batch import iterations
from megatron_operator.planner.estimate.adapters import Adapters
from megatron_operator.planner.estimate.layers import ENCODED
from megatron_operator.planner.estimate.model_shape import model_shape
from megatron_operator.planner.estimate.parameters import trained_parameters


def function_name(resolved: ResolvedRecipe) -> str:
    """The function of Megatron-Bridge that a recipe is run by, or the recipe's name where it has none."""
    return str(resolved.function.function) if resolved.function else str(resolved.recipe)


def with_bridge_notes(plan: Plan, resolved: ResolvedRecipe) -> Plan:
    """The plan with notes about Megatron-Bridge, which runs it or would."""
    if resolved.starts:
        note = f"run by Megatron-Bridge ({function_name(resolved)}){_seen(resolved)}"
        return plan.model_copy(
            update={
                "notes": [
                    *plan.notes,
                    *_tower_notes(resolved),
                    *diffusion_plan.notes(resolved, plan),
                    *_adapter_notes(resolved, plan),
                    *_frozen_notes(resolved, plan),
                    *_length_notes(resolved, plan),
                    *_sample_notes(resolved, plan),
                    *_dispatcher_notes(resolved),
                    note,
                ]
            }
        )
    if resolved.planned_only is not None:
        note = f"planned only, and started in no way: {resolved.planned_only}"
        return plan.model_copy(update={"notes": [*plan.notes, *_tower_notes(resolved), note]})
    note = (
        f"run by Megatron-Bridge ({function_name(resolved)}; `megatron args` prints the command): this"
        f" operator does not start {_not_started(resolved)}, and the command is untested on hardware"
    )
    if resolved.function is not None and resolved.function.own:
        note = f"run by Megatron-Bridge ({function_name(resolved)}, of this project), and not started here"
    own = (*_tower_notes(resolved), *diffusion_plan.notes(resolved, plan), *_adapter_notes(resolved, plan))
    return plan.model_copy(update={"notes": [*plan.notes, *own, note]})


def _seen(resolved: ResolvedRecipe) -> str:
    """What was seen of the recipe on GPUs; nothing for a run on CPUs."""
    if resolved.profile.platform == "cpu":
        return ""
    of_dora = resolved.peft is not None and resolved.peft.type == "dora"
    is_seen = resolved.recipe in SEEN_ON_A_GPU and not of_dora
    return "; seen on one H200" if is_seen else "; not seen on GPUs yet"


def missing_kernels(resolved: ResolvedRecipe) -> list[str]:
    """Packages that the profile's image lacks, and without which the operator does not start a recipe."""
    function = resolved.function.function if resolved.function else None
    reason = bridge_support.obstacle(str(function), resolved.mode, resolved.profile)
    return [x for x in bridge_support.KERNELS.get(reason, ()) if x not in resolved.profile.image_has]


def _not_started(resolved: ResolvedRecipe) -> str:
    missing = missing_kernels(resolved)
    if not missing:
        return "its loop yet"
    return f"it while imageHas of profile {resolved.accelerator_type} lacks {' and '.join(missing)}"


def _tower_notes(resolved: ResolvedRecipe) -> Iterator[str]:
    if resolved.model.tower is not None:
        yield (
            f"memory and speed are estimated for data of which {ENCODED:.0%} of the tokens are images, video"
            " or sound; FLOPs are those of the language model"
        )


def _dispatcher_notes(resolved: ResolvedRecipe) -> Iterator[str]:
    if (left_out := resolved.replaced_dispatcher) is not None:
        name = function_name(resolved)
        yield f"left out of {name}: {left_out.setting}, {left_out.reason}; alltoall is used"


def _length_notes(resolved: ResolvedRecipe, plan: Plan) -> Iterator[str]:
    """Functions bring lengths of 20 to 300,000 iterations, of which none knows the recipe's data."""
    length, batch = iterations(resolved.training), plan.global_batch_size
    is_own = resolved.is_set_by_user("training.trainIters")
    if not resolved.fine_tunes or length is None or is_own or resolved.training.train_iters is None:
        return
    yield (
        f"training.trainIters {length:,} is that of {function_name(resolved)}, {length * batch:,} samples:"
        f" for epochs of your data set epochs x samples / {batch:,}"
    )


def _sample_notes(resolved: ResolvedRecipe, plan: Plan) -> Iterator[str]:
    """How many samples the preparation asks for; an epoch has whole batches only."""
    data, length, batch = resolved.data, iterations(resolved.training), plan.global_batch_size
    if not resolved.fine_tunes or not data.sources or length is None:
        return
    what = "conversations" if all(each.format == "chat" for each in data.sources) else "samples"
    epochs = data.max_epochs or 1
    times = "once" if epochs == 1 else f"{epochs:,} times"
    of_run = f"trainIters {length:,} x globalBatchSize {batch:,}, at most {times} each (data.maxEpochs)"
    trained = {number: each.weight for number, each in enumerate(data.sources) if not each.validation}
    if is_blended(trained.values()):
        reads = length * batch / sum(trained.values())
        each = ", ".join(
            f"{math.ceil(reads * weight / epochs):,} of data.sources[{number}]"
            for number, weight in trained.items()
        )
        yield f"{what} for training must be at least {each}: by their weights of {of_run}"
    else:
        yield (
            f"data.sources must have at least {math.ceil(length / epochs) * batch:,} {what} for training:"
            f" {of_run}"
        )
    if data.packing:
        yield (
            f"iterations take packed sequences, of which there are fewer than {what}: the preparation counts"
            " them when it has packed them, and fails if data.maxEpochs is exceeded"
        )
    elif not resolved.media:
        yield (
            f"{what} are padded to {resolved.training.seq_length:,} tokens each, which the tokens a"
            " second include: set training.seqLength to the length of yours"
        )


def _frozen_notes(resolved: ResolvedRecipe, plan: Plan) -> Iterator[str]:
    shape = model_shape(resolved.model, Diagnostics())
    if not resolved.frozen or shape is None or plan.parameters is None:
        return
    trained = trained_parameters(shape, resolved.frozen, plan.parameters)
    of_tower = {"vision", "projector"} & {*resolved.frozen}
    known = len(of_tower) != 1 or all(tower.projector is not None for tower in shape.towers)
    language = "language" in resolved.frozen
    activations = "; activations are estimated as if the language model were trained" if language else ""
    unknown = "" if known else " (with the encoder's: how many of them are the projector's is not known)"
    yield (
        f"frozen: {', '.join(resolved.frozen)}; {'' if known else 'at most '}{trained:,} parameters{unknown}"
        f" are trained, the others have neither gradients nor optimizer states{activations}"
    )


def _adapter_notes(resolved: ResolvedRecipe, plan: Plan) -> Iterator[str]:
    shape = model_shape(resolved.model, Diagnostics())
    adapters = Adapters.of(resolved)
    if shape is None or adapters is None:
        return
    trained = adapters.parameters(shape, plan.expert_model_parallel_size)
    kind = "DoRA" if adapters.magnitudes else "LoRA"
    yield (
        f"{kind} of rank {adapters.dim} trains {trained:,} parameters; frozen weights have no gradients and"
        " no optimizer states. TFLOP/s and MFU count the operations of training all weights, as Megatron does"
    )
