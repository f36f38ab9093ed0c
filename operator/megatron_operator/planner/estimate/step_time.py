"""Time of one training step, by part, as a closed formula of the workload and the accelerator.

The structure is that of Narayanan et al. 2021 (arXiv:2104.04473, section 3): a micro batch's time in a
pipeline stage, times micro batches, plus the bubble, plus what of the data-parallel exchange stays visible.
Matrix products follow a roofline with a start-up time, collectives the bandwidth of the slowest link that
they cross. `calibration.py` has the constants that no data sheet gives.
"""

from dataclasses import dataclass

from megatron_operator.api.status import Expected, Plan
from megatron_operator.catalog.resolved import ResolvedRecipe
from megatron_operator.planner.estimate import hardware
from megatron_operator.planner.estimate.calibration import FITTED, Calibration
from megatron_operator.planner.estimate.communication import CommunicationModel
from megatron_operator.planner.estimate.compute import ComputeModel
from megatron_operator.planner.estimate.hardware import Accelerator
from megatron_operator.planner.estimate.memory import held_parameters
from megatron_operator.planner.estimate.parameters import flops_per_token
from megatron_operator.planner.estimate.workload import Workload


@dataclass(frozen=True, slots=True)
class StepTime:
    """Seconds of one step, by what they are spent on."""

    products: float
    """Matrix products, recomputed ones too."""
    attention: float
    elementwise: float
    """Norms, activations, residuals, permutations, casts: bound by memory."""
    host: float
    """Waiting for the host to launch kernels."""
    tensor: float
    """Visible part of tensor- and sequence-parallel exchanges."""
    context: float
    expert: float
    pipeline: float
    """Visible part of sending activations between stages."""
    bubble: float
    data: float
    """Visible part of gradient reduction and parameter gathering."""
    optimizer: float
    """The optimizer's update, and what a step costs beside its kernels."""

    @property
    def total(self) -> float:
        computed = self.products + self.attention + self.elementwise + self.host
        exchanged = self.tensor + self.context + self.expert + self.pipeline + self.data
        return computed + exchanged + self.bubble + self.optimizer


def estimate(resolved: ResolvedRecipe, plan: Plan) -> Expected | None:
    """Expected speed of a plan; none for `cpu` and for accelerators that are not in the table.

    Raises InvalidRecipeError when the model is not whole.
    """
    accelerator = hardware.of_profile(resolved.accelerator_type, resolved.profile)
    return expected(Workload.of(resolved, plan), accelerator) if accelerator else None


def expected(w: Workload, on: Accelerator) -> Expected:
    """Step time and what follows from it; MFU is against the peak of the precision that is trained in."""
    step = step_time(w, on)
    seconds = step.total
    tokens = w.seq_length * w.micro_batch * w.micro_batches * w.dp / w.world
    flops = tokens * flops_per_token(w.shape, w.seq_length, w.shape.padded_vocab(w.tp)) / seconds
    peak = on.fp8 if w.numerics.fp8 and on.fp8 else on.bf16
    return Expected(
        step_seconds=seconds,
        tokens_per_second_per_gpu=tokens / seconds,
        tflops_per_gpu=flops / 1e12,
        mfu=flops / peak,
        bubble=step.bubble / seconds,
    )


def step_time(w: Workload, on: Accelerator, constants: Calibration = FITTED) -> StepTime:
    """Seconds of one step on the slowest pipeline stage.

    A stage computes its `m` micro batches one after the other and waits (p - 1) / v micro batches, v being
    its interleaved chunks (arXiv:2104.04473, 2.2.2).
    """
    kernels, exchange = ComputeModel(w, on, constants), CommunicationModel(w, on, constants)
    stages = {
        stage: kernels.stage(stage) for stage in {0, w.pp - 1, w.stage_layers.index(max(w.stage_layers))}
    }
    slowest, compute = max(stages.items(), key=lambda item: item[1].total)
    dense, moe = kernels.layers(slowest)
    tensor = dense * exchange.tensor(moe=False) + moe * exchange.tensor(moe=True)
    context = (dense + moe) * exchange.context(compute.attention / (dense + moe)) if dense + moe else 0.0
    expert, pipeline = moe * exchange.expert(), exchange.pipeline()
    working = compute.total + tensor + context + expert + pipeline
    waiting = kernels.waiting(slowest, working)
    busy = working + waiting
    held = held_parameters(w, slowest)
    m = w.micro_batches
    # Interleaved chunks finish at different times: all but the last reduce behind the others' passes.
    behind = busy * (min(w.pp, m) if w.virtual > 1 else 1)
    return StepTime(
        products=m * compute.products,
        attention=m * compute.attention,
        elementwise=m * compute.elementwise,
        host=m * waiting,
        tensor=m * tensor,
        context=m * context,
        expert=m * expert,
        pipeline=m * pipeline,
        bubble=busy * (w.pp - 1) / w.virtual,
        data=exchange.data(held, forward=behind / 3, backward=behind * 2 / 3),
        optimizer=kernels.optimizer(held) + constants.step_seconds,
    )
