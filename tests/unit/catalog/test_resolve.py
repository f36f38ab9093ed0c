from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from megatron_operator import catalog
from megatron_operator.api.errors import InvalidRecipeError
from megatron_operator.api.platform import AcceleratorProfile, PlatformConfig
from megatron_operator.api.recipe import MegatronRecipeSpec
from megatron_operator.catalog import ResolvedRecipe

Resolve = Callable[..., ResolvedRecipe]
Refusal = Callable[..., dict[str, str]]

FULL: dict[str, Any] = {
    "model": {"numLayers": 2, "hiddenSize": 64, "numAttentionHeads": 4, "vocabSize": 1000},
    "training": {"seqLength": 64, "lr": 1e-3, "globalBatchSize": 8, "trainIters": 10},
}


def test_the_recipe_overrides_the_layout_and_the_layout_the_entry(resolve: Resolve) -> None:
    resolved = resolve(recipe="small-1", training={"lr": 5e-4})
    assert resolved.training.lr == 5e-4
    assert resolved.training.micro_batch_size == 2
    assert resolved.model.num_layers == 4
    assert resolved.origins["training.lr"] == "recipe"
    assert resolved.origins["training.microBatchSize"] == "catalog small-1, layout 8 x h100-sxm"
    assert resolved.origins["model.numLayers"] == "catalog small-1"
    assert resolved.origins["training.evalInterval"] == "default"


def test_false_turns_a_catalog_setting_off(resolve: Resolve) -> None:
    assert (
        resolve(recipe="small-1", parallelism={"sequenceParallel": False}).parallelism.sequence_parallel
        is False
    )


def test_setting_one_recompute_field_replaces_the_layouts_recomputation(resolve: Resolve) -> None:
    parallelism = resolve(recipe="small-1", parallelism={"recomputeGranularity": "selective"}).parallelism
    assert parallelism.tensor_model_parallel_size == 2
    assert parallelism.recompute_granularity == "selective"
    assert parallelism.recompute_method is None
    assert parallelism.recompute_num_layers is None


def test_another_tokenizer_replaces_all_files_of_the_catalogs(resolve: Resolve) -> None:
    own = {"tokenizerType": "HuggingFaceTokenizer", "tokenizerModel": "/data/t"}
    data = {"volume": {"claimName": "c"}, "blend": [{"path": "a"}], "tokenizer": own}
    tokenizer = resolve(recipe="small-1", data=data).data.tokenizer
    assert tokenizer is not None
    assert tokenizer.wire() == own


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"accelerator": {"count": 16}}, "no published layout for 16 x h100-sxm (published: 8 x h100-sxm)"),
        (
            {"parallelism": {"pipelineModelParallelSize": 2}},
            "parallelism.pipelineModelParallelSize is 2",
        ),
        ({"model": {"numLayers": 8}}, "model.numLayers is 8, not 4"),
        ({"model": {"multiLatentAttention": True}}, "model.multiLatentAttention is True"),
        ({"training": {"seqLength": 64}}, "training.seqLength is 64, not 128"),
        (
            {"training": {"globalBatchSize": 12}},
            "globalBatchSize 12 is not a multiple of microBatchSize x DP = 8",
        ),
        (
            {"training": {"stepBatchSizeSchedule": "0:4 1M:64", "trainTokens": "1B"}},
            "batch 4 of stepBatchSizeSchedule is not a multiple of microBatchSize x DP = 8",
        ),
        ({"model": {"mtpNumLayers": 1}}, "model.mtpNumLayers is 1"),
    ],
)
def test_a_published_layout_is_not_used_when_the_recipe_changes_what_it_depends_on(
    resolve: Resolve, change: dict[str, Any], reason: str
) -> None:
    resolved = resolve(recipe="small-1", **change)
    assert resolved.training.micro_batch_size is None
    assert resolved.parallelism.tensor_model_parallel_size is None
    assert any(reason in note for note in resolved.notes)
    assert not any("None" in note for note in resolved.notes)


@pytest.mark.parametrize(
    "change",
    [
        {"parallelism": {"tensorModelParallelSize": 2, "pipelineModelParallelSize": 1}},
        {"model": {"numLayers": 4, "hiddenDropout": 0.1}},
        {"model": {"mtpNumLayers": 0, "swiglu": False}},
        {"training": {"globalBatchSize": 64}},
        {"training": {"stepBatchSizeSchedule": "0:16 1M:64", "trainTokens": "1B"}},
    ],
)
def test_unrelated_changes_keep_the_published_layout(resolve: Resolve, change: dict[str, Any]) -> None:
    resolved = resolve(recipe="small-1", **change)
    assert resolved.parallelism.tensor_model_parallel_size == 2
    assert any("layout for 8 x h100-sxm is used (a paper)" in note for note in resolved.notes)


