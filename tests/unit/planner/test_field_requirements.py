"""Typed fields that Megatron refuses beside another one are refused with the field that the recipe sets."""

from typing import Any

import pytest
from megatron_operator.api.errors import InvalidRecipeError
from megatron_operator.planner import plan

from tests.unit.planner.conftest import Resolve

EXPERTS = ("mixtral-8x7b", 64, "h100-sxm")
GROUPS = ("deepseek-v3", 1024, "h100-sxm")
LATENT = ("deepseek-v2", 128, "h100-sxm")
LEARNED = ("gpt3-1.3b", 8, "a100-80")


def refused(resolve: Resolve, of: tuple[str, int, str], **spec: Any) -> list[str]:
    with pytest.raises(InvalidRecipeError) as invalid:
        plan(resolve(*of, **spec))
    return [str(error) for error in invalid.value.errors]


@pytest.mark.parametrize(
    ("of", "model", "field", "message", "fix"),
    [
        (EXPERTS, {"moeRouterTopk": 1}, "moeRouterTopk", "no gradient", "set moeRouterPreSoftmax: true"),
        (
            EXPERTS,
            {"moeRouterEnableExpertBias": True},
            "moeRouterEnableExpertBias",
            "moeRouterScoreFunction softmax",
            "set moeRouterScoreFunction: sigmoid",
        ),
        (
            GROUPS,
            {"moeRouterScoreFunction": "softmax"},
            "moeRouterScoreFunction",
            "moeRouterEnableExpertBias true",
            "set sigmoid",
        ),
        (GROUPS, {"moeRouterNumGroups": 2}, "moeRouterNumGroups", "4 is above", "set at least 4"),
        (GROUPS, {"moeRouterGroupTopk": 9}, "moeRouterGroupTopk", "9 is above", "set at most 8"),
        (GROUPS, {"moeRouterNumGroups": 7}, "moeRouterNumGroups", "7 does not divide", "a divisor of 256"),
        (GROUPS, {"numExperts": 252}, "numExperts", "8 does not divide", "set a multiple of 8"),
        (
            GROUPS,
            {"moeRouterNumGroups": 256},
            "moeRouterNumGroups",
            "2 experts of each of 4 groups, and moeRouterNumGroups 256 leaves 1 in one",
            "set at most 128",
        ),
        (
            LATENT,
            {"positionEmbeddingType": "yarn"},
            "positionEmbeddingType",
            "yarn with multiLatentAttention",
            "set positionEmbeddingType: rope and ropeType: yarn",
        ),
        (LEARNED, {"mtpNumLayers": 1}, "mtpNumLayers", "learned_absolute", "positionEmbeddingType: rope"),
        (
            GROUPS,
            {"positionEmbeddingType": "learned_absolute"},
            "positionEmbeddingType",
            "mtpNumLayers 1",
            "set rope",
        ),
    ],
)
def test_a_field_of_the_model_is_refused_with_what_it_excludes(
    resolve: Resolve,
    of: tuple[str, int, str],
    model: dict[str, Any],
    field: str,
    message: str,
    fix: str,
) -> None:
    found = refused(resolve, of, model=model)
    [error] = [each for each in found if each.startswith(f"spec.model.{field}: ")]
    assert message in error
    assert fix in error


@pytest.mark.parametrize(
    ("of", "model"),
    [
        (EXPERTS, {"moeRouterTopk": 1, "moeRouterPreSoftmax": True}),
        (EXPERTS, {"moeRouterTopk": 1, "moeRouterScoreFunction": "sigmoid"}),
        (EXPERTS, {"moeRouterEnableExpertBias": True, "moeRouterScoreFunction": "sigmoid"}),
        (LATENT, {"positionEmbeddingType": "rope", "ropeType": "yarn"}),
        (GROUPS, {"moeRouterNumGroups": 4}),
        (GROUPS, {"moeRouterNumGroups": 128}),
        (LEARNED, {"mtpNumLayers": 1, "positionEmbeddingType": "rope"}),
    ],
)
def test_the_fix_of_each_is_accepted(
    resolve: Resolve, of: tuple[str, int, str], model: dict[str, Any]
) -> None:
    assert plan(resolve(*of, model=model)).world_size == of[1]


@pytest.mark.parametrize("of", [EXPERTS, GROUPS, LEARNED])
@pytest.mark.parametrize("layers", ["local", "transformer_engine"])
def test_attention_of_no_layer_is_refused_with_the_kernel_instead(
    resolve: Resolve, of: tuple[str, int, str], layers: str
) -> None:
    training = {"attentionBackend": "local", "transformerImpl": layers}
    found = refused(resolve, of, training=training)
    [error] = [each for each in found if each.startswith("spec.training.attentionBackend: local")]
    assert ("; set unfused, or leave it out: " in error) is (layers == "transformer_engine")


@pytest.mark.parametrize("kernel", ["flash", "fused"])
def test_fused_attention_of_fp32_is_refused_with_the_kernels_instead(resolve: Resolve, kernel: str) -> None:
    training = {"attentionBackend": kernel, "bf16": False}
    found = refused(resolve, ("llama3-8b", 8, "h100-sxm"), training=training)
    assert any("has no such kernel for FP32 (bf16 false); set auto or unfused" in each for each in found)
    assert plan(resolve("llama3-8b", 8, training=training | {"attentionBackend": "auto"})).world_size == 8
    halves = {"attentionBackend": kernel, "fp16": True}
    assert plan(resolve("llama3-8b", 8, training=halves, image="own")).world_size == 8


def test_attention_of_a_specification_of_local_layers_is_accepted(resolve: Resolve) -> None:
    settings = {"training": {"attentionBackend": "local"}, "megatronArgs": {"spec": ["local", "layers"]}}
    assert plan(resolve("llama3-8b", 8, **settings)).world_size == 8


def test_an_image_of_ones_own_may_have_a_megatron_that_predicts_with_learned_positions(
    resolve: Resolve,
) -> None:
    own = resolve(*LEARNED, model={"mtpNumLayers": 1}, image="registry.local/megatron:next")
    assert plan(own).world_size == LEARNED[1]


def test_a_layout_of_two_chunks_is_planned_with_pipeline_stages(resolve: Resolve) -> None:
    layout = {"pipelineModelParallelLayout": "Et*16|t*16L"}
    made = plan(resolve("llama3-8b", 64, parallelism=layout))
    assert (made.pipeline_model_parallel_size, made.virtual_pipeline_model_parallel_size) == (2, None)
    assert not any("not None" in note for note in made.notes)
