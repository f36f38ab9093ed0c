"""Plans, arguments and refusals of runs with Megatron FSDP."""

from typing import Any

import pytest
from megatron_operator.api.errors import InvalidRecipeError
from megatron_operator.lifecycle.checkpoint_compatibility import checkpoint_contract, contract_violations
from megatron_operator.planner import megatron_arguments, plan
from megatron_operator.planner.estimate.full_sharding import PREFETCHED, REDUCED, FullSharding
from megatron_operator.planner.estimate.workload import Numerics

FSDP: dict[str, Any] = {"useMegatronFsdp": True}
ELASTIC = {"elastic": {"minCount": 32}}


def test_a_run_has_neither_pipeline_stages_nor_split_sequences(resolve: Any) -> None:
    planned = plan(resolve("llama3-70b", 64, parallelism=FSDP))
    assert planned.use_megatron_fsdp is True
    assert planned.pipeline_model_parallel_size == planned.context_parallel_size == 1


def test_a_run_without_it_has_no_such_field(resolve: Any) -> None:
    assert "useMegatronFsdp" not in plan(resolve("llama3-8b", 64)).wire()


def test_its_checkpoints_are_in_its_format_and_saved_while_the_run_waits(resolve: Any) -> None:
    resolved = resolve("llama3-8b", 128, parallelism=FSDP, recovery=ELASTIC)
    words = megatron_arguments(resolved, plan(resolved), "run")
    assert words[words.index("--ckpt-format") + 1] == "fsdp_dtensor"
    assert {"--use-megatron-fsdp", "--use-distributed-optimizer"} <= set(words)
    assert not {"--async-save", "--dist-ckpt-optim-fully-reshardable"} & set(words)
    assert "--async-save" in megatron_arguments(*_plain("llama3-8b", 128, resolve), "run")


def _plain(recipe: str, count: int, resolve: Any) -> tuple[Any, Any]:
    resolved = resolve(recipe, count)
    return resolved, plan(resolved)


def test_each_rank_holds_its_part_and_what_is_gathered() -> None:
    layer = 2e8
    of = FullSharding(Numerics(), parameters=40 * layer, outside=1e9, unit=layer, ranks=64)
    part = 9e9 / 64
    assert of.weights == 2 * (part + 1e9 + layer + PREFETCHED + layer)
    assert of.gradients == 4 * (part + layer + REDUCED)
    assert of.optimizer == 12 * part
    assert of.before_sharding == 2 * 9e9


def test_no_more_is_gathered_than_there_is() -> None:
    of = FullSharding(Numerics(), parameters=4e8, outside=1e8, unit=1e8, ranks=8)
    assert of.weights == 2 * (5e8 / 8 + 5e8)
    assert of.gradients == 4 * (5e8 / 8 + 5e8)


def test_a_model_in_fp32_has_its_weights_twice() -> None:
    of = FullSharding(
        Numerics(weight=4, optimizer=8, gathered_weight=4), parameters=8e8, outside=0, unit=1e8, ranks=8
    )
    assert of.optimizer == (8 + 4) * 1e8


def test_a_model_is_built_whole_on_every_gpu(resolve: Any) -> None:
    """70B at TP 1 is 141 GB in BF16 before it is sharded, however many GPUs there are."""
    with pytest.raises(InvalidRecipeError, match=r"tensorModelParallelSize: .* needs 13"):
        plan(resolve("llama3-70b", 512, parallelism=FSDP | {"tensorModelParallelSize": 1}))


def test_weights_and_gradients_need_less_memory_than_without(resolve: Any) -> None:
    layout = {"tensorModelParallelSize": 1, "contextParallelSize": 1, "pipelineModelParallelSize": 1}
    plain = plan(resolve("llama3-8b", 64, parallelism=layout)).memory_per_gpu
    sharded = plan(resolve("llama3-8b", 64, parallelism=layout | FSDP)).memory_per_gpu
    assert sharded.weights < plain.weights
    assert sharded.gradients < plain.gradients


