"""Plans of diffusion models: what their numbers count, and sizes that Megatron-Bridge ignores."""

from dataclasses import replace

import pytest
from megatron_operator import catalog
from megatron_operator.api.diagnostics import Diagnostics
from megatron_operator.api.errors import InvalidRecipeError
from megatron_operator.api.parallel_dims import ParallelDims
from megatron_operator.planner import plan
from megatron_operator.planner.estimate import hardware, memory
from megatron_operator.planner.estimate.calibration import FITTED
from megatron_operator.planner.estimate.communication import CommunicationModel
from megatron_operator.planner.estimate.compute import ComputeModel
from megatron_operator.planner.estimate.diffusion import sample_tokens
from megatron_operator.planner.estimate.kept import layer_bytes
from megatron_operator.planner.estimate.layers import LayerKind
from megatron_operator.planner.estimate.model_shape import model_shape
from megatron_operator.planner.estimate.parameters import flops_per_token, parameters
from megatron_operator.planner.estimate.products import layer_products
from megatron_operator.planner.estimate.uncertainty import spread, table
from megatron_operator.planner.estimate.workload import Workload

from tests.unit.planner.test_bridge import resolved

JOINT, SINGLE, CROSS = (LayerKind(mixer, "dense") for mixer in ("joint", "single", "cross"))


def workload(recipe: str, **dims: int) -> Workload:
    shape = model_shape(catalog.load().get(recipe).model, Diagnostics())
    assert shape is not None
    return Workload(
        shape=shape,
        dims=ParallelDims(**dims),
        seq_length=sample_tokens(shape, 1024),
        micro_batch=1,
        micro_batches=2,
        stage_layers=(shape.layers,),
        sequence_parallel=False,
    )


@pytest.mark.parametrize(
    ("recipe", "count", "tokens", "unit"),
    [
        ("flux1-12b", 2, 4096 + 512, "samples"),
        ("wan2.1-14b", 8, 37440, "samples"),
        ("wan_1_3b_text2image_pretrain_1gpu_h100_bf16_config", 1, 4096, "sequences"),
        ("wan_1_3b_text2video_pretrain_4gpu_h100_bf16_config", 4, 43008, "sequences"),
    ],
)
def test_the_speed_counts_tokens_of_latents_and_is_given_in_samples(
    recipe: str, count: int, tokens: int, unit: str
) -> None:
    p = plan(resolved(recipe, count))
    assert p.expected is not None
    assert p.memory_per_gpu is not None
    assert p.expected.tokens_per_second_per_gpu == pytest.approx(
        p.global_batch_size * tokens / count / p.expected.step_seconds
    )
    each = f"{p.expected.tokens_per_second_per_gpu / tokens:.3g} {unit}/s per GPU"
    assert any(f"estimated for {unit} of" in note and each in note for note in p.notes)


def test_the_length_of_the_random_data_is_not_taken_from_the_field_that_the_function_ignores() -> None:
    (note,) = (note for note in plan(resolved("flux1-12b", 2)).notes if "estimated for samples" in note)
    assert "4,096 tokens of latents and 512 of text" in note
    assert "not seqLength 1,024" in note


@pytest.mark.parametrize("field", ["pipelineModelParallelSize", "contextParallelSize"])
def test_a_size_that_flux_ignores_is_refused(field: str) -> None:
    with pytest.raises(InvalidRecipeError) as refused:
        plan(resolved("flux1-12b", 8, parallelism={field: 2}))
    (error,) = refused.value.errors
    assert (error.field, error.message[:1]) == (f"spec.parallelism.{field}", "2")


def test_a_sequence_length_that_flux_ignores_is_refused() -> None:
    with pytest.raises(InvalidRecipeError) as refused:
        plan(resolved("flux1-12b", 2, training={"seqLength": 4096}))
    assert [error.field for error in refused.value.errors] == ["spec.training.seqLength"]
    assert plan(resolved("wan2.1-1.3b", 8, training={"seqLength": 4096})).expected is not None


