"""Estimates of attention that selects or compresses keys: DeepSeek sparse attention and DeepSeek-V4."""

from dataclasses import replace

import pytest
from megatron_operator import catalog
from megatron_operator.api.diagnostics import Diagnostics
from megatron_operator.api.errors import InvalidRecipeError
from megatron_operator.api.parallel_dims import ParallelDims
from megatron_operator.api.recipe import MegatronRecipeSpec
from megatron_operator.api.status import Plan
from megatron_operator.catalog import resolve
from megatron_operator.catalog.architecture import Architecture
from megatron_operator.cli.default_platform import default_platform
from megatron_operator.planner import admit, plan
from megatron_operator.planner.estimate import hardware
from megatron_operator.planner.estimate.attention_kinds import Compressed, Indexed
from megatron_operator.planner.estimate.layer_pattern import ratio_pattern
from megatron_operator.planner.estimate.memory import activations
from megatron_operator.planner.estimate.model_shape import ModelShape, model_shape
from megatron_operator.planner.estimate.parameters import allocated_parameters, flops_per_token, parameters
from megatron_operator.planner.estimate.sparse_parameters import attended
from megatron_operator.planner.estimate.step_time import expected, step_time
from megatron_operator.planner.estimate.uncertainty import spread, table
from megatron_operator.planner.estimate.workload import Execution, Numerics, Recomputation, Workload
from megatron_operator.planner.search.constraints import ConstraintContext, Layout, layout_errors

FUSED = Execution(fused_sparse_attention=True)


def architecture(recipe: str) -> Architecture:
    return catalog.load().get(recipe).model


def shape_of(model: Architecture) -> ModelShape:
    found = Diagnostics()
    shape = model_shape(model, found)
    assert shape is not None, found.errors
    return shape


def workload(recipe: str, seq_length: int = 4096, **dims: int) -> Workload:
    shape = shape_of(architecture(recipe))
    pp = dims.get("pp", 1)
    layers = [shape.layers // pp + (stage < shape.layers % pp) for stage in range(pp)]
    return Workload(
        shape=shape,
        dims=ParallelDims(**dims),
        seq_length=seq_length,
        micro_batch=1,
        micro_batches=16,
        stage_layers=tuple(layers),
        execution=FUSED,
    )


def accelerator(name: str) -> hardware.Accelerator:
    found = hardware.get(name)
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("recipe", "billions", "active"),
    [("deepseek-v4-flash", 284, 13.8), ("deepseek-v4-pro", 1573, 49.8), ("glm5.1", 744, 41.8)],
)
def test_parameters_are_those_of_the_model_card(recipe: str, billions: float, active: float) -> None:
    """arXiv:2606.19348 has 284 and 1,600 billion, of which 13 and 49 are active; zai-org/GLM-5 has 744."""
    shape = shape_of(architecture(recipe))
    assert parameters(shape, shape.vocab) / 1e9 == pytest.approx(billions, abs=0.5)
    assert parameters(shape, shape.vocab, active=True) / 1e9 == pytest.approx(active, abs=0.05)


def test_parameters_with_the_prediction_are_those_of_the_checkpoint() -> None:
    """Megatron-Bridge's model card of GLM-5.2 counts 753,329,940,480 elements, of which the expert biases of
    76 layers are no parameters."""
    shape = shape_of(architecture("glm5.2"))
    assert allocated_parameters(shape, shape.vocab) == 753_329_940_480 - 76 * 256


@pytest.mark.parametrize(("tflops", "tokens"), [(748, 8224), (706, 7776), (731.40, 8056.45)])
def test_operations_of_deepseek_v4_are_those_that_published_runs_log(tflops: float, tokens: float) -> None:
    """Megatron-Bridge's performance summary of container 26.08, and its model card of DeepSeek-V4-Flash."""
    shape = shape_of(architecture("deepseek-v4-flash"))
    counted = flops_per_token(shape, 4096, shape.padded_vocab(1))
    assert counted == pytest.approx(tflops * 1e12 / tokens, rel=2e-3)


def test_every_fourth_layer_of_glm_5_2_has_an_indexer() -> None:
    layers = [kind.attention for kind in shape_of(architecture("glm5.2")).kinds]
    own = [n for n, each in enumerate(layers) if isinstance(each, Indexed) and not each.shared]
    assert own == [0, 1, *range(2, 78, 4)]


