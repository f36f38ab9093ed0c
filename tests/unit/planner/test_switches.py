"""Settings are proposed where the predicted gain is above its error, and the recipe leaves them open."""

from collections.abc import Mapping
from typing import Any

import pytest
from megatron_operator.planner import plan
from megatron_operator.planner.switches import Switch, least_gain, promising, together

OVERLAP = "parallelism.tpCommOverlap"
EXPERTS = "megatronArgs.overlap-moe-expert-parallel-comm"
GRAPHS = "megatronArgs.cuda-graph-impl"
FLEX = "model.moeTokenDispatcherType"


def proposed(resolved: Any) -> list[Mapping[str, Any]]:
    return [switch.settings for switch in promising(resolved, plan(resolved))]


def test_tensor_overlap_is_proposed_where_tensor_parallel_communication_takes_long(resolve: Any) -> None:
    assert {OVERLAP: True} in proposed(resolve("llama3-70b", 64))


@pytest.mark.parametrize(("accelerator", "tp"), [("l40s", 8), ("rtx-pro-6000", 8), ("h100-pcie", 4)])
def test_tensor_overlap_is_not_proposed_without_nvlink_between_the_ranks(
    resolve: Any, accelerator: str, tp: int
) -> None:
    resolved = resolve("llama3-8b", 16, accelerator, parallelism={"tensorModelParallelSize": tp})
    assert plan(resolved).sequence_parallel
    assert not any(OVERLAP in settings for settings in proposed(resolved))


def test_tensor_overlap_is_proposed_for_the_two_ranks_of_an_nvlink_bridge(resolve: Any) -> None:
    layout = {"tensorModelParallelSize": 2}
    assert {OVERLAP: True} in proposed(resolve("llama3-8b", 16, "h100-pcie", parallelism=layout))


def test_tensor_overlap_is_not_proposed_to_a_deterministic_run(resolve: Any) -> None:
    resolved = resolve("llama3-70b", 64, megatronArgs={"deterministic-mode": True})
    assert not any(OVERLAP in settings for settings in proposed(resolved))


@pytest.mark.parametrize("own", [True, False])
def test_what_the_recipe_sets_is_not_proposed(resolve: Any, own: bool) -> None:
    resolved = resolve("llama3-70b", 64, parallelism={"tpCommOverlap": own})
    assert not any(OVERLAP in settings for settings in proposed(resolved))


def test_on_a_published_layout_nothing_is_tried_for_a_gain_within_the_error(resolve: Any) -> None:
    """On 8 H100 the gradients of an 8B model take 1 % of a step."""
    resolved = resolve("llama3-8b", 8)
    assert resolved.layout is not None
    assert proposed(resolved) == []
    assert 0.02 < least_gain(plan(resolved)) < 0.1


def test_a_gain_means_less_where_less_was_measured(resolve: Any) -> None:
    measured, unmeasured = plan(resolve("qwen3-30b-a3b", 16)), plan(resolve("qwen3-30b-a3b", 16, "a100-80"))
    assert least_gain(measured) < least_gain(unmeasured)


def test_gradients_in_bf16_are_proposed_where_nothing_hides_their_reduction(resolve: Any) -> None:
    visible = {"overlapGradReduce": False, "overlapParamGather": False}
    short = {"globalBatchSize": 1024, "fp8Format": "hybrid"}
    resolved = resolve("llama3-8b", 1024, training=short, parallelism=visible)
    assert {"megatronArgs.grad-reduce-in-bf16": True} in proposed(resolved)


def test_gradients_in_bf16_are_not_proposed_to_a_run_in_fp16(resolve: Any) -> None:
    """Its gradients are in FP16."""
    long, sizes = {"seqLength": 32768}, {"maxPositionEmbeddings": 131072}
    for training, there in ((long, True), (long | {"bf16": False, "fp16": True}, False)):
        found = proposed(resolve("llama3.2-1b", 1, training=training, model=sizes))
        assert ({"megatronArgs.grad-reduce-in-bf16": True} in found) is there


def test_what_another_layout_may_need_is_tried_where_the_layout_is_open(resolve: Any) -> None:
    """The plan has stages without virtual ones, where experts' communication cannot overlap."""
    resolved = resolve("deepseek-v3", 2048)
    chosen = plan(resolved)
    assert chosen.pipeline_model_parallel_size > 1
    assert chosen.virtual_pipeline_model_parallel_size is None
    found = proposed(resolved)
    assert {EXPERTS: True} in found
    assert {"megatronArgs.grad-reduce-in-bf16": True} in found