@pytest.mark.parametrize(
    ("recipe", "count", "parallelism", "error"),
    [
        ("flux1-12b", 16, {"tensorModelParallelSize": 16}, "16 does not divide the 24 heads"),
        ("flux1-12b", 24, {"tensorModelParallelSize": 12}, "12 is above the 8 GPUs of a pod"),
        ("wan2.1-14b", 16, {"pipelineModelParallelSize": 2}, "2: Megatron-Bridge computes a loss in every"),
        ("flux1-12b", 8, {"expertModelParallelSize": 2}, "2: the model has no experts"),
    ],
)
def test_a_split_that_the_model_has_not_is_refused(
    recipe: str, count: int, parallelism: dict[str, int], error: str
) -> None:
    with pytest.raises(InvalidRecipeError, match=error):
        plan(resolved(recipe, count, parallelism=parallelism, training={"globalBatchSize": count}))


def test_the_length_that_stands_for_random_data_is_refused_where_it_is_asked_for() -> None:
    with pytest.raises(InvalidRecipeError, match="1024 stands for the size of the function's random data"):
        plan(resolved("wan2.1-14b", 8, training={"seqLength": 1024}))


def test_layers_of_flux_are_not_computed_again() -> None:
    with pytest.raises(InvalidRecipeError, match="full has no effect"):
        plan(resolved("flux1-12b", 2, parallelism={"recomputeGranularity": "full"}))


def test_other_counts_keep_the_sizes_of_the_function() -> None:
    p = plan(resolved("flux1-12b", 16))
    assert (p.tensor_model_parallel_size, p.data_parallel_size) == (2, 8)
    assert p.expected is not None


@pytest.mark.parametrize("recipe", ["flux1-12b", "wan2.1-1.3b"])
def test_a_rank_holds_all_parameters_and_half_of_those_that_tensor_parallelism_splits(recipe: str) -> None:
    whole, half = workload(recipe), workload(recipe, tp=2)
    held, halved = (sum(memory.held_parameters(w, 0)) for w in (whole, half))
    assert held == parameters(whole.shape, 0)
    assert 0.5 < halved / held < 0.53


@pytest.mark.parametrize(("recipe", "kind"), [("flux1-12b", SINGLE), ("wan2.1-14b", CROSS)])
def test_products_of_a_layer_are_those_of_its_flops(recipe: str, kind: LayerKind) -> None:
    """Without attention, embeddings, and what is done once for a sample."""
    w = workload(recipe)
    more = replace(w.shape, kinds=(*w.shape.kinds, kind))
    s, keys = w.seq_length, 0 if kind is SINGLE else 512
    counted = flops_per_token(more, s, 0) - flops_per_token(w.shape, s, 0)
    scores = 3 * 4 * (s + keys) * w.shape.hidden
    products = sum(2 * p.rows * p.inner * p.columns for p in layer_products(w, kind) if p.rows > 1)
    assert 3 * products / s == pytest.approx(counted - scores, rel=1e-6)


def test_a_joint_layer_has_weights_of_its_own_for_the_text() -> None:
    w = workload("flux1-12b")
    rows = {p.rows for p in layer_products(w, JOINT)}
    assert rows == {4096, 512, 1}


def test_every_query_attends_to_all_keys() -> None:
    on = hardware.get("h100-sxm")
    assert on is not None
    w = workload("flux1-12b")
    causal = replace(w, shape=replace(w.shape, diffusion=None, kinds=(LayerKind("attention", "dense"),)))
    one = replace(w, shape=replace(w.shape, kinds=(SINGLE,)))
    full, masked = (
        ComputeModel(replace(each, stage_layers=(1,)), on, FITTED).stage(0).attention
        for each in (one, causal)
    )
    assert full == pytest.approx(2 * masked)


def test_norms_over_all_heads_are_kept_whole_by_each_tensor_parallel_rank() -> None:
    w, split = workload("wan2.1-14b"), workload("wan2.1-14b", tp=4)
    divided = layer_bytes(replace(split, sequence_parallel=True), CROSS)
    assert divided > layer_bytes(w, CROSS) / 4
    assert divided < layer_bytes(split, CROSS)


def test_wan_also_gathers_the_heads_that_a_norm_reads() -> None:
    on = hardware.get("h100-sxm")
    assert on is not None
    w = workload("wan2.1-14b", tp=2)
    communication = CommunicationModel(w, on, FITTED)
    assert communication.tensor(CROSS) == pytest.approx(18 / 8 * communication.tensor(SINGLE))


def test_the_interval_is_that_of_the_least_known_models() -> None:
    on = hardware.get("h100-sxm")
    assert on is not None
    assert spread(workload("flux1-12b"), on) == max(max(factors.values()) for factors in table().values())