def test_layers_of_deepseek_v4_have_their_ratios_and_its_prediction_a_window() -> None:
    shape = shape_of(architecture("deepseek-v4-flash"))
    ratios = [each.attention.ratio for each in shape.kinds if isinstance(each.attention, Compressed)]
    assert ratios == [0, 0, *[4, 128] * 20, 4]
    assert [each.attention.ratio for each in shape.mtp_kinds if isinstance(each.attention, Compressed)] == [0]


def test_a_query_attends_to_every_key_only_in_sequences_as_short_as_the_selection() -> None:
    kind = shape_of(architecture("glm5.1")).kinds[0].attention
    assert isinstance(kind, Indexed)
    assert attended(kind, 2048) == 1024
    assert attended(kind, 4096) == 1536
    assert 2000 < attended(kind, 131072) < 2048


def test_compressed_keys_are_added_to_those_of_the_window() -> None:
    sliding, _, selected, heavy = (
        each.attention for each in shape_of(architecture("deepseek-v4-flash")).kinds[:4]
    )
    assert isinstance(sliding, Compressed)
    assert isinstance(selected, Compressed)
    assert isinstance(heavy, Compressed)
    assert attended(sliding, 4096) == 128
    assert attended(selected, 4096) == 128 + 512 * (1 - 512 / 2048)
    assert attended(heavy, 4096) == 128 + 4096 / 128 / 2


def test_selected_keys_cost_less_than_all_in_long_sequences() -> None:
    on, w = accelerator("h100-sxm"), workload("glm5.1", 131072, cp=8, ep=32)
    every = replace(w, shape=replace(w.shape, kinds=tuple(replace(k, attention=None) for k in w.shape.kinds)))
    assert step_time(w, on).attention < step_time(every, on).attention / 2


def test_layers_without_an_indexer_of_their_own_are_faster() -> None:
    on = accelerator("h100-sxm")
    every, fourth = (step_time(workload(name, 32768, cp=8, ep=32), on) for name in ("glm5.1", "glm5.2"))
    assert fourth.attention < 0.9 * every.attention
    assert fourth.matmul < every.matmul


def test_unfused_sparse_attention_keeps_the_gathered_keys_and_takes_longer() -> None:
    fused = workload("deepseek-v4-flash", pp=4, ep=8)
    unfused = replace(fused, execution=Execution())
    gathered = 4 * 4096 * 512 * 512  # bytes of one layer that selects 512 keys of 512 elements
    assert activations(unfused, 0) - activations(fused, 0) > 4 * 5 * gathered
    on = accelerator("gb200")
    assert step_time(unfused, on).attention > 5 * step_time(fused, on).attention


def test_recomputed_streams_are_kept_for_one_micro_batch_at_a_time() -> None:
    w = workload("deepseek-v4-flash", pp=4, ep=8)
    recomputed = replace(w, recompute=Recomputation("selective", modules=frozenset({"mhc"})))
    streams, layers, in_flight = 2 * 4 * 4096 * 4096, 2 * 11, 4
    output = streams / 4
    saved = activations(w, 0) - activations(recomputed, 0)
    assert saved == pytest.approx(layers * (in_flight * (streams + output) - streams))


def test_stages_send_every_residual_stream() -> None:
    on, w = accelerator("gb200"), workload("deepseek-v4-flash", pp=4, ep=8)
    one = replace(w, shape=replace(w.shape, streams=1))
    assert step_time(w, on).pipeline == pytest.approx(4 * step_time(one, on).pipeline)


def test_context_parallel_ranks_exchange_the_one_key_of_all_heads() -> None:
    on = accelerator("h100-sxm")
    selected, w = (workload("glm5.2", 32768, cp=cp, ep=32) for cp in (8, 16))
    assert 0 < step_time(selected, on).context < step_time(w, on).context


def test_the_interval_covers_published_runs_and_is_wider_than_that_of_other_experts() -> None:
    """Megatron-Bridge's performance summary of container 26.08: 128 GPUs, EP 64, MXFP8, 2048 sequences."""
    run = Execution(
        fused_sparse_attention=True, fused_experts=True, graphs="full", deduplicated_dispatch=True
    )
    for name, tokens in (("gb200", 7776), ("gb300", 8224)):
        w = replace(
            workload("deepseek-v4-flash", dp=128, ep=64),
            numerics=Numerics(gradient=2, fp8=True, block_scaled=True),
            execution=run,
        )
        factor = spread(w, accelerator(name))
        predicted = expected(w, accelerator(name)).tokens_per_second_per_gpu
        assert predicted / factor < tokens < predicted * factor
        assert factor == pytest.approx(table()["moe"]["unmeasured"] ** 2)


