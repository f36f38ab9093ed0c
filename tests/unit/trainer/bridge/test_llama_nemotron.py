"""Layers of Llama-Nemotron in config.json, which need not have all settings."""

from typing import Any

import pytest
from megatron_trainer.bridge.llama_nemotron import LlamaNemotronConfig

FFN: dict[str, Any] = {"ffn_mult": 2.625, "no_op": False}


def config(*layers: dict[str, Any]) -> LlamaNemotronConfig:
    return LlamaNemotronConfig(num_attention_heads=64, block_configs=list(layers))


def test_parts_of_a_layer_are_read_as_attributes_and_other_settings_are_kept() -> None:
    attention = {"n_heads_in_group": 8, "no_op": False}
    read = config({"attention": attention, "ffn": FFN, "parallel_blocks": None})
    assert read.block_configs is not None
    (layer,) = read.block_configs
    assert (layer.attention.n_heads_in_group, layer.ffn.ffn_mult) == (8, 2.625)
    assert layer.parallel_blocks is None
    assert read.to_dict()["block_configs"] == [{"attention": attention, "ffn": FFN, "parallel_blocks": None}]


@pytest.mark.parametrize(
    "first",
    [
        {"attention": {"n_heads_in_group": None, "no_op": True}},
        {"attention": {"replace_with_linear": True}},
        {"attention": None},
        {},
    ],
)
def test_groups_are_those_of_the_first_layer_that_has_some(first: dict[str, Any]) -> None:
    read = config(first | {"ffn": FFN}, {"attention": {"n_heads_in_group": 16}, "ffn": FFN})
    assert read.num_key_value_heads == 4