def test_settings_are_combined_only_if_they_keep_the_numerics_and_need_nothing_more() -> None:
    keeps = [Switch({OVERLAP: True}, "a"), Switch({EXPERTS: True}), Switch({GRAPHS: "local"}, "b")]
    others = [Switch({"x": 1}, numerics=True), Switch({FLEX: "flex"}, ready=False)]
    combined = together([*keeps, *others])
    assert combined is not None
    assert combined.settings == {OVERLAP: True, EXPERTS: True, GRAPHS: "local"}
    assert combined.caveat == "a; b"
    assert together(keeps[:1]) is None


def test_of_two_settings_of_one_field_the_first_is_combined() -> None:
    whole, partial = ({GRAPHS: kind, "megatronArgs.te-rng-tracker": True} for kind in ("full", "partial"))
    combined = together([Switch(whole), Switch({OVERLAP: True}), Switch(partial)])
    assert combined is not None
    assert combined.settings == whole | {OVERLAP: True}


def test_only_gradients_and_moments_change_the_numerics(resolve: Any) -> None:
    resolved = resolve("qwen3-30b-a3b", 64)
    for switch in promising(resolved, plan(resolved)):
        smaller = any("bf16" in (path, value) or "in-bf16" in path for path, value in switch.settings.items())
        assert switch.numerics is smaller


def test_graphs_are_proposed_for_experts_that_wait_for_the_host(resolve: Any) -> None:
    found = proposed(resolve("qwen3-30b-a3b", 16, "gb200"))
    assert ["attn", "moe_router", "moe_preprocess"] in [
        x.get("megatronArgs.cuda-graph-modules") for x in found
    ]
    assert not any(GRAPHS in x for x in proposed(resolve("llama3-70b", 64)))


MXFP8 = {"fp8Format": "e4m3", "fp8Recipe": "mxfp8"}


def test_whole_iterations_are_captured_only_with_what_no_host_has_to_know(resolve: Any) -> None:
    """With alltoall, or experts without fixed buffers, the host copies token counts during a step."""
    found = proposed(resolve("qwen3-30b-a3b", 16, "gb200", training=MXFP8))
    [whole] = [settings for settings in found if settings.get(GRAPHS) == "full_iteration"]
    assert whole[FLEX] == "flex"
    assert whole["megatronArgs.moe-flex-dispatcher-backend"] == "hybridep"
    assert whole["megatronArgs.moe-expert-rank-capacity-factor"] == 1.5
    assert whole["megatronArgs.moe-paged-stash"]
    assert whole["megatronArgs.use-transformer-engine-op-fuser"]


@pytest.mark.parametrize("accelerator", ["gb200", "h100-sxm"])
def test_whole_iterations_are_not_captured_where_experts_cannot_be_fused(
    resolve: Any, accelerator: str
) -> None:
    found = proposed(resolve("qwen3-30b-a3b", 16, accelerator))
    assert not any(settings.get(GRAPHS) == "full_iteration" for settings in found)


def test_an_image_with_the_package_is_no_caveat(resolve: Any) -> None:
    resolved = resolve("qwen3-30b-a3b", 16, "gb200", training=MXFP8)
    profile = resolved.profile.model_copy(update={"image_has": ["hybridep"]})
    caveats = {
        has: [
            switch.caveat
            for switch in promising(found, plan(found))
            if switch.settings.get(GRAPHS) == "full_iteration"
        ]
        for has, found in (
            (False, resolved),
            (True, resolved.model_copy(update={"profile": profile})),
        )
    }
    assert "needs HybridEP" in caveats[False][0]
    assert "HybridEP" not in caveats[True][0]


def test_a_smaller_optimizer_is_tried_where_layers_are_recomputed(resolve: Any) -> None:
    found = {path for settings in proposed(resolve("llama3-70b", 16)) for path in settings}
    assert "training.usePrecisionAwareOptimizer" in found
    assert GRAPHS not in found


@pytest.mark.parametrize("accelerator", ["cpu", "unheard-of"])
def test_nothing_is_proposed_where_the_speed_is_unknown(resolve: Any, accelerator: str) -> None:
    assert proposed(resolve("tiny-gpt", 4, accelerator)) == []
