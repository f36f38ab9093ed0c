"""What `make bridge-training` pretrains on two CPU ranks: small models of Megatron-Bridge's functions."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from testkit.exaone_minimax import MINIMAX_M3
from testkit.fine_tuned import Case
from testkit.weights.deepseek_v4 import DEEPSEEK_V4
from testkit.weights.falcon import FALCON_H1
from testkit.weights.families import (
    BASE,
    EXPERTS,
    GEMMA,
    GLM5_SHARED,
    HEADS,
    K_EXAONE_2,
    LATENT,
    MINIMAX_M2,
    OLMOE_OF_BRIDGE,
    ROUTED,
)
from testkit.weights.gated_delta import QWEN3_5, QWEN3_5_MOE, QWEN3_NEXT, with_text
from testkit.weights.hybrid import EXPERTS_OF_BRIDGE, HYBRID_OF_BRIDGE, NEMOTRON_3_SUPER
from testkit.weights.llama_nemotron import LLAMA_NEMOTRON
from testkit.weights.step import STEP_PREDICTING

type Sizes = Mapping[str, Any]


@dataclass(frozen=True)
class PretrainingCase:
    """A recipe, a small configuration of its architecture, and its layout.

    `config_class` is of transformers, or of this project, `sizes` are its arguments. A function that has the
    architecture itself is made small by `overrides` of Bridge's configuration, one that leaves it open by
    `model` of the recipe.
    """

    recipe: str
    architecture: str
    parallelism: dict[str, int | bool]
    config_class: str = ""
    sizes: Sizes = field(default_factory=dict)
    overrides: Sizes = field(default_factory=dict)
    model: Sizes = field(default_factory=dict)

    def write_config(self, folder: Path) -> None:
        """Write config.json into `folder`, unless the function needs none."""
        import transformers

        if self.config_class:
            kind = getattr(transformers, self.config_class, None)
            if kind is None:
                from megatron_trainer.bridge import llama_nemotron

                kind = getattr(llama_nemotron, self.config_class)
            config = kind(**self.sizes)
            config.architectures = [self.architecture]
            config.save_pretrained(folder)


_TP: dict[str, int | bool] = {"tensorModelParallelSize": 2, "pipelineModelParallelSize": 1}
_TP_ONLY: dict[str, int | bool] = {**_TP, "sequenceParallel": False}
_PP: dict[str, int | bool] = {"tensorModelParallelSize": 1, "pipelineModelParallelSize": 2}
_PP_ONLY: dict[str, int | bool] = {**_PP, "expertModelParallelSize": 1, "sequenceParallel": False}
# Experts at TP above 1 need sequence parallelism, which few families were tried with on CPUs.
_EP: dict[str, int | bool] = {
    **{"tensorModelParallelSize": 1, "pipelineModelParallelSize": 1, "sequenceParallel": False},
    **{"expertModelParallelSize": 2, "expertTensorParallelSize": 1},
}
_CP: dict[str, int | bool] = {**_EP, "contextParallelSize": 2}
_WHOLE: dict[str, int | bool] = {"contextParallelSize": 1}
_FULL_RANK = {**LATENT, "q_lora_rank": None}
_GEMMA4_TEXT = {
    **{**GEMMA, "num_hidden_layers": 4, "global_head_dim": 32, "num_kv_shared_layers": 2},
    **{"layer_types": ["sliding_attention", "full_attention"] * 2, "hidden_size_per_layer_input": 16},
}
# Layers have embeddings of their own, which do not grow with the tokenizer.
_GEMMA4 = {
    "text_config": {**_GEMMA4_TEXT, "vocab_size": 2048, "vocab_size_per_layer_input": 2048},
    **{"vision_config": None, "audio_config": None},
}
# Of the text, with a tower of transformers' own sizes, which the function leaves out.
_MINIMAX_M3 = {"text_config": MINIMAX_M3}
_GEMMA3 = {
    **{"model.num_layers": 2, "model.hidden_size": 64, "model.ffn_hidden_size": 128},
    **{"model.num_attention_heads": 4, "model.kv_channels": 16, "model.window_size": 16},
}
_DEEPSEEK_V4 = {**DEEPSEEK_V4, "num_nextn_predict_layers": 1}
_GPT: Sizes = {"numLayers": 2, "hiddenSize": 64, "numAttentionHeads": 4, "vocabSize": 1000}
_LLAMA: Sizes = {
    **_GPT,
    **{"positionEmbeddingType": "rope", "rotaryBase": 500000, "normalization": "RMSNorm", "swiglu": True},
    **{"disableBiasLinear": True, "untieEmbeddingsAndOutputWeights": True, "numQueryGroups": 2},
    **{"kvChannels": 32, "qkLayernorm": True, "attentionDropout": 0.0, "hiddenDropout": 0.0},
}

CASES = (
    PretrainingCase(
        "deepseek-v2-lite",
        "DeepseekV2ForCausalLM",
        _EP,
        "DeepseekV2Config",
        {**_FULL_RANK, "topk_method": "greedy"},
        # The loss counts as one of 28 layers where the model has 27; the small one has 2.
        overrides={"model.account_for_loss_in_pipeline_split": False},
    ),
    PretrainingCase(
        "moonlight-16b-a3b",
        "DeepseekV3ForCausalLM",
        _EP,
        "DeepseekV3Config",
        {**_FULL_RANK, "norm_topk_prob": True, "num_nextn_predict_layers": 0},
    ),
    PretrainingCase("deepseek-v4-flash", "DeepseekV4ForCausalLM", _EP, "DeepseekV4Config", _DEEPSEEK_V4),
    PretrainingCase("deepseek-v4-pro", "DeepseekV4ForCausalLM", _PP_ONLY, "DeepseekV4Config", DEEPSEEK_V4),
    PretrainingCase(
        "exaone4-1.2b",
        "Exaone4ForCausalLM",
        _TP,
        "Exaone4Config",
        {**BASE, "sliding_window": None, "layer_types": ["full_attention"] * 2},
    ),
    PretrainingCase(
        "k-exaone-236b-a23b",
        "ExaoneMoEForCausalLM",
        _EP,
        "ExaoneMoeConfig",
        {**BASE, **HEADS, **EXPERTS, **ROUTED, "num_shared_experts": 1},
    ),
    PretrainingCase("gemma2-2b", "Gemma2ForCausalLM", _TP, "Gemma2Config", GEMMA),
    PretrainingCase("gemma3-1b", "Gemma3ForCausalLM", _PP, overrides=_GEMMA3),
    PretrainingCase("gemma4-e4b", "Gemma4ForConditionalGeneration", _TP_ONLY, "Gemma4Config", _GEMMA4),
    PretrainingCase("glm5.2", "GlmMoeDsaForCausalLM", _EP, "GlmMoeDsaConfig", GLM5_SHARED),
    PretrainingCase("glm5.2", "GlmMoeDsaForCausalLM", _CP, "GlmMoeDsaConfig", GLM5_SHARED),
    PretrainingCase("nemotron-h-4b", "NemotronHForCausalLM", _TP, overrides=HYBRID_OF_BRIDGE),
    PretrainingCase("nemotron-nano2-9b", "NemotronHForCausalLM", _TP_ONLY, overrides=HYBRID_OF_BRIDGE),
    PretrainingCase("nemotron3-nano-30b-a3b", "NemotronHForCausalLM", _EP, overrides=EXPERTS_OF_BRIDGE),
    PretrainingCase(
        "nemotron3-super-120b-a12b", "NemotronHForCausalLM", _EP, "NemotronHConfig", NEMOTRON_3_SUPER
    ),
    PretrainingCase(
        "nemotron3-ultra-550b-a55b", "NemotronHForCausalLM", _PP_ONLY, "NemotronHConfig", NEMOTRON_3_SUPER
    ),
    PretrainingCase("nemotron3.5-lightning", "NemotronHForCausalLM", _EP, overrides=EXPERTS_OF_BRIDGE),
    PretrainingCase("qwen3-next-80b-a3b", "Qwen3NextForCausalLM", _EP, "Qwen3NextConfig", QWEN3_NEXT),
    PretrainingCase(
        "qwen3.5-9b", "Qwen3_5ForConditionalGeneration", _TP, "Qwen3_5Config", with_text(QWEN3_5)
    ),
    PretrainingCase(
        "qwen3.5-35b-a3b",
        "Qwen3_5MoeForConditionalGeneration",
        _EP,
        "Qwen3_5MoeConfig",
        with_text(QWEN3_5_MOE),
    ),
    PretrainingCase("olmoe-7b", "OlmoeForCausalLM", _EP, overrides=OLMOE_OF_BRIDGE),
    PretrainingCase("falcon-h1-34b", "FalconH1ForCausalLM", _TP_ONLY, "FalconH1Config", FALCON_H1),
    PretrainingCase("falcon-h1-7b", "FalconH1ForCausalLM", _PP_ONLY, "FalconH1Config", FALCON_H1),
    PretrainingCase("minimax-m2", "MiniMaxM2ForCausalLM", _EP, "MiniMaxM2Config", MINIMAX_M2),
    PretrainingCase("minimax-m2", "MiniMaxM2ForCausalLM", _PP_ONLY, "MiniMaxM2Config", MINIMAX_M2),
    PretrainingCase(
        "minimax-m3", "MiniMaxM3SparseForConditionalGeneration", _EP, "MiniMaxM3VLConfig", _MINIMAX_M3
    ),
    PretrainingCase(
        "minimax-m3", "MiniMaxM3SparseForConditionalGeneration", _PP_ONLY, "MiniMaxM3VLConfig", _MINIMAX_M3
    ),
    PretrainingCase("vanilla-gpt", "", _TP_ONLY, model=_GPT),
    PretrainingCase("vanilla-gpt", "", _PP, model=_LLAMA),
    PretrainingCase(
        "llama3.3-nemotron-super-49b", "DeciLMForCausalLM", _TP_ONLY, "LlamaNemotronConfig", LLAMA_NEMOTRON
    ),
    PretrainingCase(
        "llama3.1-nemotron-ultra-253b", "DeciLMForCausalLM", _PP_ONLY, "LlamaNemotronConfig", LLAMA_NEMOTRON
    ),
    PretrainingCase("k-exaone2-750b-a37b", "ExaoneMoEForCausalLM", _EP, "ExaoneMoeConfig", K_EXAONE_2),
    PretrainingCase(
        "step3.5-196b-a11b", "Step3p5ForCausalLM", {**_EP, **_WHOLE}, "Step3p7TextConfig", STEP_PREDICTING
    ),
    PretrainingCase(
        "step3.5-196b-a11b",
        "Step3p5ForCausalLM",
        {**_PP_ONLY, **_WHOLE},
        "Step3p7TextConfig",
        STEP_PREDICTING,
    ),
)
"""Each architecture that the operator pretrains by Megatron-Bridge."""

_TP_PP: dict[str, int | bool] = {**_TP_ONLY, "pipelineModelParallelSize": 2}
_EP_PP: dict[str, int | bool] = {**_EP, "pipelineModelParallelSize": 2}
_GEMMA3_OF_SIX = {
    **{**_GEMMA3, "model.num_layers": 6, "model.num_query_groups": 2},
    "model.softmax_scale": 0.25,
}
# The loss counts as one of 28 layers where the model has 27; the small one has 2.
_UNCOUNTED_LOSS = {"model.account_for_loss_in_pipeline_split": False}

CONTINUED = (
    Case("gemma2-2b", "Gemma 2", _TP_PP),
    Case("gemma3-1b", "Gemma 3", _TP_PP, _GEMMA3_OF_SIX),
    Case("exaone4-1.2b", "EXAONE 4.0", _TP_PP),
    Case("llama3.3-nemotron-super-49b", "Llama-Nemotron", _TP_PP),
    Case("falcon-h1-34b", "Falcon-H1", _TP_PP),
    Case("nemotron-h-4b", "Nemotron-H", _TP_PP, HYBRID_OF_BRIDGE),
    Case("nemotron3-nano-30b-a3b", "Nemotron 3 Nano", _EP_PP, EXPERTS_OF_BRIDGE),
    Case("nemotron3-super-120b-a12b", "Nemotron 3 Super", _EP_PP),
    Case("nemotron3.5-lightning", "Nemotron 3.5 Lightning", _EP_PP, EXPERTS_OF_BRIDGE),
    Case("olmoe-7b", "OLMoE", _EP_PP, OLMOE_OF_BRIDGE),
    Case("deepseek-v2-lite", "DeepSeek-V2 without q_lora_rank", _EP_PP, _UNCOUNTED_LOSS),
    Case("moonlight-16b-a3b", "Moonlight", _EP_PP, _UNCOUNTED_LOSS),
    Case("deepseek-v4-flash", "DeepSeek-V4", _EP),
    Case("k-exaone-236b-a23b", "K-EXAONE", _EP_PP),
    Case("k-exaone2-750b-a37b", "K-EXAONE 2.0", _EP_PP),
    Case("minimax-m2", "MiniMax-M2", _EP_PP),
    Case("glm5.2", "GLM-5.2", _EP),
    Case("qwen3-next-80b-a3b", "Qwen3-Next", _EP_PP),
    Case("step3.5-196b-a11b", "Step-3.5", {**_EP_PP, **_WHOLE}),
)
"""Each architecture whose pretraining goes on from the weights of a Hugging Face model."""
