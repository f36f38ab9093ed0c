"""Estimates of models that are no GPT: hybrid layers, gated delta nets, towers."""

from dataclasses import replace

import pytest
from megatron_operator import catalog
from megatron_operator.api.diagnostics import Diagnostics
from megatron_operator.api.parallel_dims import ParallelDims
from megatron_operator.planner.estimate import hardware, memory
from megatron_operator.planner.estimate.calibration import FITTED
from megatron_operator.planner.estimate.communication import CommunicationModel
from megatron_operator.planner.estimate.compute import ComputeModel
from megatron_operator.planner.estimate.kept import layer_bytes, tower_bytes
from megatron_operator.planner.estimate.layers import DENSE, LayerKind, hybrid_layers
from megatron_operator.planner.estimate.model_shape import ModelShape, model_shape
from megatron_operator.planner.estimate.parameters import allocated_parameters, parameters
from megatron_operator.planner.estimate.products import tower_patches, tower_products
from megatron_operator.planner.estimate.step_time import step_time
from megatron_operator.planner.estimate.uncertainty import spread, table
from megatron_operator.planner.estimate.workload import Numerics, Workload

MAMBA, ATTENTION = LayerKind("mamba", None), LayerKind("attention", None)
FEED_FORWARD, EXPERTS = LayerKind(None, "dense"), LayerKind(None, "experts")


def shape_of(recipe: str) -> ModelShape:
    shape = model_shape(catalog.load().get(recipe).model, Diagnostics())
    assert shape is not None
    return shape


