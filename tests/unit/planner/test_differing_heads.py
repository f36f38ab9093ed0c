"""Estimates of models whose layers with a window have other heads than those without."""

from collections.abc import Callable
from dataclasses import replace

import pytest
from megatron_operator import catalog
from megatron_operator.api.diagnostics import Diagnostics
from megatron_operator.api.errors import InvalidRecipeError
from megatron_operator.api.parallel_dims import ParallelDims
from megatron_operator.catalog.resolved import ResolvedRecipe
from megatron_operator.planner import plan
from megatron_operator.planner.estimate import hardware
from megatron_operator.planner.estimate.attention_kinds import Heads
from megatron_operator.planner.estimate.calibration import FITTED
from megatron_operator.planner.estimate.communication import CommunicationModel
from megatron_operator.planner.estimate.compute import ComputeModel
from megatron_operator.planner.estimate.kept import layer_bytes
from megatron_operator.planner.estimate.layers import LayerKind
from megatron_operator.planner.estimate.memory import held_parameters, states
from megatron_operator.planner.estimate.model_shape import ModelShape, heads_of, model_shape
from megatron_operator.planner.estimate.parameters import allocated_parameters, parameters
from megatron_operator.planner.estimate.uncertainty import spread, table
from megatron_operator.planner.estimate.workload import Execution, Workload
from megatron_operator.planner.search.constraints import ConstraintContext, Layout, layout_errors


def shape_of(recipe: str) -> ModelShape:
    found = Diagnostics()
    shape = model_shape(catalog.load().get(recipe).model, found)
    assert shape is not None, found.errors
    return shape


def workload(recipe: str, seq_length: int = 4096, **dims: int) -> Workload:
    shape = shape_of(recipe)
    return Workload(
        shape=shape,
        dims=ParallelDims(**dims),
        seq_length=seq_length,
        micro_batch=1,
        micro_batches=4,
        stage_layers=(shape.layers,),
    )


def layers(recipe: str) -> tuple[LayerKind, LayerKind]:
    """A layer with a window and one without."""
    kinds = shape_of(recipe).kinds[3:]
    windowed = next(k for k in kinds if isinstance(k.attention, Heads) and k.attention.windowed)
    return windowed, next(k for k in kinds if isinstance(k.attention, Heads) and not k.attention.windowed)


def h100() -> hardware.Accelerator:
    found = hardware.get("h100-sxm")
    assert found is not None
    return found


def gates_of_their_width(shape: ModelShape) -> int:
    """What gates of the attention's width have more than those with one element a head."""
    every = [*shape.kinds, *shape.mtp_kinds * shape.mtp_layers]
    return sum(shape.hidden * heads_of(shape, kind).heads * (128 - 1) for kind in every)


def test_parameters_of_step_3_5_are_those_that_megatron_bridge_constructs() -> None:
    """Its model card of Step-3.5-Flash: 199,997,706,240 with the predictions, 33,525,780,480 on each of 8
    expert-parallel ranks, with gates of the attention's width; the trainer's have one element a head."""
    w = workload("step3.5-196b-a11b", dp=8, ep=8)
    gates = gates_of_their_width(w.shape)
    assert allocated_parameters(w.shape, w.shape.vocab) == 199_997_706_240 - gates
    assert sum(held_parameters(w, 0)) == 33_525_780_480 - gates


def test_every_fourth_layer_of_step_3_5_has_no_window_and_fewer_heads() -> None:
    shape = shape_of("step3.5-196b-a11b")
    assert [heads_of(shape, kind).heads for kind in shape.kinds] == [64, 96, 96, 96] * 11 + [64]
    (prediction,) = shape.mtp_kinds
    assert (heads_of(shape, prediction).heads, prediction.is_moe) == (96, False)


def test_a_window_makes_attention_faster_in_spite_of_more_heads() -> None:
    windowed, full = layers("step3.5-196b-a11b")
    compute = ComputeModel(workload("step3.5-196b-a11b", 32768, ep=8), h100(), FITTED)
    keys = 511 + 1 + 128
    ratio = keys * 96 / (16384 * 64)
    assert compute.attention(windowed) == pytest.approx(ratio * compute.attention(full))


def test_layers_with_more_heads_keep_more() -> None:
    windowed, full = layers("step3.5-196b-a11b")
    w = workload("step3.5-196b-a11b", ep=8)
    queries = 32 * 128
    # Queries and the attention's output before and behind its gate, and the input of the norm; and the gate.
    assert layer_bytes(w, windowed) - layer_bytes(w, full) == 4096 * 2 * (4 * queries + 32)