def test_weights_are_gathered_for_every_micro_batch(resolve: Any) -> None:
    def seconds(batch: int, **parallelism: Any) -> float:
        planned = plan(
            resolve(
                "llama3-8b",
                64,
                parallelism={"tensorModelParallelSize": 1, "contextParallelSize": 1} | parallelism,
                training={"globalBatchSize": batch, "microBatchSize": 1},
            )
        )
        return next(each.seconds for each in planned.communication if each.group == "DP")

    assert seconds(256, **FSDP) == pytest.approx(4 * seconds(64, **FSDP))
    assert seconds(256) == pytest.approx(seconds(64))
    assert seconds(64, **FSDP) > seconds(64)


@pytest.mark.parametrize(
    ("recipe", "change", "field"),
    [
        ("mixtral-8x7b", {}, "parallelism.useMegatronFsdp"),
        ("deepseek-v2-lite", {}, "parallelism.useMegatronFsdp"),
        ("llama3-8b", {"checkpoint": {"asyncSave": True}}, "checkpoint.asyncSave"),
        (
            "llama3-8b",
            {"accelerator": 8, "checkpoint": {"local": {"sizeLimit": "1Ti", "saveInterval": 5}}},
            "checkpoint.local",
        ),
        ("llama3-8b", {"training": {"bf16": False}}, "training.bf16"),
        ("llama3-8b", {"training": {"fp8Format": "hybrid"}}, "parallelism.useMegatronFsdp"),
        ("gpt3-7b", {"training": {"bf16": False, "fp16": True}}, "parallelism.useMegatronFsdp"),
        (
            "llama3-8b",
            {"training": {"accumulateAllreduceGradsInFp32": False}},
            "training.accumulateAllreduceGradsInFp32",
        ),
        (
            "llama3-8b",
            {"training": {"usePrecisionAwareOptimizer": True}},
            "training.usePrecisionAwareOptimizer",
        ),
        ("llama3-8b", {"training": {"optimizer": "sgd"}}, "training.optimizer"),
        ("llama3-8b", {"init": {"from": {"megatron": {"path": "/checkpoints/x"}}}}, "init.from"),
        ("llama3-8b", {"parallelism": {"ddpBucketSize": 1000}}, "parallelism.ddpBucketSize"),
        (
            "llama3-8b",
            {"megatronArgs": {"data-parallel-sharding-strategy": "optim"}},
            "megatronArgs.data-parallel-sharding-strategy",
        ),
        ("llama3-8b", {"megatronArgs": {"use-megatron-fsdp": True}}, "megatronArgs.use-megatron-fsdp"),
    ],
)
def test_what_was_not_resumed_with_it_is_refused_by_its_name(
    resolve: Any, recipe: str, change: dict[str, Any], field: str
) -> None:
    count = change.pop("accelerator", 64)
    parallelism = change.pop("parallelism", {}) | FSDP
    with pytest.raises(InvalidRecipeError) as refused:
        plan(resolve(recipe, count, parallelism=parallelism, **change))
    assert f"spec.{field}" in {error.field for error in refused.value.errors}


def test_gpt_in_fp32_is_taken(resolve: Any) -> None:
    assert plan(resolve("gpt3-7b", 64, training={"bf16": False}, parallelism=FSDP)).use_megatron_fsdp


def test_a_run_keeps_the_format_of_its_checkpoints(resolve: Any) -> None:
    def contract(**parallelism: Any) -> dict[str, str]:
        resolved = resolve("llama3-8b", 64, parallelism={"tensorModelParallelSize": 1} | parallelism)
        planned = plan(resolved)
        return checkpoint_contract(resolved, planned, megatron_arguments(resolved, planned, "run"))

    sharded, plain = contract(**FSDP), contract()
    assert [error.field for error in contract_violations(sharded, plain, 100)] == [
        "spec.parallelism.useMegatronFsdp"
    ]
    assert [error.field for error in contract_violations(plain, sharded, 100)] == [
        "spec.parallelism.useMegatronFsdp"
    ]
    wider = contract(**FSDP | {"tensorModelParallelSize": 2})
    assert contract_violations(sharded, wider, 100) == [], "its checkpoints load in another layout"