@pytest.mark.parametrize(
    ("training", "used"),
    [
        ({"fp16": True}, True),
        ({"fp16": True, "bf16": False}, True),
        ({"bf16": True}, True),
        ({"bf16": False}, False),
        ({"fp16": False, "bf16": False}, False),
    ],
)
def test_a_published_layout_is_used_with_either_format_of_16_bits(
    platform: PlatformConfig, training: dict[str, bool], used: bool
) -> None:
    body = {"recipe": "llama3-70b", "accelerator": {"count": 64}, "data": {"mockData": True}}
    spec = MegatronRecipeSpec.model_validate(body | {"training": training})
    resolved = catalog.resolve(spec, platform, catalog.load())
    assert (resolved.layout is not None) is used


def test_a_recipe_without_a_catalog_entry_has_an_error_for_each_missing_field(refusal: Refusal) -> None:
    assert refusal().keys() == {
        "spec.model.numLayers",
        "spec.model.hiddenSize",
        "spec.model.numAttentionHeads",
        "spec.model.vocabSize",
        "spec.training.seqLength",
        "spec.training.lr",
        "spec.training.globalBatchSize",
        "spec.training.trainTokens",
    }


def test_a_recipe_of_engine_bridge_needs_functions(folder: Path, platform: PlatformConfig) -> None:
    own = "entries: {other: {extends: small-1, engine: bridge, description: d, source: s}}"
    (folder / "own.yaml").write_text(own)
    spec = MegatronRecipeSpec.model_validate(
        {"recipe": "other", "accelerator": {"count": 8}, "data": {"mockData": True}}
    )
    with pytest.raises(InvalidRecipeError, match="other has engine bridge, but no function"):
        catalog.resolve(spec, platform, catalog.load(folder))


def test_a_complete_recipe_needs_no_catalog_entry(resolve: Resolve) -> None:
    resolved = resolve(**FULL)
    assert resolved.recipe is None
    assert resolved.model.max_position_embeddings == 64
    assert resolved.data.split == "99,1,0"
    assert resolved.checkpoint.save_interval == 500


def test_sequences_longer_than_the_positions_are_refused(refusal: Refusal) -> None:
    line = refusal(recipe="small-1", training={"seqLength": 256})["spec.training.seqLength"]
    assert "256 is above model.maxPositionEmbeddings 128; set seqLength to at most 128" in line


def test_all_errors_are_reported_together(refusal: Refusal) -> None:
    found = refusal(recipe="nothing", accelerator={"type": "tpu", "count": 8})
    assert found.keys() == {"spec.recipe", "spec.accelerator.type"}


def test_an_unknown_accelerator_is_rejected_with_the_known_ones(refusal: Refusal) -> None:
    line = refusal(recipe="small-1", accelerator={"type": "x900", "count": 8})["spec.accelerator.type"]
    assert "no accelerator 'x900'; use one of: h100, laptop" in line


@pytest.mark.parametrize("hardware", ["h200", "h200-sxm"])
def test_a_published_layout_is_found_by_every_name_of_its_accelerator(hardware: str) -> None:
    platform = PlatformConfig(accelerators={"large": AcceleratorProfile(hardware=hardware)})
    asked = {"recipe": "llama3-8b", "accelerator": {"count": 8}, "data": {"mockData": True}}
    resolved = catalog.resolve(MegatronRecipeSpec.model_validate(asked), platform, catalog.load())
    assert resolved.parallelism.context_parallel_size == 2


def test_an_accelerator_is_found_by_its_alias(resolve: Resolve, platform: PlatformConfig) -> None:
    theirs = platform.model_copy(update={"accelerators": {"h200": AcceleratorProfile()}})
    resolved = resolve(recipe="small-1", platform=theirs, accelerator={"type": "h200-sxm", "count": 8})
    assert resolved.accelerator_type == "h200"


def test_the_only_accelerator_is_the_default(resolve: Resolve, platform: PlatformConfig) -> None:
    only = platform.model_copy(
        update={"accelerators": {"laptop": platform.accelerators["laptop"]}, "default_accelerator": None}
    )
    assert resolve(recipe="small-1", platform=only).accelerator_type == "laptop"


def test_several_accelerators_without_a_default_require_a_type(
    refusal: Refusal, platform: PlatformConfig
) -> None:
    line = refusal(recipe="small-1", platform=platform.model_copy(update={"default_accelerator": None}))
    assert "has no default (it has: h100, laptop); name one" in line["spec.accelerator.type"]


