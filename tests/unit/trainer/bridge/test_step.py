"""Parts of Step's layers: rows of queries, keys, values and gates, bounds, and frequencies."""

import math
from types import SimpleNamespace

import pytest
import torch
from megatron_trainer.bridge import step
from megatron_trainer.bridge.step_layers import BoundedSwiGLU, frequencies

CONFIG = SimpleNamespace(num_attention_heads=6, num_query_groups=2, kv_channels=4)
LLAMA3 = {
    **{"rope_type": "llama3", "rope_theta": 5e6, "factor": 2.0, "low_freq_factor": 1.0},
    **{"high_freq_factor": 32.0, "original_max_position_embeddings": 131072},
}


def parts() -> list[torch.Tensor]:
    """Rows of queries, keys, values and gates, each with its number in all elements."""
    numbers = iter(range(1000))
    return [torch.tensor([[next(numbers)] * 3 for _ in range(rows)]) for rows in (24, 8, 8, 6)]


def test_rows_come_back_as_they_were() -> None:
    query, key, value, gate = parts()
    found = step.split(CONFIG, step.merge(CONFIG, query, key, value, gate))
    assert all(torch.equal(x, y) for x, y in zip(found, (query, key, value, gate), strict=True))


def test_each_half_of_the_rows_has_the_heads_and_the_gates_of_a_group() -> None:
    query, key, value, gate = parts()
    rows = step.merge(CONFIG, query, key, value, gate)
    first = torch.cat([query[:12], key[:4], value[:4], gate[:3]])
    assert torch.equal(rows[: len(rows) // 2], first)


def test_a_gate_is_bounded_behind_its_activation_and_the_other_half_on_both_sides() -> None:
    inputs = torch.tensor([[9.0, -9.0, 1.0, 8.0, -8.0, 0.5]])
    bounded = BoundedSwiGLU(2.0, config=None)(inputs)
    silu = [value / (1 + math.exp(-value)) for value in (9.0, -9.0, 1.0)]
    assert bounded[0].tolist() == pytest.approx([2.0 * 2.0, silu[1] * -2.0, silu[2] * 0.5])


def test_without_a_bound_a_gate_is_megatrons() -> None:
    inputs = torch.randn(3, 8, generator=torch.Generator().manual_seed(0))
    gate, other = inputs.chunk(2, dim=-1)
    assert torch.equal(BoundedSwiGLU(None, config=None)(inputs), torch.nn.functional.silu(gate) * other)


def test_a_part_of_a_head_is_rotated_by_the_base_of_its_layer() -> None:
    found = frequencies({"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.5}, 16)
    assert found.tolist() == pytest.approx([1e4 ** (-2 * i / 8) for i in range(4)])


def test_frequencies_of_llama3_are_halved_where_the_first_positions_are_less_than_a_turn() -> None:
    plain = frequencies(LLAMA3 | {"rope_type": "default"}, 128)
    scaled = frequencies(LLAMA3, 128)
    turns = 131072 * plain / (2 * math.pi)
    assert torch.equal(scaled[turns > 32], plain[turns > 32])
    assert torch.equal(scaled[turns < 1], plain[turns < 1] / 2)
    between = (turns > 1) & (turns < 32)
    assert between.any()
    assert bool(((scaled < plain) & (scaled > plain / 2))[between].all())
