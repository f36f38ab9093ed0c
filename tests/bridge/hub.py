"""Responses of the model hub: configs of transformers' own classes, with their default sizes.

A recipe function asks for a config to find the bridge of the architecture; layouts, batch and schedule are
written in the function itself.
"""

import re
from types import SimpleNamespace
from typing import Any

import transformers

CLASSES = (
    (r"DeepSeek-V4", "DeepseekV4Config", "DeepseekV4ForCausalLM"),
    (r"DeepSeek-V3|Moonlight", "DeepseekV3Config", "DeepseekV3ForCausalLM"),
    (r"DeepSeek-V2", "DeepseekV2Config", "DeepseekV2ForCausalLM"),
    (r"Kimi-K2\.5", "Kimi_K25Config", "KimiK25ForConditionalGeneration"),
    (r"Kimi-K2-", "DeepseekV3Config", "KimiK2ForCausalLM"),
    (r"EXAONE-4\.5", "Exaone4_5_Config", "Exaone4_5_ForConditionalGeneration"),
    (r"K-EXAONE", "ExaoneMoeConfig", "ExaoneMoEForCausalLM"),
    (r"EXAONE-4\.0", "Exaone4Config", "Exaone4ForCausalLM"),
    (r"gemma-2", "Gemma2Config", "Gemma2ForCausalLM"),
    (r"gemma-3-1b", "Gemma3TextConfig", "Gemma3ForCausalLM"),
    (r"gemma-3", "Gemma3Config", "Gemma3ForConditionalGeneration"),
    (r"gemma-4", "Gemma4Config", "Gemma4ForConditionalGeneration"),
    (r"GLM-4\.5V", "Glm4vMoeConfig", "Glm4vMoeForConditionalGeneration"),
    (r"GLM-4\.5", "Glm4MoeConfig", "Glm4MoeForCausalLM"),
    (r"GLM-5", "GlmMoeDsaConfig", "GlmMoeDsaForCausalLM"),
    (r"gpt-oss", "GptOssConfig", "GptOssForCausalLM"),
    (r"Llama-3.*-Nemotron-(Super|Ultra)", "LlamaNemotronConfig", "DeciLMForCausalLM"),
    (r"[Ll]lama", "LlamaConfig", "LlamaForCausalLM"),
    (r"Falcon-H1", "FalconH1Config", "FalconH1ForCausalLM"),
    (r"MiniMax-M2", "MiniMaxM2Config", "MiniMaxM2ForCausalLM"),
    (r"MiniMax-M3", "MiniMaxM3VLConfig", "MiniMaxM3SparseForConditionalGeneration"),
    (r"Ministral-3", "Mistral3Config", "Mistral3ForConditionalGeneration"),
    (r"Nemotron-Nano-12B-v2-VL", "NemotronVLConfig", "NemotronH_Nano_VL_V2"),
    (r"Nemotron.*Omni", "NemotronOmniConfig", "NemotronH_Nano_Omni_Reasoning_V3"),
    (r"Nemotron-3|Nemotron-H|Nemotron-Nano", "NemotronHConfig", "NemotronHForCausalLM"),
    (r"OLMoE", "OlmoeConfig", "OlmoeForCausalLM"),
    (r"Step-3\.5", "Step3p7TextConfig", "Step3p5ForCausalLM"),
    (r"Step-3\.7", "Step3p7Config", "Step3p7ForConditionalGeneration"),
    (r"Qwen3-Next", "Qwen3NextConfig", "Qwen3NextForCausalLM"),
    (r"Qwen3\.5-.*-A\d+B", "Qwen3_5MoeConfig", "Qwen3_5MoeForConditionalGeneration"),
    (r"Qwen3\.5", "Qwen3_5Config", "Qwen3_5ForConditionalGeneration"),
    (r"Qwen2-Audio", "Qwen2AudioConfig", "Qwen2AudioForConditionalGeneration"),
    (r"Qwen3-Omni", "Qwen3OmniMoeConfig", "Qwen3OmniMoeForConditionalGeneration"),
    (r"Qwen2\.5-VL", "Qwen2_5_VLConfig", "Qwen2_5_VLForConditionalGeneration"),
    (r"Qwen3-VL-.*-A\d+B", "Qwen3VLMoeConfig", "Qwen3VLMoeForConditionalGeneration"),
    (r"Qwen3-VL", "Qwen3VLConfig", "Qwen3VLForConditionalGeneration"),
    (r"Qwen3-.*-A\d+B", "Qwen3MoeConfig", "Qwen3MoeForCausalLM"),
    (r"Qwen3", "Qwen3Config", "Qwen3ForCausalLM"),
    (r"Qwen2", "Qwen2Config", "Qwen2ForCausalLM"),
)
"""Pattern of a hub name, transformers' config class, architecture. The first match is used."""


