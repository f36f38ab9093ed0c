"""Parameters and FLOPs against values of the real GPTModel of megatron-core 0.19.2."""

from typing import Any

import pytest
from megatron_operator import catalog
from megatron_operator.api.diagnostics import Diagnostics
from megatron_operator.api.model import ModelSpec
from megatron_operator.planner.estimate.model_shape import ModelShape, model_shape
from megatron_operator.planner.estimate.parameters import flops_per_token, mtp_parameters, parameters

LLAMA = {
    "positionEmbeddingType": "rope",
    "normalization": "RMSNorm",
    "swiglu": True,
    "disableBiasLinear": True,
    "untieEmbeddingsAndOutputWeights": True,
}


def shape(
    layers: int, hidden: int, heads: int, ffn: int, vocab: int, positions: int = 4096
) -> dict[str, Any]:
    return {
        "numLayers": layers,
        "hiddenSize": hidden,
        "numAttentionHeads": heads,
        "ffnHiddenSize": ffn,
        "vocabSize": vocab,
        "maxPositionEmbeddings": positions,
    }


MIXTRAL = LLAMA | {"numQueryGroups": 8, "numExperts": 8, "moeRouterTopk": 2}
DEEPSEEK_V3 = (
    LLAMA
    | shape(61, 7168, 128, 18432, 129280)
    | {
        "multiLatentAttention": True,
        "qLoraRank": 1536,
        "kvLoraRank": 512,
        "qkHeadDim": 128,
        "qkPosEmbHeadDim": 64,
        "vHeadDim": 128,
        "qkLayernorm": True,
        "numExperts": 256,
        "moeFfnHiddenSize": 2048,
        "moeSharedExpertIntermediateSize": 2048,
        "moeLayerFreq": "([0]*3+[1]*58)",
        "moeRouterTopk": 8,
        "mtpNumLayers": 1,
    }
)


def built(model: dict[str, Any]) -> ModelShape:
    found = Diagnostics()
    shape = model_shape(ModelSpec.model_validate(model), found)
    assert shape is not None, found.errors
    return shape


@pytest.mark.parametrize(
    ("name", "model", "tp", "total"),
    [
        ("GPT 1.3B", shape(24, 2048, 16, 8192, 50257, 2048), 1, 1_315_819_520),
        ("GPT 7B", shape(32, 4096, 32, 16384, 50257), 1, 6_666_985_472),
        ("GPT 13B", shape(40, 5120, 40, 20480, 50257), 2, 12_864_768_000),
        ("GPT 70B", shape(80, 8192, 64, 32768, 50257), 8, 64_886_030_336),
        ("GPT 175B", shape(96, 12288, 96, 49152, 50257, 2048), 8, 174_615_846_912),
        ("Llama 2 7B", LLAMA | shape(32, 4096, 32, 11008, 32000), 1, 6_738_415_616),
        ("Llama 3 8B", LLAMA | shape(32, 4096, 32, 14336, 128256) | {"numQueryGroups": 8}, 1, 8_030_261_248),
        (
            "Llama 3 70B",
            LLAMA | shape(80, 8192, 64, 28672, 128256) | {"numQueryGroups": 8},
            4,
            70_557_900_800,
        ),
        (
            "Llama 3 405B",
            LLAMA | shape(126, 16384, 128, 53248, 128256) | {"numQueryGroups": 8},
            8,
            405_878_554_624,
        ),
        ("Mixtral 8x7B", MIXTRAL | shape(32, 4096, 32, 14336, 32000), 1, 46_702_792_704),
        ("Mixtral 8x22B", MIXTRAL | shape(56, 6144, 48, 16384, 32000), 4, 140_623_779_840),
        ("DeepSeek-V3", DEEPSEEK_V3, 2, 671_026_404_352),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_parameters_match_the_real_model(name: str, model: dict[str, Any], tp: int, total: int) -> None:
    a = built(model)
    assert parameters(a, a.padded_vocab(tp)) == total, name


def test_active_parameters_count_the_chosen_experts() -> None:
    mixtral = built(MIXTRAL | shape(32, 4096, 32, 14336, 32000))
    assert parameters(mixtral, 32000, active=True) == 12_879_925_248
    deepseek = built(DEEPSEEK_V3)
    assert parameters(deepseek, 129280, active=True) == 37_552_282_624
    assert (mtp_parameters(deepseek).total, mtp_parameters(deepseek).active) == (11_610_067_968, 688_100_352)


def test_a_dense_models_parameters_are_all_active() -> None:
    llama = built(LLAMA | shape(32, 4096, 32, 14336, 128256))
    assert parameters(llama, 128256) == parameters(llama, 128256, active=True)


@pytest.mark.parametrize(
    ("recipe", "total", "active"),
    [
        ("deepseek-v2-lite", 15_706_484_224, 2.66e9),
        ("moonlight-16b-a3b", 15.96e9, 2.91e9),
        ("olmoe-7b", 6_919_161_856, 1.28e9),
    ],
)
def test_models_that_only_megatron_bridge_trains_have_the_published_size(
    recipe: str, total: float, active: float
) -> None:
    """Sizes of the model cards. Cards count active parameters without embeddings (2.4B, 2.24B), or with them
    (1.3B)."""
    found = Diagnostics()
    shape = model_shape(catalog.load().get(recipe).model, found)
    assert shape is not None, found.errors
    assert parameters(shape, shape.vocab) == pytest.approx(total, rel=1e-4)
    assert parameters(shape, shape.vocab, active=True) == pytest.approx(active, rel=5e-3)


def test_the_published_squared_relu_model_has_the_published_size() -> None:
    upstream = shape(32, 6144, 48, 24576, 256000) | {
        "positionEmbeddingType": "rope",
        "squaredRelu": True,
        "disableBiasLinear": True,
        "numQueryGroups": 8,
        "untieEmbeddingsAndOutputWeights": True,
        "applyLayernorm1p": True,
    }
    assert parameters(built(upstream), 256000) == 15_628_775_424


def test_flops_follow_megatrons_formula() -> None:
    """24 s h^2 a layer and matrix product x 3, for a GPT whose arithmetic is plain."""
    a = built(shape(2, 64, 4, 256, 128, 32) | {"positionEmbeddingType": "rope"})
    h, s, layers, vocab = 64, 32, 2, 128
    attention, mlp, core = 4 * h * h, 8 * h * h, s * h
    assert flops_per_token(a, s, vocab) == 6 * (layers * (attention + mlp + core) + h * vocab)


def test_a_vocabulary_is_padded_to_a_multiple_of_128_times_tp() -> None:
    a = built(shape(2, 64, 4, 256, 50257))
    assert [a.padded_vocab(tp) for tp in (1, 2, 4, 8)] == [50304, 50432, 50688, 51200]


def test_feed_forward_width_defaults_as_in_megatron() -> None:
    without = {k: v for k, v in shape(2, 4096, 32, 0, 128).items() if k != "ffnHiddenSize"}
    assert built(without).ffn == 16384
    assert built(without | {"swiglu": True}).ffn == 10880
