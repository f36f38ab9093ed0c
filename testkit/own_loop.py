"""Small models of Megatron's own loop: of `make bridge-training` on four CPU ranks, of `make test` on one."""

from dataclasses import dataclass, field
from typing import Any, Final


@dataclass(frozen=True)
class OwnLoopCase:
    """A recipe, the family of testkit.weights.families whose model it trains, and what both have of it.

    `config` is of the model's config.json, `model` of the recipe.
    """

    recipe: str
    family: str
    parallelism: dict[str, int]
    config: dict[str, Any]
    model: dict[str, Any] = field(default_factory=dict)
    """None: not set."""
    arguments: dict[str, Any] = field(default_factory=dict)
    """Of `megatronArgs`."""


_LLAMA_ROPE: Final = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}
_ROPE: Final = {"rope_type": "default", "rope_theta": 1000000.0}
_TP2_PP2: Final = {"tensorModelParallelSize": 2, "pipelineModelParallelSize": 2}
_EP2_PP2: Final = {
    "tensorModelParallelSize": 1,
    "pipelineModelParallelSize": 2,
    "expertModelParallelSize": 2,
}
_EPSILON: Final = {"rms_norm_eps": 1e-6}
_EXPERTS: Final = {"numExperts": 4, "moeRouterTopk": 2, "moeFfnHiddenSize": 32}

_ROUTED: Final = {
    **_EXPERTS,
    **{"moeLayerFreq": "([0]*1+[1]*1)", "moeSharedExpertIntermediateSize": 32},
}
_LATENT: Final = {
    **{**_ROUTED, "numQueryGroups": None, "kvChannels": None},
    **{"qLoraRank": 48, "kvLoraRank": 32, "qkHeadDim": 16, "qkPosEmbHeadDim": 8, "vHeadDim": 16},
}
_YARN: Final = {
    **{"rope_type": "yarn", "rope_theta": 10000.0, "original_max_position_embeddings": 4096},
    **{"beta_fast": 32.0, "beta_slow": 1.0, "mscale": 1.0, "mscale_all_dim": 1.0},
}
"""As in the published folders, but for the factor."""
_MSCALE: Final = {"mscale": 1.0, "mscale-all-dim": 1.0}
_MIXTRAL: Final = {"numExperts": 4, "ffnHiddenSize": 128}
_GROUPS: Final = {"moeRouterNumGroups": 2, "moeRouterGroupTopk": 1}

