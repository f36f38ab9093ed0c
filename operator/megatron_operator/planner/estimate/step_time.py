"""Time of one training step by part: a closed formula of workload and accelerator.

The structure is that of Narayanan et al. 2021 (arXiv:2104.04473, section 3): the time of a micro batch in a
pipeline stage times the number of micro batches, plus the bubble, plus the part of data-parallel
communication that does not overlap. Matrix products follow a roofline with a start-up time, collectives the
bandwidth of the slowest link that they cross. `calibration.py` has the constants that data sheets lack.
"""

from dataclasses import dataclass

from megatron_operator.api.status import Expected, Plan
from megatron_operator.catalog.resolved import ResolvedRecipe
from megatron_operator.planner.estimate import hardware
from megatron_operator.planner.estimate.calibration import FITTED, Calibration
from megatron_operator.planner.estimate.communication import CommunicationModel
from megatron_operator.planner.estimate.compute import ComputeModel
from megatron_operator.planner.estimate.hardware import Accelerator
from megatron_operator.planner.estimate.memory import trained_parameters
from megatron_operator.planner.estimate.parameters import flops_per_token
from megatron_operator.planner.estimate.uncertainty import spread
from megatron_operator.planner.estimate.workload import Workload


@dataclass(frozen=True, slots=True)
class StepTime:
    """Seconds of one step by activity; communication without the part that overlaps computation."""

    matmul: float
    """Matrix products, including recomputed ones."""
    attention: float
    """Attention scores and values."""
    elementwise: float
    """Memory-bound kernels: norms, activations, residuals, permutations, casts."""
    host: float
    """Waiting for the host to launch kernels."""
    tensor: float
    """Tensor- and sequence-parallel communication."""
    context: float
    """Passing keys and values around the context-parallel ring."""
    expert: float
    """All-to-all of tokens to their experts and back."""
    pipeline: float
    """Sending activations between stages."""
    bubble: float
    """Waiting of a stage while the pipeline fills and drains."""
    data: float
    """Gradient reduction and parameter gathering."""
    optimizer: float
    """The optimizer's update, and the fixed cost of a step."""

    @property
    def total(self) -> float:
        """Seconds of the whole step."""
        computed = self.matmul + self.attention + self.elementwise + self.host
        communication = self.tensor + self.context + self.expert + self.pipeline + self.data
        return computed + communication + self.bubble + self.optimizer


def estimate(resolved: ResolvedRecipe, plan: Plan) -> Expected | None:
    """Expected speed of a plan; none for `cpu` and for accelerators that are not in the table.

    Raises InvalidRecipeError when the model is incomplete.
    """
    accelerator = hardware.of_profile(resolved.accelerator_type, resolved.profile, resolved.per_node)
    return expected(Workload.of(resolved, plan), accelerator) if accelerator else None


def expected(w: Workload, on: Accelerator) -> Expected:
    """Expected seconds per step, tokens per second and TFLOP/s of a GPU, MFU and bubble.

    MFU is the share of the peak of the training precision, for FP32 that of TF32 (arXiv:2204.02311,
    appendix B), with the model's FLOPs as Megatron counts them; the bubble is a share of the step.
    """
    step = step_time(w, on)
    seconds = step.total
    tokens = w.seq_length * w.micro_batch * w.micro_batches * w.dims.dp / w.dims.world_size
    flops = tokens * flops_per_token(w.shape, w.seq_length, w.shape.padded_vocab(w.dims.tp)) / seconds
    peak = on.fp8 if w.numerics.fp8 and on.fp8 else on.tf32 if w.numerics.in_fp32 else on.bf16
    factor = spread(w, on)
    return Expected(
        step_seconds=seconds,
        tokens_per_second_per_gpu=tokens / seconds,
        tokens_per_second_per_gpu_low=tokens / seconds / factor,
        tokens_per_second_per_gpu_high=tokens / seconds * factor,
        tflops_per_gpu=flops / 1e12,
        mfu=flops / peak,
        bubble=step.bubble / seconds,
    )


def step_time(w: Workload, on: Accelerator, constants: Calibration = FITTED) -> StepTime:
    """Seconds of one step on the slowest pipeline stage.

    A stage computes its m micro batches one after the other and waits for (p - 1) / v micro batches, where p
    is the number of stages and v that of virtual stages (arXiv:2104.04473, section 2.2.2).
    """
    compute, communication = ComputeModel(w, on, constants), CommunicationModel(w, on, constants)
    dims, longest = w.dims, w.stage_layers.index(max(w.stage_layers))
    stages = {stage: compute.stage(stage) for stage in {0, dims.pp - 1, longest}}
    slowest, kernels = max(stages.items(), key=lambda item: item[1].total)
    layers = compute.layers(slowest)
    moe = sum(count for kind, count in layers.items() if kind.is_moe)
    tensor = sum(count * communication.tensor(kind) for kind, count in layers.items())
    context = sum(
        count
        * (
            communication.context(kind, compute.attention(kind))
            + communication.heads(kind)
            + communication.gathered_keys(kind)
        )
        for kind, count in layers.items()
    )
    expert, pipeline = moe * communication.expert(), communication.pipeline()
    working = kernels.total + tensor + context + expert + pipeline
    waiting = compute.waiting(slowest, working)
    busy = working + waiting
    trained = trained_parameters(w, slowest)
    m = w.micro_batches
    # Interleaved chunks finish one after the other: all but the last reduce gradients during later passes.
    overlapped = busy * (min(dims.pp, m) if dims.vp > 1 else 1)
    return StepTime(
        matmul=m * kernels.matmul,
        attention=m * kernels.attention,
        elementwise=m * kernels.elementwise,
        host=m * waiting,
        tensor=m * tensor,
        context=m * context,
        expert=m * expert,
        pipeline=m * pipeline,
        bubble=busy * (dims.pp - 1) / dims.vp,
        data=communication.data(trained, forward=overlapped / 3, backward=overlapped * 2 / 3),
        optimizer=compute.optimizer(trained) + constants.step_seconds,
    )
