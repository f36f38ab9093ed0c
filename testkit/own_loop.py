"""What `make bridge-training` trains by Megatron's own loop on four CPU ranks, from small random models."""

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
)
IN_PODS: Final = "tiny-gpt"
"""What pods of the local cluster train, with Megatron's real loop (tests/faults)."""
