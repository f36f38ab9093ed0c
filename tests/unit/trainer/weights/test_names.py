"""The names of a folder's tensors, of which Megatron-Bridge asks how experts are stored."""

import pytest
from megatron_trainer.weights.cpu_model import _Names

EACH = {"model.layers.1.mlp.experts.0.gate_proj.weight": 0, "lm_head.weight": 0}
ALL = {"model.layers.1.mlp.experts.gate_up_proj": 0}


@pytest.mark.parametrize(("names", "expected"), [(EACH, False), (ALL, True)])
def test_bridge_finds_whether_experts_are_in_one_tensor(names: dict[str, int], expected: bool) -> None:
    source = _Names(names).source
    assert source.has_glob("*mlp.experts.gate_up_proj*") is expected
    assert source.get_all_keys() == list(names)