def test_a_group_of_queries_with_gates_of_heads_is_not_split() -> None:
    context = ConstraintContext(
        shape=shape_of("step3.5-196b-a11b"),
        world=32,
        pod=16,
        nvlink_ranks=16,
        seq_length=4096,
        sequence_parallel=True,
        cp_comm_type=None,
        local_layers=False,
    )
    errors = layout_errors(Layout(ParallelDims(tp=16, dp=2), None), context)
    assert "16 is no divisor of numQueryGroups 8" in [error.message for error in errors]
    assert not layout_errors(Layout(ParallelDims(tp=8, dp=4, etp=1), None), context)


def test_keys_of_a_wider_head_take_longer_around_the_ring() -> None:
    w = workload("step3.5-196b-a11b", cp=2, ep=8)
    _, full = layers("step3.5-196b-a11b")
    assert isinstance(full.attention, Heads)
    wider = replace(full, attention=replace(full.attention, head_dim=256))
    ring = CommunicationModel(w, h100(), FITTED)
    assert ring.context(wider, 0.0) == pytest.approx(2 * ring.context(full, 0.0))


def test_the_interval_is_that_of_models_that_were_not_measured() -> None:
    assert spread(workload("step3.5-196b-a11b", ep=8), h100()) == table()["moe"]["unmeasured"]


def test_parameters_of_step_3_5_are_those_of_the_model_card() -> None:
    """stepfun-ai/Step-3.5-Flash: 196 billion and 11 billion active."""
    shape = shape_of("step3.5-196b-a11b")
    assert parameters(shape, shape.vocab) / 1e9 == pytest.approx(197, abs=0.5)


def test_layers_of_gemma_4_without_a_window_have_wider_heads() -> None:
    shape = shape_of("gemma4-e4b")
    assert [heads_of(shape, kind).head_dim for kind in shape.kinds] == [256, 256, 256, 256, 256, 512] * 7


def test_embeddings_of_each_layer_are_in_the_first_stage() -> None:
    w = replace(workload("gemma4-e4b", pp=2), stage_layers=(21, 21))
    vocabulary = [held_parameters(w, stage)[2] for stage in (0, 1)]
    table = 262144 * 2560
    assert vocabulary == [table + 262144 * 42 * 256, table]


def test_gemma_4_with_embeddings_of_each_layer_has_one_stage() -> None:
    context = ConstraintContext(
        shape=shape_of("gemma4-e4b"),
        world=8,
        pod=8,
        nvlink_ranks=8,
        seq_length=4096,
        sequence_parallel=False,
        cp_comm_type=None,
        local_layers=True,
    )
    (error,) = layout_errors(Layout(ParallelDims(pp=2, dp=4), None), context)
    assert error.message == "2 splits a model with perLayerEmbeddingSize"


def test_dense_gemma_4_with_images_has_one_stage(resolve: Callable[..., ResolvedRecipe]) -> None:
    asked = {"pipelineModelParallelSize": 2}
    with pytest.raises(InvalidRecipeError) as refused:
        plan(resolve("gemma4-vl-31b-sft", 16, parallelism=asked))

    (error,) = refused.value.errors
    assert error.field == "spec.parallelism.pipelineModelParallelSize"
    assert error.message.startswith("2 splits a model that Megatron-Bridge builds in one pipeline stage")


def test_dense_gemma_4_with_images_keeps_its_sequences_whole(resolve: Callable[..., ResolvedRecipe]) -> None:
    assert not plan(resolve("gemma4-vl-31b-sft", 16)).sequence_parallel


def test_unfused_attention_computes_what_is_outside_of_the_window() -> None:
    w = replace(workload("gemma4-e4b", 8192), execution=Execution(unfused_attention=True))
    windowed, full = (ComputeModel(w, h100(), FITTED).attention(w.shape.kinds[n]) for n in (0, 5))
    assert full > windowed > 0.5 * full


def test_states_of_gemma_4_26b_are_those_of_a_published_run() -> None:
    """Megatron-Bridge's model card of gemma-4-26B-A4B: fine-tuning of all weights on 8 H100, TP 4 and EP 8,
    has 62.134 to 62.145 GiB allocated between steps."""
    w = workload("gemma4-vl-26b", tp=4, ep=8, dp=2)
    assert states(w, 0).total / 2**30 == pytest.approx(62.14, rel=0.03)
