"""Plans, arguments and refusals of runs with Megatron FSDP."""

from pathlib import Path
from typing import Any

import pytest
from megatron_operator import catalog
from megatron_operator.api.errors import InvalidRecipeError
from megatron_operator.api.recipe import MegatronRecipeSpec
from megatron_operator.lifecycle.checkpoint_compatibility import checkpoint_contract, contract_violations
from megatron_operator.planner import megatron_arguments, plan
from megatron_operator.planner.estimate.full_sharding import PREFETCHED, REDUCED, FullSharding
from megatron_operator.planner.estimate.workload import Numerics

from tests.unit.planner.conftest import PLATFORM

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
        ("llama3-8b", {"parallelism": {"overlapGradReduce": False}}, "parallelism.overlapGradReduce"),
        ("llama3-8b", {"parallelism": {"overlapParamGather": False}}, "parallelism.overlapParamGather"),
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


def test_overlaps_that_are_off_on_cpus_are_no_error(resolve: Any) -> None:
    planned = plan(resolve("llama3-8b", 8, "cpu", parallelism=FSDP))
    assert (planned.use_megatron_fsdp, planned.overlap_grad_reduce) == (True, False)


def test_a_run_that_does_not_fit_is_not_advised_to_have_pipeline_stages(resolve: Any) -> None:
    with pytest.raises(InvalidRecipeError) as refused:
        plan(resolve("gpt3-175b", 64, parallelism=FSDP))
    [error] = refused.value.errors
    assert error.field == "spec.accelerator.count"
    assert error.fix == ("use 128 or more, or accelerators with more memory, or leave useMegatronFsdp out")


def test_long_sequences_are_not_advised_to_be_split_by_context_parallelism(resolve: Any) -> None:
    spec = {
        "model": {"maxPositionEmbeddings": 32768},
        "training": {"seqLength": 32768, "globalBatchSize": 64},
    }
    sharded = plan(resolve("llama3-8b", 64, parallelism=FSDP, **spec)).notes
    [note] = [each for each in sharded if each.startswith("sequences of 32768 on CP 1")]
    assert note.endswith(
        "tensorModelParallelSize splits them; contextParallelSize needs useMegatronFsdp left out"
    )


def test_settings_of_the_catalog_that_it_does_not_take_are_dropped_with_a_note(tmp_path: Path) -> None:
    (tmp_path / "own.yaml").write_text(
        "entries:\n"
        "  own:\n"
        "    extends: llama3-8b\n"
        "    description: ours\n"
        "    source: ours\n"
        "    training: {usePrecisionAwareOptimizer: true}\n"
        "    parallelism: {ddpBucketSize: 1000}\n"
    )
    entries = catalog.load(tmp_path)

    def words_and_notes(**parallelism: bool) -> tuple[list[str], list[str]]:
        asked = {
            "recipe": "own",
            "accelerator": {"type": "h100-sxm", "count": 64},
            "data": {"mockData": True},
        }
        spec = MegatronRecipeSpec.model_validate(asked | {"parallelism": parallelism})
        resolved = catalog.resolve(spec, PLATFORM, entries)
        planned = plan(resolved)
        return megatron_arguments(resolved, planned, "run"), planned.notes

    flags = {"--use-precision-aware-optimizer", "--ddp-bucket-size"}
    words, notes = words_and_notes(**FSDP)
    assert not flags & set(words)
    for path in ("training.usePrecisionAwareOptimizer", "parallelism.ddpBucketSize"):
        assert f"{path} of the catalog is dropped: it is not taken with parallelism.useMegatronFsdp" in notes
    assert flags <= set(words_and_notes()[0])


def test_one_data_parallel_rank_is_warned_of(resolve: Any) -> None:
    def warned(tensor_parallel: int) -> bool:
        parallelism = FSDP | {"tensorModelParallelSize": tensor_parallel}
        notes = plan(resolve("llama3-8b", 8, parallelism=parallelism)).notes
        return any("useMegatronFsdp with DP 1 shards nothing" in note for note in notes)

    assert warned(8)
    assert not warned(4)


def test_flags_of_fsdp_alone_are_warned_of_without_it(resolve: Any) -> None:
    args = {"data-parallel-sharding-strategy": "optim", "fsdp-double-buffer": True}
    notes = plan(resolve("llama3-8b", 64, megatronArgs=args)).notes
    for flag in args:
        assert f"megatronArgs.{flag} is for Megatron FSDP alone and has no effect on this run" in notes


def test_a_run_by_bridge_is_refused_once(resolve: Any) -> None:
    source = {"from": {"megatron": {"path": "/checkpoints/x"}}}
    with pytest.raises(InvalidRecipeError) as refused:
        plan(resolve("llama3-8b-sft", 8, parallelism=FSDP, init=source, data={"datasetRoot": "x"}))
    assert [error.field for error in refused.value.errors] == ["spec.parallelism.useMegatronFsdp"]
