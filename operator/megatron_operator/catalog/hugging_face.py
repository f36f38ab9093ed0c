"""Names of models on Hugging Face, and the entries that train them."""

import re
from typing import Final

_NAMES: Final = {
    "deepseek-v2": "deepseek-ai/DeepSeek-V2",
    "deepseek-v2-lite": "deepseek-ai/DeepSeek-V2-Lite",
    "deepseek-v3": "deepseek-ai/DeepSeek-V3",
    "ernie4.5-21b-a3b": "baidu/ERNIE-4.5-21B-A3B",
    "ernie4.5-300b-a47b": "baidu/ERNIE-4.5-300B-A47B",
    "exaone4-1.2b": "LGAI-EXAONE/EXAONE-4.0-1.2B",
    "falcon-h1-0.5b": "tiiuae/Falcon-H1-0.5B",
    "falcon-h1-1.5b": "tiiuae/Falcon-H1-1.5B",
    "falcon-h1-1.5b-deep": "tiiuae/Falcon-H1-1.5B-Deep",
    "falcon-h1-3b": "tiiuae/Falcon-H1-3B",
    "falcon-h1-7b": "tiiuae/Falcon-H1-7B",
    "falcon-h1-34b": "tiiuae/Falcon-H1-34B",
    "gemma2-2b": "google/gemma-2-2b",
    "gemma2-9b": "google/gemma-2-9b",
    "gemma2-27b": "google/gemma-2-27b",
    "gemma3-1b": "google/gemma-3-1b",
    "gemma3-vl-4b": "google/gemma-3-4b",
    "gemma3-vl-12b": "google/gemma-3-12b",
    "gemma3-vl-27b": "google/gemma-3-27b",
    "gemma4-e4b": "google/gemma-4-E4B",
    "gemma4-vl-26b": "google/gemma-4-26B-A4B",
    "gemma4-vl-31b": "google/gemma-4-31B",
    "glm4.5-355b": "zai-org/GLM-4.5",
    "glm4.5-air": "zai-org/GLM-4.5-Air",
    "glm4.5v-106b": "zai-org/GLM-4.5V",
    "glm4.7-flash": "zai-org/GLM-4.7-Flash",
    "glm5.1": "zai-org/GLM-5.1",
    "glm5.2": "zai-org/GLM-5.2",
    "gpt-oss-20b": "openai/gpt-oss-20b",
    "gpt-oss-120b": "openai/gpt-oss-120b",
    "hy3": "tencent/Hy3-preview tencent/Hy3",
    "kimi-k2": "moonshotai/Kimi-K2",
    "kimi-k2.5-vl": "moonshotai/Kimi-K2.5",
    "ling-1t": "inclusionAI/Ling-1T",
    "ling-flash-2.0": "inclusionAI/Ling-flash-2.0",
    "ling-mini-2.0": "inclusionAI/Ling-mini-2.0",
    "llama2-7b": "meta-llama/Llama-2-7b meta-llama/Llama-2-7b-hf",
    "llama2-13b": "meta-llama/Llama-2-13b meta-llama/Llama-2-13b-hf",
    "llama2-70b": "meta-llama/Llama-2-70b meta-llama/Llama-2-70b-hf",
    "llama3-8b": "meta-llama/Meta-Llama-3-8B",
    "llama3-70b": "meta-llama/Meta-Llama-3-70B",
    "llama3.1-8b": "meta-llama/Llama-3.1-8B meta-llama/Meta-Llama-3.1-8B",
    "llama3.1-70b": "meta-llama/Llama-3.1-70B meta-llama/Meta-Llama-3.1-70B",
    "llama3.1-405b": "meta-llama/Llama-3.1-405B meta-llama/Meta-Llama-3.1-405B",
    "llama3.1-nemotron-ultra-253b": "nvidia/Llama-3_1-Nemotron-Ultra-253B-v1",
    "llama3.3-nemotron-super-49b": (
        "nvidia/Llama-3_3-Nemotron-Super-49B-v1 nvidia/Llama-3_3-Nemotron-Super-49B-v1_5"
    ),
    "llama3.2-1b": "meta-llama/Llama-3.2-1B",
    "llama3.2-3b": "meta-llama/Llama-3.2-3B",
    "minimax-m2": "MiniMaxAI/MiniMax-M2 MiniMaxAI/MiniMax-M2.5 MiniMaxAI/MiniMax-M2.7",
    "mimo-7b": "XiaomiMiMo/MiMo-7B XiaomiMiMo/MiMo-7B-SFT XiaomiMiMo/MiMo-7B-RL",
    "mistral-7b": "mistralai/Mistral-7B-v0.3",
    "mistral-7b-v0.1": "mistralai/Mistral-7B-v0.1",
    "mistral-nemo-12b": "mistralai/Mistral-Nemo-Base-2407 mistralai/Mistral-Nemo-Instruct-2407",
    "mistral-small-24b": ("mistralai/Mistral-Small-24B-Base-2501 mistralai/Mistral-Small-24B-Instruct-2501"),
    "mixtral-8x7b": "mistralai/Mixtral-8x7B-v0.1",
    "mixtral-8x22b": "mistralai/Mixtral-8x22B-v0.1",
    "moonlight-16b-a3b": "moonshotai/Moonlight-16B-A3B",
    "nemotron-h-4b": "nvidia/Nemotron-H-4B",
    "nemotron-h-8b": "nvidia/Nemotron-H-8B",
    "nemotron-h-47b": "nvidia/Nemotron-H-47B",
    "nemotron-h-56b": "nvidia/Nemotron-H-56B",
    "nemotron-nano2-9b": "nvidia/NVIDIA-Nemotron-Nano-9B-v2",
    "nemotron-nano2-12b": "nvidia/NVIDIA-Nemotron-Nano-12B-v2",
    "nemotron4-340b": "nvidia/Nemotron-4-340B",
    "olmoe-7b": "allenai/OLMoE-1B-7B-0924",
    "qwen1.5-moe-a2.7b": "Qwen/Qwen1.5-MoE-A2.7B",
    "qwen2-0.5b": "Qwen/Qwen2-0.5B",
    "qwen2-1.5b": "Qwen/Qwen2-1.5B",
    "qwen2-7b": "Qwen/Qwen2-7B",
    "qwen2-72b": "Qwen/Qwen2-72B",
    "qwen2.5-0.5b": "Qwen/Qwen2.5-0.5B",
    "qwen2.5-1.5b": "Qwen/Qwen2.5-1.5B",
    "qwen2.5-3b": "Qwen/Qwen2.5-3B",
    "qwen2.5-7b": "Qwen/Qwen2.5-7B",
    "qwen2.5-14b": "Qwen/Qwen2.5-14B",
    "qwen2.5-32b": "Qwen/Qwen2.5-32B",
    "qwen2.5-72b": "Qwen/Qwen2.5-72B",
    "qwen2.5-vl-3b": "Qwen/Qwen2.5-VL-3B",
    "qwen2.5-vl-7b": "Qwen/Qwen2.5-VL-7B",
    "qwen2.5-vl-32b": "Qwen/Qwen2.5-VL-32B",
    "qwen2.5-vl-72b": "Qwen/Qwen2.5-VL-72B",
    "qwen3-0.6b": "Qwen/Qwen3-0.6B",
    "qwen3-1.7b": "Qwen/Qwen3-1.7B",
    "qwen3-4b": "Qwen/Qwen3-4B",
    "qwen3-8b": "Qwen/Qwen3-8B",
    "qwen3-14b": "Qwen/Qwen3-14B",
    "qwen3-32b": "Qwen/Qwen3-32B",
    "qwen3-30b-a3b": "Qwen/Qwen3-30B-A3B",
    "qwen3-235b-a22b": "Qwen/Qwen3-235B-A22B",
    "qwen3-next-80b-a3b": "Qwen/Qwen3-Next-80B-A3B",
    "qwen3-vl-8b": "Qwen/Qwen3-VL-8B",
    "qwen3-vl-30b-a3b": "Qwen/Qwen3-VL-30B-A3B",
    "qwen3-vl-235b-a22b": "Qwen/Qwen3-VL-235B-A22B",
}
"""Entry, or what the names of its variants (`-sft`, `-lora`) begin with -> names on Hugging Face."""

