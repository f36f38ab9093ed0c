"""The norms that a CPU has in place of Transformer Engine's, what follows config.json, and datasets."""

from types import SimpleNamespace

import pytest
import torch
from megatron_contract.bridge_run import BridgeRun
from megatron_trainer.bridge import configuration, vision_layers
from megatron_trainer.platform.zero_centred_norms import ZeroCentredRMSNorm


def test_a_zero_centred_norm_is_torchs_with_one_added_to_its_weights() -> None:
    config = SimpleNamespace(params_dtype=torch.float32, sequence_parallel=False)
    norm = ZeroCentredRMSNorm(config, 8, eps=1e-6)
    inputs = torch.randn(3, 8, generator=torch.Generator().manual_seed(1))
    assert torch.equal(norm.weight, torch.zeros(8))

    with torch.no_grad():
        norm.weight.copy_(torch.linspace(-0.5, 0.5, 8))
    expected = torch.nn.functional.rms_norm(inputs, (8,), 1 + norm.weight, 1e-6)
    torch.testing.assert_close(norm(inputs), expected)


def test_the_projector_of_gemma_3_pools_the_patches_that_config_json_names() -> None:
    provider = SimpleNamespace(
        mm_tokens_per_image=16,
        vision_config=SimpleNamespace(image_size=112, patch_size=14, layer_norm_eps=1e-5),
        vision_projector_config=SimpleNamespace(image_size=896, patch_dim=14, tokens_per_image=256),
    )
    vision_layers.follow_image_size(provider)

    projector = provider.vision_projector_config
    assert (projector.image_size, projector.patch_dim, projector.tokens_per_image) == (112, 14, 16)
    assert projector.layernorm_epsilon == 1e-5


@pytest.mark.parametrize(
    ("overrides", "size"),
    [
        ({"tokenizer.tokenizer_type": "NullTokenizer"}, 255),
        ({"tokenizer.tokenizer_type": "NullTokenizer", "tokenizer.vocab_size": 99}, 7),
        ({"tokenizer.tokenizer_type": "HuggingFaceTokenizer"}, 7),
    ],
)
def test_random_tokens_are_of_the_models_vocabulary(overrides: dict[str, str | int], size: int) -> None:
    config = SimpleNamespace(model=SimpleNamespace(vocab_size=256), tokenizer=SimpleNamespace(vocab_size=7))
    configuration._size_null_tokenizer(BridgeRun("function", overrides), config)
    assert config.tokenizer.vocab_size == size
