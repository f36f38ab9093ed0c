"""Settings without effect: refused where the recipe itself sets them, dropped with a note of the catalog."""

from typing import Any

import pytest
from megatron_operator.api.errors import InvalidRecipeError
from megatron_operator.planner import megatron_arguments, plan

from tests.unit.planner.conftest import Resolve

DENSE = ("llama3-8b", 8)
LATENT = ("deepseek-v2", 128)
EXPERTS = ("mixtral-8x7b", 64)
GROUPS = ("deepseek-v3", 1024)
SINKHORN = {"moeRouterLoadBalancingType": "sinkhorn"}
YARN = {"positionEmbeddingType": "yarn", "useRopeScaling": True, "ropeScalingFactor": 8}
SCALED = "positionEmbeddingType rope without multiLatentAttention"
OTHER_ATTENTION = "a model without multiLatentAttention"
OTHER_BALANCING = "a moeRouterLoadBalancingType other than sinkhorn"


@pytest.mark.parametrize(
    ("of", "spec", "field", "need"),
    [
        *(
            (EXPERTS, {"model": SINKHORN | {name: value}}, f"model.{name}", OTHER_BALANCING)
            for name, value in {
                "moeRouterScoreFunction": "sigmoid",
                "moeRouterPreSoftmax": True,
                "moeRouterNumGroups": 2,
                "moeRouterGroupTopk": 1,
                "moeRouterTopkScalingFactor": 2.5,
                "moeRouterEnableExpertBias": True,
                "moeRouterBiasUpdateRate": 0.01,
            }.items()
        ),
        (EXPERTS, {"model": {"moeRouterNumGroups": 2}}, "model.moeRouterNumGroups", "moeRouterGroupTopk"),
        (
            EXPERTS,
            {"model": {"moeRouterScoreFunction": "sigmoid", "moeRouterPreSoftmax": True}},
            "model.moeRouterPreSoftmax",
            "moeRouterScoreFunction softmax",
        ),
        (DENSE, {"model": YARN}, "model.useRopeScaling", SCALED),
        (DENSE, {"model": YARN}, "model.ropeScalingFactor", SCALED),
        (LATENT, {"model": {"useRopeScaling": True}}, "model.useRopeScaling", SCALED),
        (LATENT, {"model": {"kvChannels": 64}}, "model.kvChannels", OTHER_ATTENTION),
        (LATENT, {"model": {"addQkvBias": True}}, "model.addQkvBias", OTHER_ATTENTION),
        (LATENT, {"model": {"ropeType": "yarn", "rotaryPercent": 1}}, "model.rotaryPercent", "ropeType rope"),
        *(
            (
                DENSE,
                {"training": {"transformerImpl": "local", "attentionBackend": kernel}},
                "training.attentionBackend",
                "transformerImpl transformer_engine",
            )
            for kernel in ("flash", "fused", "unfused")
        ),
    ],
)
def test_a_setting_without_effect_is_refused_with_what_it_needs(
    resolve: Resolve, of: tuple[str, int], spec: dict[str, Any], field: str, need: str
) -> None:
    with pytest.raises(InvalidRecipeError) as invalid:
        plan(resolve(*of, **spec))
    [error] = [str(each) for each in invalid.value.errors if each.field == f"spec.{field}"]
    assert error.endswith(f" has no effect without {need}; set {need}, or leave it out")


def test_settings_of_the_catalog_that_sinkhorn_replaces_are_dropped_with_a_note(resolve: Resolve) -> None:
    resolved = resolve(*GROUPS, model=SINKHORN)
    planned = plan(resolved)
    note = f"model.moeRouterNumGroups 8 of the catalog is dropped: it has no effect without {OTHER_BALANCING}"
    assert note in planned.notes
    words = megatron_arguments(resolved, planned, "run")
    for name in ("score-function", "num-groups", "group-topk", "topk-scaling-factor", "enable-expert-bias"):
        assert f"--moe-router-{name}" not in words


def test_groups_of_the_catalog_that_sinkhorn_replaces_need_not_divide_the_experts(resolve: Resolve) -> None:
    assert plan(resolve(*GROUPS, model=SINKHORN | {"numExperts": 252})).world_size == GROUPS[1]


def test_latent_attention_keeps_a_width_that_megatron_requires_of_undivided_heads(resolve: Resolve) -> None:
    """2048 is no multiple of the 20 heads of GLM-4.7-Flash."""
    resolved = resolve("glm4.7-flash", 64, model={"kvChannels": 128})
    words = megatron_arguments(resolved, plan(resolved), "run")
    assert words[words.index("--kv-channels") + 1] == "128"


def test_latent_attention_rotates_a_part_of_its_positions_with_rope(resolve: Resolve) -> None:
    assert plan(resolve(*LATENT, model={"rotaryPercent": 0.5})).world_size == LATENT[1]


def test_the_kernel_of_attention_is_chosen_with_local_layers_too(resolve: Resolve) -> None:
    training = {"transformerImpl": "local", "attentionBackend": "auto"}
    assert plan(resolve(*DENSE, training=training, image="own")).world_size == DENSE[1]


def test_a_specification_of_layers_may_have_kernels_of_attention(resolve: Resolve) -> None:
    training = {"transformerImpl": "local", "attentionBackend": "flash"}
    spec = {"spec": ["own.layers", "layers"]}
    assert plan(resolve(*DENSE, training=training, megatronArgs=spec, image="own")).world_size == DENSE[1]
