"""What `make bridge-training` trains by Megatron-Bridge on two CPU ranks, from small random models."""

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Case:
    """A recipe, the family of testkit.weights.families whose model it trains, and its layout."""

    recipe: str
    family: str
    parallelism: dict[str, int | bool] = field(default_factory=dict)


_TP: dict[str, int | bool] = {"tensorModelParallelSize": 2}
_PP: dict[str, int | bool] = {"pipelineModelParallelSize": 2}
_EP: dict[str, int | bool] = {"expertModelParallelSize": 2}
# Functions with experts at TP above 1 set it; a CPU has no norm that splits sequences.
_EP_ONLY: dict[str, int | bool] = {**_EP, "sequenceParallel": False}

CASES = (
    Case("llama3.2-1b-sft", "Llama", _TP),
    Case("llama3.2-1b-lora", "Llama", _PP),
    Case("qwen2.5-0.5b-sft", "Qwen2", _TP),
    Case("qwen2.5-0.5b-lora", "Qwen2", _TP),
    Case("qwen3-0.6b-sft", "Qwen3", _PP),
    Case("qwen3-0.6b-lora", "Qwen3", _TP),
    Case("qwen3-30b-a3b-sft", "Qwen3-MoE", _EP_ONLY),
    Case("qwen3-30b-a3b-lora", "Qwen3-MoE", _EP_ONLY),
    Case("gpt-oss-20b-sft", "GPT-OSS", _EP),
    Case("gpt-oss-20b-lora", "GPT-OSS", _EP),
    Case("gemma2-2b-sft", "Gemma 2", _TP),
    Case("gemma2-2b-lora", "Gemma 2", _TP),
    Case("gemma3-1b-sft", "Gemma 3", _TP),
    Case("gemma3-1b-lora", "Gemma 3", _TP),
    Case("glm4.5-air-sft", "GLM-4.5 without MTP", _EP_ONLY),
    Case("glm4.5-air-lora", "GLM-4.5 without MTP", _EP_ONLY),
    Case("exaone4-1.2b-sft", "EXAONE 4.0", _TP),
    Case("exaone4-1.2b-lora", "EXAONE 4.0", _TP),
    Case("moonlight-16b-a3b-sft", "Moonlight", _EP_ONLY),
    Case("moonlight-16b-a3b-lora", "Moonlight", _EP_ONLY),
)
"""At least one of each architecture and mode that reads text alone."""
IMAGE_CASES = (
    Case("qwen2.5-vl-3b-sft", "Qwen2.5-VL", _TP),
    Case("qwen2.5-vl-3b-lora", "Qwen2.5-VL", _TP),
    Case("qwen2.5-vl-3b-lora", "Qwen2.5-VL", _PP),
    Case("qwen3-vl-8b-sft", "Qwen3-VL", _TP),
    Case("qwen3-vl-8b-sft", "Qwen3-VL", _PP),
    Case("qwen3-vl-8b-lora", "Qwen3-VL", _TP),
    Case("qwen3-vl-8b-lora", "Qwen3-VL", _PP),
    Case("qwen3-vl-30b-a3b-sft", "Qwen3-VL-MoE", _EP_ONLY),
    Case("qwen3-vl-30b-a3b-sft", "Qwen3-VL-MoE", _PP),
    Case("qwen3-vl-30b-a3b-lora", "Qwen3-VL-MoE", _EP_ONLY),
    Case("qwen3-vl-30b-a3b-lora", "Qwen3-VL-MoE", _PP),
    Case("ministral3-8b-sft", "Ministral 3", _TP),
    Case("ministral3-3b-sft", "Ministral 3, tied embedding", _PP),
    Case("ministral3-3b-lora", "Ministral 3, tied embedding", _TP),
    Case("ministral3-8b-lora", "Ministral 3", _PP),
)
"""Of testkit.image_models, on images and text."""
