"""Flags that no field states: present on GPUs, off by one flag of the recipe, absent on platform cpu."""

from typing import Any

import pytest
from megatron_operator.planner import megatron_arguments, plan

FLAGS = (
    "--manual-gc",
    "--manual-gc-interval",
    "--cross-entropy-loss-fusion",
    "--cross-entropy-fusion-impl",
    "--ckpt-assume-constant-structure",
    "--ckpt-fully-parallel-load",
)
EXPERTS = ("--moe-permute-fusion", "--moe-router-fusion", "--moe-shared-expert-overlap")
MANY = "--disable-gloo-process-groups"


def words_of(resolved: Any) -> list[str]:
    return megatron_arguments(resolved, plan(resolved), "run")


@pytest.fixture
def mixture(resolve: Any) -> Any:
    """A small model with experts and shared experts, split over the accelerators."""

    def resolved(accelerator: str = "h100-sxm", shared: int = 512, **spec: Any) -> list[str]:
        model = {"numLayers": 8, "hiddenSize": 1024, "numAttentionHeads": 8, "vocabSize": 32000}
        model |= {"ffnHiddenSize": 2048, "numExperts": 8, "moeFfnHiddenSize": 512, "moeRouterTopk": 2}
        model |= {"moeGroupedGemm": True, "disableBiasLinear": True}
        model |= {"moeSharedExpertIntermediateSize": shared} if shared else {}
        training = {"seqLength": 1024, "globalBatchSize": 64, "lr": 1e-4, "trainIters": 100}
        sizes = {"tensorModelParallelSize": 1, "expertModelParallelSize": 4}
        settings = {"model": model, "training": training, "parallelism": sizes} | spec
        return words_of(resolve(None, 8, accelerator, **settings))

    return resolved


def test_a_run_on_gpus_has_all_of_them(resolve: Any) -> None:
    words = words_of(resolve("llama3-8b", 16))
    assert [flag for flag in FLAGS if flag not in words] == []
    assert words[words.index("--manual-gc-interval") + 1] == "100"
    assert words[words.index("--cross-entropy-fusion-impl") + 1] == "native"
    assert MANY not in words


def test_platform_cpu_has_none_of_them(resolve: Any) -> None:
    words = words_of(resolve("tiny-gpt", 2, "cpu"))
    assert [flag for flag in (*FLAGS, *EXPERTS, MANY) if flag in words] == []


@pytest.mark.parametrize(
    ("flag", "gone"),
    [
        ("manual-gc", FLAGS[:2]),
        ("cross-entropy-loss-fusion", FLAGS[2:4]),
        ("ckpt-assume-constant-structure", FLAGS[4:5]),
        ("ckpt-fully-parallel-load", FLAGS[5:6]),
    ],
)
def test_a_recipe_turns_each_off_by_its_flag(resolve: Any, flag: str, gone: tuple[str, ...]) -> None:
    words = words_of(resolve("llama3-8b", 16, megatronArgs={flag: False}))
    assert [name for name in FLAGS if name not in words] == list(gone)


def test_a_value_of_the_recipe_is_kept(resolve: Any) -> None:
    words = words_of(resolve("llama3-8b", 16, megatronArgs={"manual-gc-interval": 10}))
    assert words.count("--manual-gc-interval") == 1
    assert words[words.index("--manual-gc-interval") + 1] == "10"


def test_deterministic_runs_do_not_fuse_the_loss(resolve: Any) -> None:
    words = words_of(resolve("llama3-8b", 16, megatronArgs={"deterministic-mode": True}))
    assert "--cross-entropy-loss-fusion" not in words


def test_groups_over_gloo_are_left_out_above_2048_ranks(resolve: Any) -> None:
    sizes = {"parallelism": {"tensorModelParallelSize": 8}, "training": {"globalBatchSize": 4096}}
    assert MANY in words_of(resolve("llama3-8b", 4096, **sizes))
    assert MANY not in words_of(resolve("llama3-8b", 2048, **sizes))


def test_experts_on_hopper_have_fused_routing_and_overlapped_shared_experts(mixture: Any) -> None:
    words = mixture()
    assert [flag for flag in EXPERTS if flag not in words] == []
    assert EXPERTS[2] not in mixture(shared=0)


def test_experts_elsewhere_have_what_bridge_has_there(mixture: Any) -> None:
    assert [flag for flag in EXPERTS if flag in mixture("gb200")] == list(EXPERTS[:2])
    assert [flag for flag in EXPERTS if flag in mixture("a100-80")] == list(EXPERTS[:1])


def test_experts_with_biases_do_not_fuse_dropout(mixture: Any) -> None:
    """Transformer Engine's grouped experts cannot be made otherwise."""
    flag, sizes = "--no-bias-dropout-fusion", {"numLayers": 8, "hiddenSize": 1024, "numAttentionHeads": 8}
    sizes |= {"vocabSize": 32000, "numExperts": 8}
    assert flag in mixture(model=sizes | {"moeGroupedGemm": True})
    assert flag not in mixture(model=sizes | {"moeGroupedGemm": True, "disableBiasLinear": True})
    assert flag not in mixture(model=sizes)


def test_shared_experts_are_not_overlapped_twice(mixture: Any) -> None:
    assert EXPERTS[2] not in mixture(megatronArgs={"overlap-moe-expert-parallel-comm": True})


def test_large_runs_save_asynchronously_by_default(resolve: Any) -> None:
    assert "--async-save" in words_of(resolve("llama3-8b", 128))
    assert "--async-save" not in words_of(resolve("llama3-8b", 64))
    assert "--async-save" not in words_of(resolve("llama3-8b", 128, checkpoint={"asyncSave": False}))


def test_a_model_without_a_stated_precision_trains_in_bf16(resolve: Any) -> None:
    model = {"numLayers": 8, "hiddenSize": 1024, "numAttentionHeads": 8, "vocabSize": 32000}
    training = {"seqLength": 1024, "globalBatchSize": 64, "lr": 1e-4, "trainIters": 100}
    planned = {}
    for name, stated in (("none", {}), ("fp32", {"bf16": False}), ("fp16", {"fp16": True})):
        resolved = resolve(None, 8, model=model, training=training | stated)
        words, notes = words_of(resolved), plan(resolved).notes
        planned[name] = ("--bf16" in words, "--fp16" in words, any("BF16" in note for note in notes))
    assert planned == {
        "none": (True, False, True),
        "fp32": (False, False, False),
        "fp16": (False, True, False),
    }


def test_platform_cpu_keeps_fp32_where_no_precision_is_stated(resolve: Any) -> None:
    model = {"numLayers": 2, "hiddenSize": 64, "numAttentionHeads": 2, "vocabSize": 1000}
    training = {"seqLength": 64, "globalBatchSize": 8, "lr": 1e-4, "trainIters": 10}
    assert "--bf16" not in words_of(resolve(None, 2, "cpu", model=model, training=training))
