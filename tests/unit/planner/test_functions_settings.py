"""A function's layout brings all that made it fast, and nothing that it does not have."""

import re
from typing import Any, get_args

import pytest
from megatron_operator import catalog
from megatron_operator.api.platform import DispatcherPackage, ImagePackage
from megatron_operator.api.recipe import MegatronRecipeSpec
from megatron_operator.catalog import performance_options
from megatron_operator.cli.default_platform import default_platform
from megatron_operator.planner import PlannedRun, admit

LIBRARY = catalog.load()
QWEN = ("qwen3_235b_a22b_pretrain_256gpu_gb200_fp8mx_config", "gb200", 256)


def run(
    name: str, accelerator: str, count: int, has: tuple[ImagePackage, ...] = (), **spec: Any
) -> PlannedRun:
    """A recipe of a function on an image that has these packages."""
    asked = {"recipe": name, "accelerator": {"type": accelerator, "count": count}} | spec
    asked["data"] = {"mockData": True}
    platform = default_platform()
    profiles = {
        known: profile.model_copy(update={"image_has": list(has)})
        for known, profile in platform.accelerators.items()
    }
    platform = platform.model_copy(update={"accelerators": profiles})
    return admit("run", MegatronRecipeSpec.model_validate(asked), platform, LIBRARY)


def test_the_arguments_have_the_functions_settings() -> None:
    words = " ".join(run(*QWEN).arguments)
    for flag in (
        "--overlap-moe-expert-parallel-comm",
        "--delay-wgrad-compute",
        "--grad-reduce-in-bf16",
        "--fp8-param-gather",
        "--reuse-grad-buf-for-mxfp8-param-ag",
    ):
        assert flag in words


def test_with_what_is_left_out_the_estimate_is_near_the_published_speed() -> None:
    plan = run(*QWEN).plan
    assert plan.expected is not None
    cost = next(
        float(found[1]) for note in plan.notes if (found := re.search(r"step ([\d.]+)% longer", note))
    )
    assert plan.expected.tokens_per_second_per_gpu * (1 + cost / 100) == pytest.approx(7280, rel=0.05)


def test_the_recipe_has_the_last_word() -> None:
    found = run(*QWEN, megatronArgs={"grad-reduce-in-bf16": False}, training={"fp8ParamGather": False})
    assert not {"--grad-reduce-in-bf16", "--fp8-param-gather"} & set(found.arguments)


def test_another_count_has_none_of_them() -> None:
    found = run(QWEN[0], "gb200", 512)
    assert not {"cuda-graph-impl", "grad-reduce-in-bf16"} & found.resolved.megatron_args.keys()
    assert found.resolved.model.moe_token_dispatcher_type == "alltoall"


@pytest.mark.parametrize(
    ("name", "accelerator", "count"),
    [
        ("llama31_405b_pretrain_1024gpu_h100_fp8cs_config", "h100-sxm", 1024),
        ("llama3_70b_pretrain_64gpu_gb300_fp8mx_config", "gb300", 64),
        ("llama31_405b_pretrain_256gpu_gb200_fp8mx_config", "gb200", 256),
        ("gpt_oss_120b_pretrain_64gpu_b200_bf16_config", "b200", 64),
    ],
)
def test_layers_are_recomputed_only_where_the_function_does(name: str, accelerator: str, count: int) -> None:
    function = LIBRARY.function(name)
    assert function is not None
    plan = run(name, accelerator, count).plan
    assert plan.recompute_granularity == function.parallelism.recompute_granularity
    assert plan.recompute_modules == function.parallelism.recompute_modules
    assert plan.tensor_model_parallel_size == function.parallelism.tensor_model_parallel_size


def test_what_is_left_out_is_named() -> None:
    notes = run("llama3_70b_pretrain_64gpu_gb300_bf16_config", "gb300", 64).plan.notes
    assert any("left out of llama3_70b" in note and "FSDP" in note for note in notes)


def test_no_function_has_user_buffers_of_nccl_which_the_projects_image_cannot_compile() -> None:
    """Also where the image has all packages of dispatchers."""
    with_them = {
        name
        for name in LIBRARY.functions()
        if (function := LIBRARY.function(name)) is not None
        and "use-nccl-ub" in (function.with_image(get_args(DispatcherPackage)).megatron_args or {})
    }
    assert with_them == set()
    found = run("gpt_oss_20b_pretrain_8gpu_b300_nvfp4_config", "b300", 8)
    assert "--use-nccl-ub" not in found.arguments
    assert any("NCCL's user buffers, whose allocator Megatron compiles" in note for note in found.plan.notes)


def test_flex_and_the_graphs_that_need_it_are_left_out_with_what_that_costs() -> None:
    found = run(*QWEN)
    assert "flex" not in found.arguments
    assert "--moe-flex-dispatcher-backend" not in found.arguments
    notes = [note for note in found.plan.notes if "left out of" in note]
    for words in ("hybridep", "whole iterations", "buffers of a fixed size"):
        assert any(words in note for note in notes)
    assert any("longer" in note and "%" in note for note in notes)


def test_without_flex_there_are_graphs_of_what_comes_before_the_exchange() -> None:
    words = " ".join(run(*QWEN).arguments)
    assert "--cuda-graph-impl transformer_engine" in words
    assert "--cuda-graph-modules moe_router moe_preprocess" in words
    whole = " ".join(run(*QWEN, has=("hybridep",)).arguments)
    assert "--cuda-graph-modules" not in whole, "Megatron refuses modules with graphs of the iteration"