# Of 250 words, so that TP 2 pads the vocabulary.
LLAMA: Final = OwnLoopCase(
    "llama3.1-8b",
    "Llama",
    _TP2_PP2,
    {"vocab_size": 250, "rms_norm_eps": 1e-5, "rope_parameters": _LLAMA_ROPE},
    {"vocabSize": 250, "rotaryBase": 10000},
)
CASES: Final = (
    LLAMA,
    OwnLoopCase(
        "qwen2.5-7b",
        "Qwen2",
        _TP2_PP2,
        {**_EPSILON, "rope_parameters": _ROPE, "tie_word_embeddings": False},
    ),
    OwnLoopCase(
        "qwen3-0.6b",
        "Qwen3",
        _TP2_PP2,
        {**_EPSILON, "rope_parameters": _ROPE, "tie_word_embeddings": True},
    ),
    OwnLoopCase("qwen3-30b-a3b", "Qwen3-MoE", _EP2_PP2, {**_EPSILON, "rope_parameters": _ROPE}, _EXPERTS),
    OwnLoopCase("mistral-7b", "Mistral", _TP2_PP2, {"rms_norm_eps": 1e-5, "rope_parameters": _ROPE}),
    OwnLoopCase(
        "gpt-oss-20b",
        "GPT-OSS",
        _EP2_PP2,
        {},
        {**_EXPERTS, "moeFfnHiddenSize": 128, "windowSize": "15,0"},
    ),
    OwnLoopCase(
        "glm4.5-air",
        "GLM-4.5",
        _EP2_PP2,
        {"use_qk_norm": False, "routed_scaling_factor": 1.0},
        {**_ROUTED, "rotaryBase": 10000},
    ),
    OwnLoopCase(
        "deepseek-v3",
        "DeepSeek-V3",
        _EP2_PP2,
        {"n_group": 2, "topk_group": 1, "rope_parameters": _YARN | {"factor": 40.0}},
        {**_LATENT, **_GROUPS, "ropeType": "yarn", "rotaryScalingFactor": 40},
        _MSCALE,
    ),
    OwnLoopCase(
        "mixtral-8x7b", "Mixtral", _EP2_PP2, {"rms_norm_eps": 1e-5, "rope_parameters": _ROPE}, _MIXTRAL
    ),
    OwnLoopCase("nemotron4-15b", "Nemotron", _TP2_PP2, {}),
)
"""Imported, trained and exported."""
IMPORTED: Final = (
    OwnLoopCase(
        "glm4.5-355b",
        "GLM-4.5",
        _EP2_PP2,
        {"routed_scaling_factor": 2.5},
        {**_ROUTED, "rotaryBase": 10000},
    ),
    OwnLoopCase(
        "kimi-k2",
        "Kimi-K2",
        _EP2_PP2,
        {"routed_scaling_factor": 2.827, "rope_parameters": _YARN | {"factor": 32.0, "beta_fast": 1.0}},
        {
            **{**_LATENT, "ropeType": "yarn", "rotaryScalingFactor": 32, "yarnBetaFast": 1},
            "rotaryBase": 10000,
        },
        _MSCALE,
    ),
    OwnLoopCase(
        "glm4.7-flash",
        "GLM-4.7-Flash",
        _EP2_PP2,
        {},
        {**_LATENT, "rotaryBase": 10000, "normEpsilon": 1e-6},
    ),
    OwnLoopCase(
        "qwen1.5-moe-a2.7b",
        "Qwen2-MoE",
        _EP2_PP2,
        {"num_key_value_heads": 4, "rope_parameters": _ROPE},
        {**_EXPERTS, "moeSharedExpertIntermediateSize": 32, "numQueryGroups": None},
    ),
    OwnLoopCase(
        "mimo-7b",
        "MiMo",
        _TP2_PP2,
        {"rms_norm_eps": 1e-5, "tie_word_embeddings": False},
        {"rotaryBase": 10000},
    ),
    OwnLoopCase(
        "hy3",
        "Hy3",
        _EP2_PP2,
        {"rms_norm_eps": 1e-5},
        _ROUTED,
    ),
)
"""Imported alone."""
_SPARSE: Final = {
    "moeFfnHiddenSize": 32,
    "moeLayerFreq": "([0]*1+[1]*1)",
    "numExperts": 4,
    "moeRouterTopk": 2,
}
_SHARED: Final = {**_SPARSE, "moeSharedExpertIntermediateSize": 32}
ALONE: Final[dict[str, dict[str, Any]]] = {
    "gpt3-1.3b": {"numQueryGroups": None, "kvChannels": None},
    "gpt3-15b": {},
    "mistral-7b-v0.1": {"windowSize": "15,0"},
    "mimo-7b": {},
    "qwen1.5-moe-a2.7b": {
        **{"numExperts": 4, "moeRouterTopk": 2, "moeFfnHiddenSize": 32, "numQueryGroups": None},
        "moeSharedExpertIntermediateSize": 32,
    },
    "ernie4.5-21b-a3b": _SHARED,
    "ernie4.5-300b-a47b": _SPARSE,
    "glm4.5-355b": _SHARED,
    "hy3": _SHARED,
    **{name: {**_SHARED, **_GROUPS} for name in ("ling-mini-2.0", "ling-flash-2.0", "ling-1t")},
    "deepseek-v2": {**_LATENT, **_GROUPS},
    "kimi-k2": _LATENT,
    "glm4.7-flash": _LATENT,
}
"""Recipe -> `model` of the small one that `make test` trains on one rank, from random weights."""
IN_PODS: Final = "tiny-gpt"
"""What pods of the local cluster train, with Megatron's real loop (tests/faults)."""