@pytest.mark.parametrize("accelerator", [{"count": 8}, {"type": "h100", "count": 8}])
def test_a_platform_without_accelerators_is_to_be_completed(
    refusal: Refusal, platform: PlatformConfig, accelerator: dict[str, Any]
) -> None:
    without = platform.model_copy(update={"accelerators": {}, "default_accelerator": None})
    line = refusal(recipe="small-1", platform=without, accelerator=accelerator)
    assert line["spec.accelerator.type"] == (
        "spec.accelerator.type: the platform has no accelerators; ask the platform's administrator to add"
        " profiles to the platform file"
    )


@pytest.mark.parametrize(
    ("limits", "messages"),
    [
        (
            {"team": {"maxAccelerators": 4}},
            {"spec.accelerator.count": "8 exceeds the limit of 4 for namespace team"},
        ),
        (
            {"*": {"acceleratorTypes": ["laptop"]}},
            {"spec.accelerator.type": "namespace team may not use h100; use"},
        ),
        ({"team": {}, "*": {"maxAccelerators": 1}}, {}),
        ({"other": {"maxAccelerators": 1}}, {}),
    ],
)
def test_limits_of_the_namespace_are_enforced(
    resolve: Resolve,
    refusal: Refusal,
    platform: PlatformConfig,
    limits: dict[str, Any],
    messages: dict[str, str],
) -> None:
    limited = PlatformConfig.model_validate(platform.wire() | {"namespaces": limits})
    if not messages:
        assert resolve(recipe="small-1", platform=limited, namespace="team").accelerator_count == 8
        return
    found = refusal(recipe="small-1", platform=limited, namespace="team")
    assert found.keys() == messages.keys()
    assert all(text in found[field] for field, text in messages.items())


def test_the_platform_fills_in_unset_fields(resolve: Resolve) -> None:
    resolved = resolve(
        recipe="small-1", data={"volume": {"size": "1Ti"}, "blend": [{"path": "a"}]}, env={"Y": "own"}
    )
    assert resolved.image == "registry/trainer:1"
    assert resolved.per_node == 8
    assert resolved.env == {"NCCL_X": "1", "Y": "own"}
    assert resolved.scheduling.wire() == {"queue": "research", "topology": ["rack"]}
    assert resolved.checkpoint.volume is not None
    assert resolved.checkpoint.volume.wire() == {"size": "3Ti", "storageClassName": "fast"}
    assert resolved.data.volume is not None
    assert resolved.data.volume.storage_class_name == "bulk"
    assert resolved.origins["checkpoint.volume"] == "platform"


def test_the_settings_of_a_volume_that_the_recipe_sets_are_its_own(resolve: Resolve) -> None:
    for volume, other in (({"size": "1Ti"}, "storageClassName"), ({"storageClassName": "own"}, "size")):
        resolved = resolve(recipe="small-1", checkpoint={"volume": volume})
        assert not resolved.is_set_by_user(f"checkpoint.volume.{other}")
        assert all(resolved.is_set_by_user(f"checkpoint.volume.{leaf}") for leaf in volume)


def test_an_existing_checkpoint_claim_gets_no_size_or_class(resolve: Resolve) -> None:
    volume = resolve(recipe="small-1", checkpoint={"volume": {"claimName": "mine"}}).checkpoint.volume
    assert volume is not None
    assert volume.wire() == {"claimName": "mine"}


@pytest.mark.parametrize(
    ("asked", "field"),
    [
        ({"training": {"fp8Format": "hybrid"}}, "spec.training.fp8Format"),
        ({"parallelism": {"tpCommOverlap": True}}, "spec.parallelism.tpCommOverlap"),
        ({"parallelism": {"contextParallelSize": 2}}, "spec.parallelism.contextParallelSize"),
        ({"model": {"moeTokenDispatcherType": "alltoall"}}, "spec.model.moeTokenDispatcherType"),
        ({"training": {"attentionBackend": "flash"}}, "spec.training.attentionBackend"),
    ],
)
def test_unsupported_settings_on_a_cpu_are_rejected_by_field(
    refusal: Refusal, asked: dict[str, Any], field: str
) -> None:
    assert list(refusal(recipe="small-1", accelerator={"type": "laptop", "count": 2}, **asked)) == [field]


def test_gpu_kernels_of_the_catalog_are_replaced_on_a_cpu_with_a_note(resolve: Resolve, small: Any) -> None:
    entry = small.get("small-1")
    small._entries["small-1"] = entry.model_copy(
        update={"model": entry.model.model_copy(update={"moe_grouped_gemm": True})}
    )
    resolved = resolve(recipe="small-1", accelerator={"type": "laptop", "count": 2})
    assert resolved.model.moe_grouped_gemm is None
    assert any("moeGroupedGemm True of the catalog is left out" in note for note in resolved.notes)


