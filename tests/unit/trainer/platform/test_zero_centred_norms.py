"""Norms with weights that are centred at zero, which Megatron's local layers build on a CPU."""

from types import SimpleNamespace

import torch
from megatron_trainer.platform.zero_centred_norms import ZeroCentredLayerNorm


def test_a_zero_centred_layer_norm_is_torchs_with_weights_of_one_more() -> None:
    config = SimpleNamespace(params_dtype=torch.float32, sequence_parallel=True)
    norm = ZeroCentredLayerNorm(config, 8, eps=1e-6)
    expected = torch.nn.LayerNorm(8, eps=1e-6)
    with torch.no_grad():
        norm.weight.copy_(torch.linspace(-0.5, 0.5, 8))
        norm.bias.copy_(torch.linspace(0.0, 1.0, 8))
        expected.weight.copy_(norm.weight + 1)
        expected.bias.copy_(norm.bias)
    inputs = torch.randn(3, 8, generator=torch.Generator().manual_seed(0))
    assert torch.allclose(norm(inputs), expected(inputs), atol=1e-6)
    assert norm(inputs.bfloat16()).dtype == torch.bfloat16
    assert all(parameter.sequence_parallel for parameter in norm.parameters())