def test_a_recipe_may_choose_graphs_without_modules() -> None:
    for args in (
        {"cuda-graph-impl": "none"},
        {"cuda-graph-impl": "full_iteration", "no-check-for-nan-in-loss-and-grad": True},
    ):
        found = run(*QWEN, megatronArgs=args)
        assert "--cuda-graph-modules" not in found.arguments


def test_router_padding_excludes_these_graphs() -> None:
    """`TransformerConfig` refuses moe_preprocess with it where the dispatcher is alltoall."""
    padded = run("qwen3_235b_a22b_pretrain_128gpu_gb200_fp8mx_paged_stash_dev_config", "gb200", 128)
    assert "--cuda-graph-modules" not in padded.arguments


def test_an_image_with_the_package_runs_the_function_as_published() -> None:
    found = run(*QWEN, has=("hybridep",))
    words = " ".join(found.arguments)
    for flags in (
        "--moe-token-dispatcher-type flex",
        "--moe-flex-dispatcher-backend hybridep --moe-flex-dispatcher-num-sms 32",
        "--cuda-graph-impl full_iteration",
        "--moe-expert-rank-capacity-factor 1.5",
        "--moe-paged-stash --moe-paged-stash-buffer-size-factor-cpu 1.0",
    ):
        assert flags in words
    assert not any("longer" in note for note in found.plan.notes)
    assert found.plan.expected is not None
    assert found.plan.expected.tokens_per_second_per_gpu == pytest.approx(7280, rel=0.05)


@pytest.mark.parametrize(
    ("has", "spec"),
    [
        (("deepep",), {}),
        (("hybridep",), {"model": {"moeTokenDispatcherType": "alltoall"}}),
        (("hybridep",), {"image": "registry.example/own:1"}),
    ],
    ids=["another package", "the recipe's own dispatcher", "the recipe's own image"],
)
def test_settings_of_the_package_are_left_out(has: tuple[ImagePackage, ...], spec: dict[str, Any]) -> None:
    found = run(*QWEN, has=has, **spec)
    words = " ".join(found.arguments)
    assert "flex" not in words
    assert "--moe-expert-rank-capacity-factor" not in words
    assert "full_iteration" not in words


def test_fused_experts_need_no_package() -> None:
    words = " ".join(run("gpt_oss_120b_pretrain_64gpu_gb200_fp8mx_config", "gb200", 64).arguments)
    assert "--use-transformer-engine-op-fuser" in words
    assert "--moe-mlp-glu-interleave-size 32" in words


def test_what_no_image_has_is_named_without_a_cost() -> None:
    found = run(*QWEN, has=("hybridep",))
    [note] = [note for note in found.plan.notes if "left out of" in note]
    assert note.endswith("attention in FP8, for which Megatron's parser has no flag")


@pytest.mark.parametrize("name", [name for name in LIBRARY.functions() if LIBRARY.function(name)])
def test_no_function_starts_with_a_dispatcher_that_the_image_lacks(name: str) -> None:
    function = LIBRARY.function(name)
    assert function is not None
    assert function.model is None or function.model.moe_token_dispatcher_type != "flex"
    assert "moe-flex-dispatcher-backend" not in (function.megatron_args or {})


def test_graphs_that_the_dispatcher_allows_are_kept() -> None:
    found = performance_options.settings([], {"flex": "hybridep", "graphs": "local:attn"}, "bf16")
    assert found.megatron_args["cuda-graph-modules"] == ["attn"]
    alone = performance_options.settings([], {"graphs": "full_iteration"}, "bf16")
    assert alone.megatron_args["cuda-graph-impl"] == "full_iteration"
    assert alone.left_out == []


def test_options_become_settings() -> None:
    options = {"graphs": "local:attn,mlp", "recompute": "full:uniform:1", "aware": "fp32,bf16,bf16"}
    found = performance_options.settings(["tp-overlap"], options, "bf16")
    assert options == {}
    assert found.parallelism == {
        "tpCommOverlap": True,
        "recomputeGranularity": "full",
        "recomputeMethod": "uniform",
        "recomputeNumLayers": 1,
    }
    assert found.megatron_args == {
        "exp-avg-dtype": "bf16",
        "exp-avg-sq-dtype": "bf16",
        "cuda-graph-impl": "local",
        "cuda-graph-modules": ["attn", "mlp"],
        "te-rng-tracker": True,
    }


DELAYED = ("deepseek_v3_pretrain_256gpu_gb200_fp8mx_config", "gb200", 256)


def test_a_delay_that_needs_apex_is_left_out_of_a_function() -> None:
    found = run(*DELAYED)
    assert "--delay-wgrad-compute" not in found.arguments
    assert "--overlap-moe-expert-parallel-comm" in found.arguments
    note = "delayed weight gradients, which need Apex in these CUDA graphs"
    assert f"left out of {DELAYED[0]}: {note}" in found.plan.notes


@pytest.mark.parametrize(
    "spec",
    [{"image": "registry.example/own:1"}, {"megatronArgs": {"cuda-graph-impl": "none"}}],
    ids=["own image", "no graphs"],
)
def test_a_function_keeps_a_delay_that_it_can_have(spec: dict[str, Any]) -> None:
    assert "--delay-wgrad-compute" in run(*DELAYED, **spec).arguments