@pytest.mark.parametrize(
    ("allowed", "fix"),
    [
        ([], "leave it out, or ask the platform's administrator to add it to serviceAccounts"),
        (["b", "a"], "use one of: a, b, or ask the platform's administrator to add it to serviceAccounts"),
    ],
)
def test_a_service_account_that_the_platform_does_not_allow_is_refused(
    allowed: list[str], fix: str, refusal: Refusal, platform: PlatformConfig
) -> None:
    limited = PlatformConfig.model_validate(platform.wire() | {"serviceAccounts": allowed})
    found = refusal(recipe="small-1", platform=limited, serviceAccountName="admin")
    assert list(found.values()) == [f"spec.serviceAccountName: the platform does not allow 'admin'; {fix}"]


def test_a_service_account_of_the_platforms_list_is_used(resolve: Resolve, platform: PlatformConfig) -> None:
    limited = PlatformConfig.model_validate(platform.wire() | {"serviceAccounts": ["training"]})
    found = resolve(recipe="small-1", platform=limited, serviceAccountName="training")
    assert found.service_account_name == "training"


def test_a_queue_of_kueue_is_refused_where_the_platform_schedules_gangs(
    refusal: Refusal, platform: PlatformConfig
) -> None:
    gangs = PlatformConfig.model_validate(platform.wire() | {"gangScheduling": {"scheduler": "gangs"}})
    found = refusal(recipe="small-1", platform=gangs, scheduling={"queue": "research"})
    assert list(found.values()) == [
        "spec.scheduling.queue: 'research' is a queue of Kueue, but the platform's gangScheduling leaves "
        "gangs to gangs; leave it out, or ask the platform's administrator"
    ]


@pytest.mark.parametrize(
    ("platforms", "recipes", "expected"),
    [
        ({"queue": "research"}, {"workloadPriorityClassName": "high"}, "high"),
        ({"workloadPriorityClassName": "usual"}, {"queue": "research"}, "usual"),
        ({"queue": "research", "workloadPriorityClassName": "usual"}, {}, "usual"),
        (
            {"queue": "research", "workloadPriorityClassName": "usual"},
            {"workloadPriorityClassName": "high"},
            "high",
        ),
        ({"workloadPriorityClassName": "usual"}, {}, None),
    ],
    ids=["recipe's", "platform's", "platform's with its queue", "recipe's before platform's", "no queue"],
)
def test_a_run_in_a_queue_has_the_priority_class_of_the_recipe_or_the_platform(
    platforms: dict[str, str],
    recipes: dict[str, str],
    expected: str | None,
    resolve: Resolve,
    platform: PlatformConfig,
) -> None:
    other = PlatformConfig.model_validate(platform.wire() | {"queue": None} | platforms)
    found = resolve(recipe="small-1", platform=other, scheduling=recipes)
    assert found.scheduling.workload_priority_class_name == expected


def test_a_priority_in_a_queue_is_refused_without_a_queue(refusal: Refusal, platform: PlatformConfig) -> None:
    without = PlatformConfig.model_validate(platform.wire() | {"queue": None})
    found = refusal(recipe="small-1", platform=without, scheduling={"workloadPriorityClassName": "high"})
    assert list(found.values()) == [
        "spec.scheduling.workloadPriorityClassName: 'high' is a priority in a queue of Kueue, and the run "
        "has no queue; set scheduling.queue, or leave it out"
    ]


def test_the_gang_scheduling_of_the_platform_holds_for_every_recipe(
    resolve: Resolve, platform: PlatformConfig
) -> None:
    gangs = PlatformConfig.model_validate(platform.wire() | {"gangScheduling": {"scheduler": "gangs"}})
    assert resolve(recipe="small-1", platform=gangs).gang_scheduling.scheduler == "gangs"


def test_a_recipe_that_another_one_must_precede_is_in_the_notes(resolve: Resolve) -> None:
    volume = {"volume": {"claimName": "runs"}}
    resolved = resolve(recipe="small-1", init={"from": {"recipe": "first-half"}}, checkpoint=volume)
    assert "waits until recipe first-half has succeeded, and starts from its weights" in resolved.notes


def test_the_catalogs_name_of_a_model_comes_first_for_a_name_with_its_mode() -> None:
    with pytest.raises(InvalidRecipeError, match=r"did you mean gemma3-1b\?"):
        catalog.load().get("gemma3-1b-pretrain")


def test_a_claim_of_the_user_is_never_deleted_which_is_in_the_notes(resolve: Resolve) -> None:
    checkpoint = {"volume": {"claimName": "runs"}, "retainOnDelete": False}
    notes = resolve(recipe="small-1", checkpoint=checkpoint).notes
    assert [note for note in notes if "retainOnDelete is not used" in note]
