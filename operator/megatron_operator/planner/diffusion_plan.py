"""Recipes of diffusion models: sizes that Megatron-Bridge ignores, and what a plan's numbers count."""

from collections.abc import Iterator
from typing import Final

from megatron_operator.api.diagnostics import Diagnostics
from megatron_operator.api.parallel_dims import ParallelDims
from megatron_operator.api.status import Plan
from megatron_operator.catalog.resolved import ResolvedRecipe
from megatron_operator.planner.estimate.diffusion import UNUSED_SEQ_LENGTH, sample_tokens
from megatron_operator.planner.estimate.model_shape import model_shape

_IGNORED: Final = {
    "pipelineModelParallelSize": ("pp", "each pipeline stage would build all layers"),
    "contextParallelSize": ("cp", "no sequence would be split"),
}
"""Sizes that `Flux` of Megatron-Bridge 0.6.2 does not read, and what would happen instead."""
_ONE_STAGE: Final = "Megatron-Bridge computes a loss in every stage, whose noise is another one in each"
"""Of Wan (`WanFlowMatchingPipeline.step`), which ends with an error of shapes."""


def check(resolved: ResolvedRecipe, dims: ParallelDims, pod: int) -> None:
    """Raise InvalidRecipeError for sizes of the recipe that the model would ignore or cannot be split by.

    `pod` is the number of ranks of a pod.
    """
    spec, found = resolved.model.diffusion, Diagnostics()
    if spec is None:
        return
    _check_split(resolved, dims, pod, found)
    if spec.joint_layers is None:
        if dims.pp > 1:
            found.error(
                "spec.parallelism.pipelineModelParallelSize",
                f"{dims.pp}: {_ONE_STAGE}",
                "leave it out, and set tensorModelParallelSize or contextParallelSize instead",
            )
        if (
            resolved.is_set_by_user("training.seqLength")
            and resolved.training.seq_length == UNUSED_SEQ_LENGTH
        ):
            found.error(
                "spec.training.seqLength",
                f"{UNUSED_SEQ_LENGTH} stands for the size of the function's random data",
                "set another length, the most tokens that a sample may have, or leave it out",
            )
        found.raise_errors()
        return
    for field, (name, why) in _IGNORED.items():
        if getattr(dims, name) > 1:
            found.error(
                f"spec.parallelism.{field}",
                f"{getattr(dims, name)}: Megatron-Bridge does not split this model so, and {why}",
                "leave it out, and set tensorModelParallelSize instead",
            )
    if resolved.parallelism.recompute_granularity == "full":
        found.error(
            "spec.parallelism.recomputeGranularity",
            "full has no effect: Megatron-Bridge computes no layer of this model again",
            "set selective, or leave it out",
        )
    if resolved.is_set_by_user("training.seqLength"):
        found.error(
            "spec.training.seqLength",
            f"{resolved.training.seq_length} has no effect: sequences are as long as images and texts are",
            "leave it out",
        )
    found.raise_errors()


def _check_split(resolved: ResolvedRecipe, dims: ParallelDims, pod: int, found: Diagnostics) -> None:
    heads = resolved.model.num_attention_heads or 1
    at = "spec.parallelism."
    if heads % dims.tp:
        found.error(
            f"{at}tensorModelParallelSize", f"{dims.tp} does not divide the {heads} heads", "set a divisor"
        )
    if dims.tp > pod:
        found.error(
            f"{at}tensorModelParallelSize",
            f"{dims.tp} is above the {pod} GPUs of a pod",
            f"set at most {pod}",
        )
    if dims.vp > 1:
        found.error(
            f"{at}numVirtualStagesPerPipelineRank",
            f"{dims.vp}: diffusion models have no virtual stages",
            "leave it out",
        )
    if dims.ep > 1:
        found.error(f"{at}expertModelParallelSize", f"{dims.ep}: the model has no experts", "leave it out")


def notes(resolved: ResolvedRecipe, plan: Plan) -> Iterator[str]:
    """What a token is, how many a sample has, and the speed in samples or packed sequences."""
    shape = model_shape(resolved.model, Diagnostics())
    if shape is None or shape.diffusion is None:
        return
    own, asked = shape.diffusion, resolved.training.seq_length or 1
    tokens = sample_tokens(shape, asked)
    if own.joint:
        sample = f"{own.latent_tokens:,} tokens of latents and {own.text_tokens} of text"
    else:
        sample = f"{tokens:,} tokens of latents, which attend to {own.text_tokens} of text"
    if own.joint or asked == UNUSED_SEQ_LENGTH:
        unit, origin = "samples", f"the size of the function's random data, not seqLength {asked:,}"
    else:
        unit, origin = "sequences", "seqLength, the most that a sample may have"
    speed = ""
    if plan.expected is not None:
        each = plan.expected.tokens_per_second_per_gpu / tokens
        speed = f"; {each:.3g} {unit}/s per GPU"
    yield f"estimated for {unit} of {sample} ({origin}){speed}. Encoders of text and images are not counted"