_OTHER_RELEASES: Final = {
    "deepseek-ai/deepseek-v3-0324": "deepseek-v3",
    "deepseek-ai/deepseek-r1": "deepseek-v3",
    "glm-4.6": "glm4.5-355b",
    "glm-4.7": "glm4.5-355b",
    "glm-5": "glm5.1",
    "glm4.6": "glm4.5-355b",
    "glm4.7": "glm4.5-355b",
    "glm5": "glm5.1",
    "meta-llama/llama-3.3-70b": "llama3.1-70b",
    "nvidia/llama-3.1-nemotron-70b-instruct-hf": "llama3.1-70b",
    "nvidia/llama-3.1-nemotron-nano-8b-v1": "llama3.1-8b",
    "zai-org/glm-4.6": "glm4.5-355b",
    "zai-org/glm-4.7": "glm4.5-355b",
    "zai-org/glm-5": "glm5.1",
}
"""Name on Hugging Face, or of the catalog's form, in lower case -> entry of a release with the same layers.

GLM-4.6 and GLM-4.7 differ from GLM-4.5 in the longest position alone, 202752. Megatron-Bridge builds them
and GLM-5 by the bridges of these entries (docs/models/glm there); Llama-Nemotron Nano 8B and 70B are Llamas.
"""

NAMES: Final = {
    name.lower(): entry for entry, names in _NAMES.items() for name in names.split()
} | _OTHER_RELEASES
"""Name on Hugging Face, in lower case -> entry."""

_VARIANT: Final = re.compile(r"-(base|instruct|chat|it|pt|thinking|fp8|bf16)(?=$|-)")
"""Trained further, not yet, or rounded: the shape is that of the model without this word."""


def entry_of(name: str) -> str | None:
    """The entry that trains a model of Hugging Face, in any case; None for one that is not in the table."""
    lower = name.lower()
    return NAMES.get(lower) or NAMES.get(_VARIANT.sub("", lower))


def is_other_release(name: str) -> bool:
    """Whether a name on Hugging Face is another release than the one that its entry is named after."""
    lower = name.lower()
    return lower in _OTHER_RELEASES or _VARIANT.sub("", lower) in _OTHER_RELEASES


def is_known(entry: str) -> bool:
    """Whether an entry, or a variant such as `-sft`, trains a model of the table."""
    return any(entry == name or entry.startswith(f"{name}-") for name in _NAMES)