@pytest.mark.parametrize("field", ["csa_window_size", "o_lora_rank", "q_lora_rank", "dsa_indexer_topk"])
def test_a_missing_size_is_named(field: str) -> None:
    found = Diagnostics()
    incomplete = architecture("deepseek-v4-flash").model_copy(update={field: None})
    assert model_shape(incomplete, found) is None
    alias = Architecture.model_fields[field].alias
    assert [error.field for error in found.errors] == [f"spec.model.{alias}"]


def test_an_invalid_list_of_ratios_is_named_with_the_ratios() -> None:
    found = Diagnostics()
    invalid = architecture("deepseek-v4-flash").model_copy(update={"csa_compress_ratios": "[0,8]*20"})
    assert model_shape(invalid, found) is None
    assert found.errors[0].field == "spec.model.csaCompressRatios"
    assert "no list of 0, 4, 128" in found.errors[0].message
    with pytest.raises(ValueError, match="lists 2 layers"):
        ratio_pattern("[4,128]", 3)


@pytest.mark.parametrize("size", ["tp", "cp"])
def test_attention_of_deepseek_v4_is_not_split(size: str) -> None:
    context = ConstraintContext(
        shape=shape_of(architecture("deepseek-v4-flash")),
        world=16,
        pod=8,
        nvlink_ranks=8,
        seq_length=4096,
        sequence_parallel=True,
        cp_comm_type=None,
        local_layers=False,
    )
    assert layout_errors(Layout(ParallelDims(dp=16, ep=8), None), context) == []
    split = layout_errors(Layout(ParallelDims(dp=8, ep=8, **{size: 2}), None), context)
    assert [error.message for error in split] == ["2 splits attention with csaCompressRatios"]


@pytest.mark.parametrize("name", ["deepseek_v4_flash_pretrain_64gpu_gb200_bf16_config", "deepseek-v4-flash"])
def test_what_deepseek_v4_has_beyond_megatrons_own_fields_is_not_rejected(name: str) -> None:
    asked = {"recipe": name, "accelerator": {"type": "gb200", "count": 64}, "data": {"mockData": True}}
    resolved = resolve(MegatronRecipeSpec.model_validate(asked), default_platform(), catalog.load())
    planned = plan(resolved)
    assert planned.memory_per_gpu is not None
    assert planned.expected is not None
    assert [note for note in planned.notes if "rejects" in note or "dropped" in note] == []


def planned_v4(count: int, accelerator_type: str, **parallelism: int) -> Plan:
    asked = {
        "recipe": "deepseek-v4-flash",
        "accelerator": {"type": accelerator_type, "count": count},
        "data": {"mockData": True},
        "parallelism": parallelism,
    }
    return plan(resolve(MegatronRecipeSpec.model_validate(asked), default_platform(), catalog.load()))


@pytest.mark.parametrize(("count", "on"), [(64, "h200-sxm"), (128, "b200"), (128, "gb200")])
def test_deepseek_v4_is_planned_without_virtual_stages_and_fused_kernels(count: int, on: str) -> None:
    """The trainer's layers have neither."""
    planned = planned_v4(count, on)
    assert planned.virtual_pipeline_model_parallel_size is None
    assert planned.recompute_granularity == "full"


def test_virtual_stages_are_not_proposed_for_layers_that_have_none() -> None:
    asked = {
        "recipe": "deepseek-v4-flash",
        "accelerator": {"type": "b300", "count": 96},
        "data": {"mockData": True},
        "init": {"modelFolder": "/checkpoints/model"},
    }
    run = admit("run", MegatronRecipeSpec.model_validate(asked), default_platform(), catalog.load())
    [bubble] = [each for each in run.warnings if "pipeline bubble" in each]
    assert bubble.endswith("of a step: a larger globalBatchSize would help")


def test_the_layers_that_choose_experts_by_token_ids_are_not_split() -> None:
    with pytest.raises(InvalidRecipeError, match="the first stage has 1 of the 3 layers that choose experts"):
        planned_v4(256, "h100-sxm", pipelineModelParallelSize=4, decoderFirstPipelineNumLayers=1)
