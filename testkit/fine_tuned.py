"""What `make bridge-training` trains by Megatron-Bridge on 2 and 4 CPU ranks, from small random models."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from megatron_operator.api.fine_tuning import ModelPart

from testkit.weights.families import OLMOE_OF_BRIDGE, VOCABULARY
from testkit.weights.hybrid import HYBRID_OF_BRIDGE


@dataclass(frozen=True)
class Case:
    """A recipe, the family of testkit.weights.families whose model it trains, and its layout.

    A function that has the architecture itself is made small by `overrides` of Bridge's configuration.
    """

    recipe: str
    family: str
    parallelism: dict[str, int | bool] = field(default_factory=dict)
    overrides: Mapping[str, Any] = field(default_factory=dict)

    @property
    def ranks(self) -> int:
        """The fewest ranks that its layout has."""
        model, context, experts, stages = (
            int(self.parallelism.get(f"{kind}ParallelSize", 1))
            for kind in ("tensorModel", "context", "expertModel", "pipelineModel")
        )
        return stages * max(model * context, experts)


_TP: dict[str, int | bool] = {"tensorModelParallelSize": 2}
_PP: dict[str, int | bool] = {"pipelineModelParallelSize": 2}
_EP: dict[str, int | bool] = {"expertModelParallelSize": 2}
# Functions with experts at TP above 1 set it; these layouts are without.
_EP_ONLY: dict[str, int | bool] = {**_EP, "sequenceParallel": False}
_TP_ONLY: dict[str, int | bool] = {**_TP, "sequenceParallel": False}
_PP_ONLY: dict[str, int | bool] = {**_PP, "tensorModelParallelSize": 1, "sequenceParallel": False}
_CP: dict[str, int | bool] = {"contextParallelSize": 2, **_EP_ONLY}
_TP_PP: dict[str, int | bool] = {**_TP_ONLY, **_PP}
_EP_PP: dict[str, int | bool] = {**_PP_ONLY, **_EP}
_EP_OF_V4 = {**_EP_ONLY, "pipelineModelParallelSize": 1}
_OLMOE = {**OLMOE_OF_BRIDGE, "model.vocab_size": VOCABULARY}
# The loss counts as one of 28 layers where the model has 27; the small one has 2.
_UNCOUNTED_LOSS = {"model.account_for_loss_in_pipeline_split": False}

CASES = (
    Case("llama3.2-1b-sft", "Llama", _TP_PP),
    Case("llama3.2-1b-lora", "Llama", _PP),
    Case("llama3.3-nemotron-super-49b-sft", "Llama-Nemotron", _TP_PP),
    Case("llama3.1-nemotron-ultra-253b-sft", "Llama-Nemotron", {**_TP_ONLY, "pipelineModelParallelSize": 1}),
    Case("qwen2.5-0.5b-sft", "Qwen2", _TP_PP),
    Case("qwen2.5-0.5b-lora", "Qwen2", _TP),
    Case("qwen3-0.6b-sft", "Qwen3", _TP_PP),
    Case("qwen3-0.6b-lora", "Qwen3", _TP),
    Case("qwen3-30b-a3b-sft", "Qwen3-MoE", _EP_PP),
    Case("qwen3-30b-a3b-lora", "Qwen3-MoE", _EP_ONLY),
    Case("qwen3-next-80b-a3b-sft", "Qwen3-Next", _EP_ONLY),
    Case("qwen3-next-80b-a3b-sft", "Qwen3-Next", _EP_PP),
    Case("gpt-oss-20b-sft", "GPT-OSS", _EP_PP),
    Case("gpt-oss-20b-lora", "GPT-OSS", _EP),
    Case("gemma2-2b-sft", "Gemma 2", _TP_PP),
    Case("gemma2-2b-lora", "Gemma 2", _TP),
    Case("gemma3-1b-sft", "Gemma 3", _TP_PP),
    Case("gemma3-1b-lora", "Gemma 3", _TP),
    Case("glm4.5-air-sft", "GLM-4.5 without MTP", _EP_PP),
    Case("glm4.5-air-lora", "GLM-4.5 without MTP", _EP_ONLY),
    Case("glm5.1-sft", "GLM-5", _EP_PP),
    Case("glm5.1-sft", "GLM-5", _CP),
    Case("glm5.2-sft", "GLM-5.2", _EP_ONLY),
    Case("glm5.2-sft", "GLM-5.2", _CP),
    Case("glm5.2-lora", "GLM-5.2", _CP),
    Case("glm5.2-lora", "GLM-5.2", _EP_ONLY),
    Case("glm5.2-lora", "GLM-5.2", _EP_PP, {"model.pipeline_model_parallel_layout": "Et*2|t*2mL"}),
    Case("exaone4-1.2b-sft", "EXAONE 4.0", _TP_PP),
    Case("exaone4-1.2b-lora", "EXAONE 4.0", _TP),
    Case("k-exaone-236b-a23b-sft", "K-EXAONE", _EP_PP),
    Case("k-exaone-236b-a23b-lora", "K-EXAONE", _EP_ONLY),
    Case("k-exaone2-750b-a37b-sft", "K-EXAONE 2.0", _EP_PP),
    Case("k-exaone2-750b-a37b-lora", "K-EXAONE 2.0", _EP_ONLY),
    Case("olmoe-7b-sft", "OLMoE", _EP_PP, _OLMOE),
    Case("olmoe-7b-lora", "OLMoE", _EP_ONLY, _OLMOE),
    Case("deepseek-v4-flash-sft", "DeepSeek-V4", _EP_OF_V4),
    Case("deepseek-v4-flash-sft", "DeepSeek-V4", _EP_PP),
    Case("deepseek-v4-flash-no-mtp-sft", "DeepSeek-V4 without MTP", _EP_OF_V4),
    Case("moonlight-16b-a3b-sft", "Moonlight", _EP_PP, _UNCOUNTED_LOSS),
    Case("moonlight-16b-a3b-lora", "Moonlight", _EP_ONLY),
    Case("nemotron-h-4b-sft", "Nemotron-H", _TP_PP, HYBRID_OF_BRIDGE),
    Case("nemotron-nano2-9b-sft", "Nemotron-H", _TP_ONLY, HYBRID_OF_BRIDGE),
    Case("nemotron-nano2-9b-lora", "Nemotron-H", _TP_ONLY, HYBRID_OF_BRIDGE),
    Case("nemotron-nano2-12b-sft", "Nemotron-H", _PP_ONLY, HYBRID_OF_BRIDGE),
    Case("nemotron-nano2-12b-lora", "Nemotron-H", _PP_ONLY, HYBRID_OF_BRIDGE),
    Case("nemotron3-nano-30b-a3b-sft", "Nemotron 3 Nano", _EP_PP),
    Case("nemotron3-nano-30b-a3b-lora", "Nemotron 3 Nano", _EP_ONLY),
    Case("nemotron3-super-120b-a12b-sft", "Nemotron 3 Super", _EP_PP),
    Case("nemotron3-super-120b-a12b-lora", "Nemotron 3 Super", _EP_ONLY),
    Case("nemotron3-ultra-550b-a55b-sft", "Nemotron 3 Super", _PP_ONLY),
    Case("nemotron3-ultra-550b-a55b-lora", "Nemotron 3 Super", _PP_ONLY),
    Case("nemotron3.5-lightning-sft", "Nemotron 3.5 Lightning", _EP_PP),
    Case("nemotron3.5-lightning-lora", "Nemotron 3.5 Lightning", _EP_ONLY),
)
"""At least one of each architecture and mode that reads text alone."""
IMAGE_CASES = (
    Case("qwen2.5-vl-3b-sft", "Qwen2.5-VL", _TP),
    Case("qwen2.5-vl-3b-lora", "Qwen2.5-VL", _TP),
    Case("qwen2.5-vl-3b-lora", "Qwen2.5-VL", _TP_PP),
    Case("qwen3-vl-8b-sft", "Qwen3-VL", _TP),
    Case("qwen3-vl-8b-sft", "Qwen3-VL", _TP_PP),
    Case("qwen3-vl-8b-lora", "Qwen3-VL", _TP),
    Case("qwen3-vl-8b-lora", "Qwen3-VL", _PP),
    Case("qwen3-vl-30b-a3b-sft", "Qwen3-VL-MoE", _EP_ONLY),
    Case("qwen3-vl-30b-a3b-sft", "Qwen3-VL-MoE", _EP_PP),
    Case("qwen3-vl-30b-a3b-lora", "Qwen3-VL-MoE", _EP_ONLY),
    Case("qwen3-vl-30b-a3b-lora", "Qwen3-VL-MoE", _PP),
    Case("qwen3.5-vl-9b-sft", "Qwen3.5-VL", _TP_PP),
    Case("qwen3.5-vl-9b-lora", "Qwen3.5-VL", _TP),
    Case("qwen3.5-vl-0.8b-sft", "Qwen3.5-VL, tied embedding", _PP),
    Case("qwen3.5-vl-0.8b-lora", "Qwen3.5-VL, tied embedding", _PP),
    Case("qwen3.5-vl-35b-a3b-sft", "Qwen3.5-VL-MoE", _EP_ONLY),
    Case("qwen3.5-vl-35b-a3b-sft", "Qwen3.5-VL-MoE", _EP_PP),
    Case("qwen3.5-vl-35b-a3b-lora", "Qwen3.5-VL-MoE", _EP_ONLY),
    Case("qwen3.5-vl-35b-a3b-lora", "Qwen3.5-VL-MoE", _PP_ONLY),
    Case("ministral3-8b-sft", "Ministral 3", _TP_PP),
    Case("ministral3-3b-sft", "Ministral 3, tied embedding", _PP),
    Case("ministral3-3b-lora", "Ministral 3, tied embedding", _TP),
    Case("ministral3-8b-lora", "Ministral 3", _PP),
    Case("gemma3-vl-4b-sft", "Gemma 3 VL", _TP),
    Case("gemma3-vl-4b-sft", "Gemma 3 VL", _TP_PP),
    Case("gemma3-vl-4b-lora", "Gemma 3 VL", _TP),
    Case("gemma3-vl-12b-lora", "Gemma 3 VL", _PP),
    Case("gemma4-vl-26b-sft", "Gemma 4 VL", _EP_ONLY),
    Case("gemma4-vl-26b-sft", "Gemma 4 VL", _EP_PP),
    Case("gemma4-vl-26b-lora", "Gemma 4 VL", _EP_ONLY),
    Case("gemma4-vl-26b-lora", "Gemma 4 VL", _PP_ONLY),
    Case("gemma4-vl-31b-sft", "Gemma 4 VL, dense", _TP),
    Case("glm4.5v-106b-sft", "GLM-4.5V", _EP_ONLY),
    Case("glm4.5v-106b-sft", "GLM-4.5V", _EP_PP),
    Case("glm4.5v-106b-lora", "GLM-4.5V", _EP_ONLY),
    Case("glm4.5v-106b-lora", "GLM-4.5V", _PP),
    Case("minimax-m3-sft", "MiniMax-M3", _EP_ONLY),
    Case("minimax-m3-sft", "MiniMax-M3", _EP_PP),
    Case("exaone4.5-vl-33b-sft", "EXAONE 4.5 VL", _TP),
    Case("exaone4.5-vl-33b-sft", "EXAONE 4.5 VL", _TP_PP),
    Case("exaone4.5-vl-33b-lora", "EXAONE 4.5 VL", _TP),
    Case("exaone4.5-vl-33b-lora", "EXAONE 4.5 VL", _PP_ONLY),
    Case("kimi-k2.5-vl-sft", "Kimi-K2.5", _EP_ONLY),
    Case("kimi-k2.5-vl-sft", "Kimi-K2.5", _EP_PP),
    Case("step3.7-flash-sft", "Step-3.7", {**_EP_ONLY, "pipelineModelParallelSize": 1}),
    Case("step3.7-flash-sft", "Step-3.7", _EP_PP),
)
"""Of testkit.image_models, on images and text."""
SOUND_CASES = (
    Case("qwen2-audio-7b-sft", "Qwen2-Audio", _TP),
    Case("qwen2-audio-7b-sft", "Qwen2-Audio", _TP_PP),
    Case("qwen2-audio-7b-lora", "Qwen2-Audio", _TP),
    Case("qwen2-audio-7b-lora", "Qwen2-Audio", _PP),
)
"""Of testkit.sound_models, on sound and text."""
OMNI_CASES = (
    Case("qwen3-omni-30b-a3b-sft", "Qwen3-Omni", _EP_ONLY),
    Case("qwen3-omni-30b-a3b-sft", "Qwen3-Omni", _EP_PP),
)
"""Of testkit.omni_text, on images, sound and text."""
NEMOTRON_CASES = (
    Case("nemotron3-nano-omni-30b-a3b-sft", "Nemotron 3 Nano Omni", _EP_ONLY),
    Case("nemotron3-nano-omni-30b-a3b-sft", "Nemotron 3 Nano Omni", _EP_PP),
    Case("nemotron3-nano-omni-30b-a3b-lora", "Nemotron 3 Nano Omni", _EP_ONLY),
    Case("nemotron3-nano-omni-30b-a3b-lora", "Nemotron 3 Nano Omni", _PP_ONLY),
    Case("nemotron-nano2-vl-12b-sft", "Nemotron Nano 2 VL", _TP),
    Case("nemotron-nano2-vl-12b-lora", "Nemotron Nano 2 VL", _TP),
)
"""Of testkit.nemotron, on images and text, and sound where the model takes it."""


@dataclass(frozen=True)
class FrozenCase(Case):
    """A recipe on images and text of which parts are frozen: those of its function, or `freeze`."""

    freeze: tuple[ModelPart, ...] | None = None


FROZEN_CASES = (
    FrozenCase("qwen3-vl-8b", "Qwen3-VL", _TP),
    FrozenCase("qwen3-vl-8b", "Qwen3-VL", _PP),
    FrozenCase("qwen3-vl-30b-a3b", "Qwen3-VL-MoE", _EP_ONLY),
    FrozenCase("qwen3-vl-30b-a3b", "Qwen3-VL-MoE", _PP),
    FrozenCase("qwen3.5-vl-9b", "Qwen3.5-VL", _TP),
    FrozenCase("qwen3.5-vl-9b", "Qwen3.5-VL", _PP),
    FrozenCase("qwen3.5-vl-35b-a3b", "Qwen3.5-VL-MoE", _EP_ONLY),
    FrozenCase("qwen3.5-vl-35b-a3b", "Qwen3.5-VL-MoE", _PP_ONLY),
    FrozenCase("qwen3-vl-8b", "Qwen3-VL", _TP, freeze=("language",)),
    FrozenCase("qwen3-vl-8b-sft", "Qwen3-VL", _TP, freeze=("vision",)),
    FrozenCase("qwen2.5-vl-3b-sft", "Qwen2.5-VL", _TP, freeze=("language", "vision")),
    FrozenCase("ministral3-8b-sft", "Ministral 3", _TP, freeze=("vision",)),
    FrozenCase("gemma3-vl-4b-sft", "Gemma 3 VL", _TP, freeze=("language", "vision")),
    FrozenCase("gemma4-vl-26b-sft", "Gemma 4 VL", _EP_ONLY, freeze=("language", "vision")),
    FrozenCase("glm4.5v-106b-sft", "GLM-4.5V", _EP_ONLY, freeze=("vision",)),
    FrozenCase("exaone4.5-vl-33b-sft", "EXAONE 4.5 VL", _TP, freeze=("language", "vision")),
)
"""Of testkit.image_models, on images and text, by SFT or, where `freeze` is None, of the projector alone."""
