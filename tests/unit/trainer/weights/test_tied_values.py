"""Rows of values that a layer does not use are exported as its keys are."""

from types import SimpleNamespace

import pytest
import torch
from megatron_trainer.weights import tied_values

NAME = "decoder.layers.5.self_attention"
WIDTH, GROUPS, HIDDEN = 2, 2, 3


class Model:
    """A layer whose values are its keys, and one with values of its own; two heads of queries a group."""

    def __init__(self, attribute: str = "_tied_kv") -> None:
        self._attribute = attribute

    def named_modules(self) -> list[tuple[str, SimpleNamespace]]:
        config = SimpleNamespace(num_query_groups=GROUPS)
        tied = SimpleNamespace(**{self._attribute: True}, hidden_size_per_attention_head=WIDTH, config=config)
        return [(NAME, tied), ("decoder.layers.4.self_attention", SimpleNamespace())]


def rows() -> torch.Tensor:
    """Of each group two heads of queries, then keys, then values."""
    return torch.arange(GROUPS * 4 * WIDTH * HIDDEN, dtype=torch.float32).view(-1, HIDDEN)


@pytest.mark.parametrize("attribute", ["_tied_kv", "attention_k_eq_v"])
def test_the_values_of_each_group_are_its_keys(attribute: str) -> None:
    weights = tied_values.follow_keys(Model(attribute), lambda _: rows())

    found = weights(f"{NAME}.linear_qkv.weight").view(GROUPS, 4, WIDTH, HIDDEN)
    given = rows().view(GROUPS, 4, WIDTH, HIDDEN)
    assert torch.equal(found[:, :3], given[:, :3])
    assert torch.equal(found[:, 3], given[:, 2])


def test_other_layers_keep_their_values() -> None:
    weights = tied_values.follow_keys(Model(), lambda _: rows())

    assert torch.equal(weights("decoder.layers.4.self_attention.linear_qkv.weight"), rows())