ASKED: list[str] = []
"""Architectures whose configs were asked for."""


def config(hub_name: str) -> Any:
    """The config of a hub name. Raises OSError, as transformers does offline, for a name without a class."""
    name, architecture = next(
        (found for pattern, *found in CLASSES if re.search(pattern, hub_name)), (None, "of this name")
    )
    ASKED.append(architecture)
    if name == "LlamaNemotronConfig":
        return _llama_nemotron(architecture, hub_name)
    if name in ("NemotronVLConfig", "NemotronOmniConfig"):
        return _nemotron_of_media(architecture, hub_name)
    if name is None or not hasattr(transformers, name):
        raise OSError(f"transformers has no config class for {hub_name} ({architecture})")
    made = getattr(transformers, name)()
    # Fields of the published config.json files that the classes leave out.
    if name == "DeepseekV4Config":
        made.rope_scaling = {
            "type": "yarn",
            "factor": 16.0,
            "original_max_position_embeddings": 65536,
            "beta_fast": 32,
            "beta_slow": 1,
        }
    elif name == "GlmMoeDsaConfig":
        made.indexer_rope_interleave = True
    elif name == "Glm4vMoeConfig":
        made.text_config.head_dim = 128
        made.text_config.partial_rotary_factor = 0.5
        made.text_config.use_qk_norm = False
    elif name == "Gemma4Config":
        made.text_config.allow_global_per_layer_attribute_access = True
    made.architectures, made.name_or_path = [architecture], hub_name
    return made


def _llama_nemotron(architecture: str, hub_name: str) -> Any:
    """A configuration of this project's class, whose layers have all parts."""
    from megatron_trainer.bridge.llama_nemotron import LlamaNemotronConfig

    layer = {
        "attention": {"n_heads_in_group": 8, "no_op": False, "replace_with_linear": False},
        "ffn": {"ffn_mult": 2.625, "no_op": False, "replace_with_linear": False},
    }
    made = LlamaNemotronConfig(block_configs=[layer] * 32)
    made.architectures, made.name_or_path = [architecture], hub_name
    return made


def _nemotron_of_media(architecture: str, hub_name: str) -> Any:
    """A configuration of this project's classes."""
    from megatron_trainer.bridge import nemotron_config

    of_both = architecture == nemotron_config.OF_BOTH
    sound = {"hidden_size": 1024, "projection_hidden_size": 4096, "num_mel_bins": 128}
    kind = nemotron_config.NemotronOmniConfig if of_both else nemotron_config.NemotronVLConfig
    # Tokens of the published models.
    parts = {"sound_config": sound, "sound_context_token_id": 27} if of_both else {}
    made = kind(llm_config={}, img_context_token_id=18 if of_both else 131072, **parts)
    made.architectures, made.name_or_path = [architecture], hub_name
    return made


FLUX = {
    "attention_head_dim": 128,
    "axes_dims_rope": [16, 56, 56],
    "guidance_embeds": True,
    "in_channels": 64,
    "joint_attention_dim": 4096,
    "num_attention_heads": 24,
    "num_layers": 19,
    "num_single_layers": 38,
    "patch_size": 1,
    "pooled_projection_dim": 768,
}
"""transformer/config.json of FLUX.1-dev, which Bridge reads through diffusers."""


def answer_locally() -> None:
    """Make AutoConfig and diffusers' FLUX config use this module instead of the hub."""

    def from_pretrained(name: object, *_: Any, **__: Any) -> Any:
        return config(str(name))

    transformers.AutoConfig.from_pretrained = from_pretrained
    from megatron.bridge.diffusion.conversion.flux.flux_hf_pretrained import PreTrainedFlux
    from megatron.bridge.models.hf_pretrained import safe_config_loader

    # Retries cannot succeed.
    safe_config_loader.time = SimpleNamespace(sleep=lambda _: None)
    PreTrainedFlux._load_config = lambda _: SimpleNamespace(**FLUX)