def workload(recipe: str, **dims: int) -> Workload:
    shape = shape_of(recipe)
    pp = dims.get("pp", 1)
    return Workload(
        shape=shape,
        dims=ParallelDims(**dims),
        seq_length=8192,
        micro_batch=1,
        micro_batches=4,
        stage_layers=(shape.layers // pp,) * pp,
    )


@pytest.mark.parametrize(
    ("recipe", "billions", "active"),
    [
        ("nemotron-h-8b", 8.1, 8.1),
        ("nemotron-h-56b", 56.3, 56.3),
        ("nemotron3-nano-30b-a3b", 31.6, 3.6),
        ("nemotron3-super-120b-a12b", 120.7, 12.8),
        ("nemotron3-ultra-550b-a55b", 549.3, 56.1),
        ("qwen3-next-80b-a3b", 79.7, 3.9),
    ],
)
def test_parameters_are_those_of_the_model_card(recipe: str, billions: float, active: float) -> None:
    shape = shape_of(recipe)
    assert parameters(shape, shape.vocab) / 1e9 == pytest.approx(billions, abs=0.05)
    assert parameters(shape, shape.vocab, active=True) / 1e9 == pytest.approx(active, abs=0.05)


def test_predictions_with_the_same_weights_are_held_once() -> None:
    shape = shape_of("nemotron3-super-120b-a12b")
    once = replace(shape, mtp_layers=1)
    own = replace(shape, mtp_repeated=False)
    assert shape.mtp_layers == 2
    assert allocated_parameters(shape, 131072) == allocated_parameters(once, 131072)
    assert allocated_parameters(own, 131072) > allocated_parameters(once, 131072)


def test_a_pattern_is_read_by_its_symbols() -> None:
    assert hybrid_layers("M-*E/*E/*E") == (
        (MAMBA, FEED_FORWARD, ATTENTION, EXPERTS),
        (ATTENTION, EXPERTS),
        2,
    )


@pytest.mark.parametrize("pattern", ["M*X", "M*/E/*E"])
def test_a_pattern_that_megatron_refuses_is_refused(pattern: str) -> None:
    with pytest.raises(ValueError, match=r"is not one of|differ"):
        hybrid_layers(pattern)


def test_every_layer_of_a_hybrid_model_is_on_one_stage() -> None:
    w = workload("nemotron-h-8b", pp=4)
    counts = [sum(stage[kind] for stage in w.kinds_of_stage) for kind in (MAMBA, ATTENTION, FEED_FORWARD)]
    assert counts == [24, 4, 24]
    whole = workload("nemotron-h-8b")
    held = sum(sum(memory.held_parameters(w, stage)) for stage in range(4))
    assert held == sum(memory.held_parameters(whole, 0))


def test_the_layers_of_a_hybrid_model_keep_what_both_parts_of_a_transformer_layer_keep() -> None:
    w = workload("nemotron-h-8b")
    both = layer_bytes(w, ATTENTION) + layer_bytes(w, FEED_FORWARD)
    assert both == layer_bytes(w, DENSE)


def test_tensor_parallelism_splits_what_a_mamba_layer_keeps() -> None:
    one, four = workload("nemotron-h-8b"), workload("nemotron-h-8b", tp=4)
    assert layer_bytes(one, MAMBA) == pytest.approx(4 * layer_bytes(four, MAMBA))


def test_latent_experts_exchange_and_compute_less() -> None:
    on = hardware.get("h100-sxm")
    assert on is not None
    w = workload("nemotron3-super-120b-a12b", ep=64, dp=64)
    wide = replace(w, shape=replace(w.shape, moe_latent=None))
    narrow, broad = (CommunicationModel(each, on, FITTED).expert() for each in (w, wide))
    assert broad == pytest.approx(4 * narrow)


def test_heads_of_a_mamba_layer_are_exchanged_over_context_parallel_ranks() -> None:
    on = hardware.get("h100-sxm")
    assert on is not None
    alone, split = (CommunicationModel(workload("nemotron-h-8b", cp=cp), on, FITTED) for cp in (1, 2))
    assert alone.heads(MAMBA) == 0
    assert split.heads(MAMBA) > 0
    assert split.heads(FEED_FORWARD) == 0


def test_a_tower_is_on_the_first_stage() -> None:
    on = hardware.get("h100-sxm")
    assert on is not None
    w = workload("qwen3-vl-8b", pp=2)
    without = replace(w, shape=replace(w.shape, towers=()))
    with_tower, plain = (ComputeModel(each, on, FITTED) for each in (w, without))
    assert with_tower.stage(0).total > plain.stage(0).total
    assert with_tower.stage(1) == plain.stage(1)
    (tower,) = w.shape.towers
    more = sum(memory.held_parameters(w, 0)) - sum(memory.held_parameters(without, 0))
    assert more == tower.parameters


@pytest.mark.parametrize(("recipe", "held"), [("qwen3-vl-8b", 0.25), ("qwen2.5-vl-7b", 1.0)])
def test_only_megatrons_own_towers_are_split_over_tensor_parallel_ranks(recipe: str, held: float) -> None:
    w = workload(recipe, tp=4)
    without = replace(w, shape=replace(w.shape, towers=()))
    more = sum(memory.held_parameters(w, 0)) - sum(memory.held_parameters(without, 0))
    (tower,) = w.shape.towers
    assert more == held * tower.parameters
    assert tower_bytes(w) == pytest.approx(held * tower_bytes(workload(recipe)))


def test_two_towers_share_the_encoded_tokens() -> None:
    w = workload("qwen3-omni-30b-a3b-sft")
    vision, sound = w.shape.towers
    # Half of 8192 tokens, half of these from each; four patches become a token of an image.
    assert (tower_patches(w, vision), tower_patches(w, sound)) == (4 * 2048, 2048)


def test_a_frozen_encoder_is_held_but_neither_trained_nor_kept() -> None:
    w = workload("nemotron3-nano-omni-30b-a3b-sft")
    frozen = sum(tower.parameters - tower.trained for tower in w.shape.towers)
    assert frozen == 1_262_491_136  # RADIO and Parakeet without their projectors
    assert sum(memory.held_parameters(w, 0)) - sum(memory.trained_parameters(w, 0)) == frozen
    assert tower_bytes(w) == 0
    trained = replace(w.shape, towers=tuple(replace(x, trained=x.parameters) for x in w.shape.towers))
    assert tower_bytes(replace(w, shape=trained)) > 0


def test_a_conformer_layer_has_a_second_feed_forward_part_and_a_convolution() -> None:
    w = workload("nemotron3-nano-omni-30b-a3b-sft")
    _, sound = w.shape.towers
    plain = replace(sound, conformer=False)
    more = len(tower_products(w, sound)) - len(tower_products(w, plain))
    assert more == 4
    assert sum(p.inner * p.columns for p in tower_products(w, sound)) == 1024 * (7 * 1024 + 4 * 4096)


@pytest.mark.parametrize("recipe", ["nemotron-h-8b", "gemma2-9b", "qwen3-vl-8b", "qwen3.5-9b"])
def test_the_interval_is_wider_for_parts_that_were_not_measured(recipe: str) -> None:
    on = hardware.get("h100-sxm")
    assert on is not None
    w = workload(recipe)
    kind = "hybrid" if w.shape.hybrid else "dense"
    measured = {factor for group, factor in table()[kind].items() if group != "unmeasured"}
    assert spread(w, on) == table()[kind]["unmeasured"] > max(measured)


def test_measured_hybrid_models_have_the_interval_of_their_errors() -> None:
    on = hardware.get("gb300-nvl72")
    assert on is not None
    w = replace(workload("nemotron3-nano-30b-a3b"), numerics=Numerics(fp8=True, block_scaled=True))
    assert spread(w, on) == table()["hybrid"]["mxfp8 on blackwell"]


def test_a_step_of_a_hybrid_model_needs_less_attention_than_one_of_a_transformer() -> None:
    on = hardware.get("h100-sxm")
    assert on is not None
    w = workload("nemotron-h-8b")
    every = replace(w, shape=replace(w.shape, kinds=(DENSE,) * w.shape.layers))
    assert step_time(every, on).attention == pytest.approx(52 / 4 * step_time(w, on).attention)
