"""Parameters and FLOPs of models that only Megatron-Bridge runs are those of Megatron's own layers."""

from types import SimpleNamespace
from typing import Any

import pytest
from cases import case, specs
from hybrid_model import parameters as built
from megatron.training.training import num_floating_point_operations
from megatron_operator import catalog
from megatron_operator.api.diagnostics import Diagnostics
from megatron_operator.catalog.architecture import Architecture
from megatron_operator.planner.estimate.model_shape import ModelShape, model_shape
from megatron_operator.planner.estimate.parameters import flops_per_token, parameters
from stages import Megatron

ENTRIES = {entry.name: entry.model for entry in catalog.load() if entry.modes[0] == "pretrain"}
HYBRID = [name for name, model in ENTRIES.items() if model.hybrid_layer_pattern]
DELTA = [name for name, model in ENTRIES.items() if model.linear_attention_freq]
SEQUENCE = 8192


def shape_of(model: Architecture) -> ModelShape:
    found = Diagnostics()
    shape = model_shape(model, found)
    assert shape is not None, found.errors
    return shape


def with_few_experts(model: Architecture) -> Architecture:
    """As many experts as a token uses: the others are like these, and thousands take minutes to build."""
    return model.model_copy(update={"num_experts": model.moe_router_topk}) if model.num_experts else model


def start(megatron: Megatron) -> None:
    """Make the process groups of one rank."""
    name = next(name for name, spec in specs().items() if spec.get("recipe") == "llama3-8b")
    words = case(name).words
    sizes = [word for word in words if word.endswith("-parallel-size")]
    kept = []
    skip = False
    for word in words:
        if skip:
            skip = False
        elif word in sizes or word == "--sequence-parallel":
            skip = word in sizes
        else:
            kept.append(word)
    megatron.start(kept, 1, keep_groups=True)


@pytest.mark.parametrize("name", HYBRID)
def test_parameters_of_a_hybrid_model_match_the_real_one(megatron: Megatron, name: str) -> None:
    """One layer of each kind that the pattern has, at full width."""
    model = with_few_experts(ENTRIES[name])
    pattern = "".join(symbol for symbol in "M*-E" if symbol in str(model.hybrid_layer_pattern))
    start(megatron)
    short = model.model_copy(update={"hybrid_layer_pattern": pattern, "num_layers": len(pattern)})
    shape = shape_of(short)
    assert parameters(shape, shape.vocab) == built(model, pattern)


@pytest.mark.parametrize("name", DELTA)
def test_parameters_of_a_model_with_delta_nets_match_the_real_one(megatron: Megatron, name: str) -> None:
    """Four layers: three with a gated delta net, one with gated attention."""
    model = with_few_experts(ENTRIES[name]).model_copy(update={"num_layers": 4, "mtp_num_layers": None})
    start(megatron)
    shape = shape_of(model.model_copy(update={"tower": None}))
    feed_forward = "E" if model.num_experts else "-"
    pattern = f"G{feed_forward}" * 3 + f"*{feed_forward}"
    assert parameters(shape, shape.vocab) == built(model, pattern)


def arguments(model: Architecture, shape: ModelShape) -> SimpleNamespace:
    """What Megatron's count of FLOPs reads."""
    m: Any = model
    return SimpleNamespace(
        seq_length=SEQUENCE,
        hidden_size=shape.hidden,
        ffn_hidden_size=shape.ffn,
        num_layers=shape.layers,
        num_attention_heads=shape.heads,
        group_query_attention=True,
        num_query_groups=shape.groups,
        kv_channels=shape.head_dim,
        swiglu=bool(m.swiglu),
        multi_latent_attention=False,
        attention_output_gate=bool(m.attention_output_gate),
        hybrid_layer_pattern=m.hybrid_layer_pattern,
        experimental_attention_variant="gated_delta_net" if m.linear_attention_freq else None,
        linear_attention_freq=[int(kind.mixer == "delta") for kind in (*shape.kinds, *shape.mtp_kinds)],
        linear_key_head_dim=m.linear_key_head_dim,
        linear_value_head_dim=m.linear_value_head_dim,
        linear_num_key_heads=m.linear_num_key_heads,
        linear_num_value_heads=m.linear_num_value_heads,
        linear_conv_kernel_dim=4,
        num_experts=m.num_experts,
        moe_layer_freq=1,
        moe_router_topk=m.moe_router_topk or 1,
        moe_ffn_hidden_size=m.moe_ffn_hidden_size,
        moe_shared_expert_intermediate_size=m.moe_shared_expert_intermediate_size,
        moe_latent_size=m.moe_latent_size,
        mamba_state_dim=m.mamba_state_dim or 128,
        mamba_head_dim=m.mamba_head_dim or 64,
        mamba_num_groups=m.mamba_num_groups or 8,
        mamba_num_heads=m.mamba_num_heads or 128,
        mtp_num_layers=shape.mtp_layers or None,
        padded_vocab_size=shape.padded_vocab(1),
    )


@pytest.mark.parametrize("name", HYBRID + DELTA)
def test_flops_match_megatrons_count(name: str) -> None:
    shape = shape_of(ENTRIES[name])
    args = arguments(ENTRIES[name], shape)
    per_token = num_floating_point_operations(args, 1) / SEQUENCE
    assert flops_per_token(shape, SEQUENCE, shape.padded_vocab(1)) == pytest.approx(per_token, rel=1e-12)
