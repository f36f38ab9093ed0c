"""Attention and residual streams of DeepSeek-V4, on a CPU."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from megatron_trainer.bridge.deepseek_v4_attention import (
    CompressedAttention,
    DeepseekV4Attention,
    frequencies,
    rotate,
)
from megatron_trainer.bridge.deepseek_v4_layers import HyperConnection

WINDOW, HEADS, WIDTH, HIDDEN = 8, 2, 16, 32


def config(**settings: Any) -> SimpleNamespace:
    """What the layers read of a model's configuration."""
    found = {
        **{"hidden_size": HIDDEN, "num_attention_heads": HEADS, "v_head_dim": WIDTH, "q_lora_rank": 24},
        **{"qk_pos_emb_head_dim": 4, "rotary_base": 10000.0, "csa_compress_rotary_base": 160000.0},
        **{"rotary_scaling_factor": 4.0, "original_max_position_embeddings": 32, "beta_fast": 32.0},
        **{"beta_slow": 1.0, "csa_window_size": WINDOW, "o_groups": 2, "o_lora_rank": 8},
        **{"dsa_indexer_n_heads": 2, "dsa_indexer_head_dim": 8, "dsa_indexer_topk": 2},
        **{"layernorm_epsilon": 1e-6, "params_dtype": torch.float32, "sequence_parallel": False},
        **{"perform_initialization": True, "init_method": _draw, "hc_eps": 1e-6},
        **{"num_residual_streams": 4, "mhc_sinkhorn_iterations": 20, "mhc_init_gating_factor": 0.01},
    }
    return SimpleNamespace(**found | settings)


def _draw(tensor: torch.Tensor) -> torch.Tensor:
    return torch.nn.init.normal_(tensor, std=0.2, generator=torch.Generator().manual_seed(tensor.numel()))


def draw(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("tokens", [1, 7, 8, 9, 16, 21])
def test_blocks_of_queries_have_the_attention_of_one_mask(tokens: int) -> None:
    attention = CompressedAttention(config(), rate=0)
    torch.nn.init.normal_(attention.attn_sink, generator=torch.Generator().manual_seed(3))
    queries, keys = draw(2, tokens, HEADS, WIDTH), draw(2, tokens, WIDTH) + 0.1

    found = attention(queries, keys, draw(2, tokens, HIDDEN), draw(2, tokens, 24), draw(tokens, 2))

    scores = torch.einsum("bqhd,bkd->bhqk", queries, keys) * WIDTH**-0.5
    position = torch.arange(tokens)
    distance = position[:, None] - position
    scores = scores.masked_fill((distance < 0) | (distance >= WINDOW), float("-inf"))
    sink = attention.attn_sink[None, :, None, None].expand(2, -1, tokens, 1)
    weights = torch.cat((scores, sink), dim=-1).softmax(dim=-1)[..., :-1]
    torch.testing.assert_close(found, torch.einsum("bhqk,bkd->bqhd", weights, keys))


@pytest.mark.parametrize("rate", [0, 4, 16])
def test_no_token_changes_the_output_before_it(rate: int) -> None:
    attention, hidden, changed = DeepseekV4Attention(config(), rate), draw(40, 1, HIDDEN), 21
    other = hidden.clone()
    other[changed:] += 1.0
    with torch.no_grad():
        before, after = attention(hidden), attention(other)
    torch.testing.assert_close(before[:changed], after[:changed])
    assert not torch.allclose(before[changed], after[changed])


@pytest.mark.parametrize(("rate", "reached"), [(0, False), (16, True)])
def test_entries_carry_what_is_behind_the_window(rate: int, reached: bool) -> None:
    attention, hidden = DeepseekV4Attention(config(), rate), draw(40, 1, HIDDEN)
    other = hidden.clone()
    other[0] += 1.0
    with torch.no_grad():
        before, after = attention(hidden), attention(other)
    assert torch.equal(before[-1], after[-1]) is not reached


def test_all_weights_of_a_sequence_that_is_shorter_than_an_entry_get_a_gradient() -> None:
    attention = DeepseekV4Attention(config(), rate=16)
    attention(draw(5, 1, HIDDEN)).sum().backward()
    assert [name for name, weight in attention.named_parameters() if weight.grad is None] == []


def test_the_weights_that_select_entries_are_not_trained() -> None:
    attention = DeepseekV4Attention(config(), rate=4)
    frozen = {name.split(".")[1] for name, weight in attention.named_parameters() if not weight.requires_grad}
    assert frozen == {"indexer"}
    attention(draw(40, 1, HIDDEN)).sum().backward()
    assert all(weight.grad is not None for weight in attention.parameters() if weight.requires_grad)


def test_a_rotation_is_undone_by_the_opposite_one() -> None:
    states, angles = draw(3, 5, WIDTH), draw(5, 2)
    torch.testing.assert_close(rotate(rotate(states, angles), -angles), states)
    assert torch.equal(rotate(states, angles)[..., :-4], states[..., :-4])


def test_long_waves_alone_are_interpolated() -> None:
    plain = frequencies(config(rotary_scaling_factor=1.0), compressed=True).tolist()
    scaled = frequencies(config(), compressed=True).tolist()
    assert scaled == pytest.approx([plain[0], plain[1] / 4.0])
    assert frequencies(config(), compressed=False).tolist() == pytest.approx([1.0, 0.01])


def test_streams_are_mixed_by_a_doubly_stochastic_matrix() -> None:
    connection = HyperConnection(config())
    torch.nn.init.normal_(connection.bias, generator=torch.Generator().manual_seed(2))
    torch.nn.init.ones_(connection.scale)
    read, weights, mix = connection(draw(6, 2, 4, HIDDEN))
    assert (read.shape, weights.shape) == ((6, 2, HIDDEN), (6, 2, 4))
    # The last of the iterations is over columns.
    for dimension, tolerance in ((-2, 1e-4), (-1, 0.02)):
        torch.testing.assert_close(mix.sum(dimension), torch.ones(6, 2, 4), atol=tolerance, rtol=0.0)
