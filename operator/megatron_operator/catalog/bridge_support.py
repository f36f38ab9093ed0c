"""Which models of engine `bridge` the operator trains, and what is in the way of all others.

`tests/bridge` compares the architectures with those that the functions of Megatron-Bridge ask for, and
`tests/unit/catalog` the reasons with the table of docs/weights.md.
"""

import re
from collections.abc import Mapping
from typing import Final

from megatron_operator.api.platform import AcceleratorProfile, ImagePackage

_ZERO_CENTRED: Final = "norms with zero-centred weights need Transformer Engine"
_MORE_THAN_TEXT: Final = (
    "images, video and sound are not passed on, and the conversion of its weights is not tried"
)
_NO_COLLATOR: Final = "Megatron-Bridge has no function that makes batches of its processor's images"
_OWN_CODE: Final = "its configuration is code in the model's folder, which is not run"
_OWN_TOWER: Final = "its vision tower is code in the model's folder, which is not run"
_OWN_SAMPLES: Final = "its function reads samples of Flickr8k, by a training step of its own"
_SOUND: Final = "sound is not read from data, and the conversion of its weights is not tried"
_NOT_TRIED: Final = "the conversion of its weights is not tried"
_DIFFUSION: Final = "its layers need Transformer Engine, and the trainer's image lacks {}"
_FLUX: Final = _DIFFUSION.format("diffusers and megatron-energon")
_WAN: Final = _DIFFUSION.format("diffusers, imageio and megatron-energon")

_IMAGES: Final = "images, video and sound are not passed on"
_LACKS: Final = "the trainer's image lacks {}"
_STATE_SPACE: Final = "on GPUs " + _LACKS.format("the kernels of its state-space layers (mamba-ssm)")
_DELTA_NET: Final = "on GPUs " + _LACKS.format("the kernels of its gated delta net (flash-linear-attention)")
_HYBRID: Final = "Megatron Core lacks its attention (dsv4_hybrid)"
_PROJECTOR: Final = (
    "its function trains the projector alone, on random images, between frozen weights that are random too"
)
_GATES: Final = "Megatron Core has neither its gate for each head nor its rotary embedding for each layer"
_LATER: Final = "its function is not in the image's release of Megatron-Bridge"
_NO_SMALL_MODEL: Final = "no small model of this architecture was trained"
_SPARSE: Final = "on GPUs " + _LACKS.format("the kernels of its sparse attention (flash-mla)")

SEEN_ON_A_GPU: Final = frozenset({"llama3.2-1b-lora"})
"""Names of the recipes of which docs/hardware.md has figures."""

_MODELS: Final[tuple[tuple[str, str, str], ...]] = (
    (r"llama", "LlamaForCausalLM", ""),
    (r"qwen2_audio", "Qwen2AudioForConditionalGeneration", _SOUND),
    (r"qwen25_vl", "Qwen2_5_VLForConditionalGeneration", ""),
    (r"qwen2", "Qwen2ForCausalLM", ""),
    (r"qwen3_next", "Qwen3NextForCausalLM", _DELTA_NET),
    (r"qwen3_omni", "Qwen3OmniMoeForConditionalGeneration", _MORE_THAN_TEXT),
    (r"qwen3_vl_.*_a\d+b", "Qwen3VLMoeForConditionalGeneration", ""),
    (r"qwen3_vl", "Qwen3VLForConditionalGeneration", ""),
    (r"qwen35_.*_a\d+b", "Qwen3_5MoeForConditionalGeneration", _DELTA_NET),
    (r"qwen35", "Qwen3_5ForConditionalGeneration", _DELTA_NET),
    (r"qwen3_\d+b_a\d+b", "Qwen3MoeForCausalLM", ""),
    (r"qwen3", "Qwen3ForCausalLM", ""),
    (r"gpt_oss", "GptOssForCausalLM", ""),
    (r"ministral3", "Mistral3ForConditionalGeneration", ""),
    (r"moonlight", "DeepseekV3ForCausalLM", ""),
    (r"deepseek_v2_lite", "DeepseekV2ForCausalLM", _NO_SMALL_MODEL),
    (r"deepseek_v4", "DeepseekV4ForCausalLM", _HYBRID),
    (r"kimi_k25", "KimiK25ForConditionalGeneration", _OWN_TOWER),
    (r"gemma2", "Gemma2ForCausalLM", ""),
    (r"gemma3_vl", "Gemma3ForConditionalGeneration", ""),
    (r"gemma3", "Gemma3ForCausalLM", ""),
    (r"gemma4", "Gemma4ForConditionalGeneration", ""),
    (r"glm_45v", "Glm4vMoeForConditionalGeneration", ""),
    (r"glm45", "Glm4MoeForCausalLM", ""),
    (r"glm51_sft", "GlmMoeDsaForCausalLM", "its functions measure throughput"),
    (r"glm5", "GlmMoeDsaForCausalLM", _SPARSE),
    (r"nemotron_nano_v2_vl", "NemotronH_Nano_VL_V2", _OWN_CODE),
    (r"nemotron_omni", "NemotronH_Nano_Omni_Reasoning_V3", _OWN_CODE),
    (r"nemotron", "NemotronHForCausalLM", _STATE_SPACE),
    (r"olmoe", "OlmoeForCausalLM", ""),
    (r"exaone45_vl", "Exaone4_5_ForConditionalGeneration", _NO_COLLATOR),
    (r"exaone_moe_2_0", "ExaoneMoEForCausalLM", _LATER),
    (r"exaone_moe", "ExaoneMoEForCausalLM", ""),
    (r"exaone4", "Exaone4ForCausalLM", ""),
    (r"minimax_m3", "MiniMaxM3SparseForConditionalGeneration", _MORE_THAN_TEXT),
    (r"step35", "Step3p5ForCausalLM", _NOT_TRIED),
    (r"step37", "Step3p7ForConditionalGeneration", _OWN_SAMPLES),
    (r"flux", "", _FLUX),
    (r"wan", "", _WAN),
)
"""Pattern of a function, architecture, and what is in the way. The first match is used."""

_UNKNOWN: Final = "unknown to Megatron-Bridge 0.6.2"
_NO_MODEL: Final = "transformers has no model with these layers"
_NOT_CONVERTED: Final = "no small model of this architecture was converted"
_NO_OWN_LOOP: Final = "the own loop was not tried with its weights"
_OWN_LOOP: Final[Mapping[str, str]] = {
    "deepseek": "the own loop was not tried with its weights, and multi-token prediction does not convert",
    "ernie": _NOT_CONVERTED,
    "glm": _NO_OWN_LOOP,
    "gpt-oss": _NO_OWN_LOOP,
    "gpt-scaling": _NO_MODEL,
    "gpt3": _NO_MODEL,
    "hy3": _NOT_CONVERTED,
    "kimi": _NO_OWN_LOOP,
    "ling": _NOT_CONVERTED,
    "mimo": _NOT_CONVERTED,
    "mixtral": _UNKNOWN,
    "nemotron4": _ZERO_CENTRED,
    "tiny": _NO_MODEL,
}
"""Family of a recipe of Megatron Core's own loop -> why its weights are neither imported nor exported."""
_SHARED_EXPERTS: Final = f"its shared experts are {_UNKNOWN}"
_PRETRAINED: Final[tuple[tuple[str, bool, str], ...]] = (
    (r"deepseek_v2_lite", True, ""),
    (r"deepseek_v4", True, _HYBRID),
    (r"exaone4_", True, ""),
    (r"exaone_moe_2_0", True, _LATER),
    (r"exaone_moe", True, ""),
    (r"gemma2", True, ""),
    (r"gemma3_1b", False, ""),
    (r"glm52", True, _SPARSE),
    (r"moonlight", True, ""),
    (r"nemotron_3_(super|ultra)", True, _STATE_SPACE),
    (r"nemotron", False, _STATE_SPACE),
    (r"olmoe", False, ""),
    (r"qwen3_next", True, _DELTA_NET),
    (r"qwen35_text", True, _DELTA_NET),
    (r"vanilla_gpt", False, "its function leaves the sizes of the model open"),
    (r"gemma4_e4b", True, ""),
    (r"qwen35?_vl", True, _PROJECTOR),
    (r"minimax_m3", True, _IMAGES),
    (r"step35", True, _GATES),
    (r"flux", False, _FLUX),
    (r"wan", False, _WAN),
)
"""Pattern of a pretraining function, whether it reads a model's folder, and what is in the way."""
_FSDP: Final = "shards by Megatron's FSDP, whose checkpoints are in another format"
OF_FUNCTION: Final[Mapping[str, str]] = {
    "nemotron_3_5_lightning_pretrain_8k_fsdp_config": _FSDP,
    "nemotron_3_nano_gb200_pretrain_config": (
        "reads a model's folder, which the other functions of its recipe do not"
    ),
    "qwen35_vl_35b_a3b_sft_2gpu_h100_bf16_fsdp_config": _FSDP,
}
"""Function -> why it starts no recipe, though others of its recipe do."""

KERNELS: Final[Mapping[str, tuple[ImagePackage, ...]]] = {
    _STATE_SPACE: ("mamba-ssm",),
    _DELTA_NET: ("flash-linear-attention",),
    _SPARSE: ("flash-mla",),
}
"""Reason that holds on GPUs alone -> the packages without one of which it does."""

STARTED: Final = frozenset(found for _, found, reason in _MODELS if not reason or reason in KERNELS)
"""Architectures that the operator fine-tunes: their weights convert, and a small one of each was trained."""


READ_IMAGES: Final = frozenset(
    {
        "Gemma3ForConditionalGeneration",
        "Gemma4ForConditionalGeneration",
        "Glm4vMoeForConditionalGeneration",
        "Mistral3ForConditionalGeneration",
        "Qwen2_5_VLForConditionalGeneration",
        "Qwen3VLForConditionalGeneration",
        "Qwen3VLMoeForConditionalGeneration",
        "Qwen3_5ForConditionalGeneration",
        "Qwen3_5MoeForConditionalGeneration",
    }
)
"""Those of them that are trained on images and text."""


NORMALIZED_WHOLE: Final = frozenset({"OlmoeForCausalLM"})
"""Those whose ranks each build norms of the queries and keys of all heads (`OLMoESelfAttention`): heads
cannot be split over ranks."""


SPLIT_SEQUENCES: Final = frozenset({"GlmMoeDsaForCausalLM"})
"""Those whose attention splits sequences over context-parallel ranks itself (`DSAttention`): without
Transformer Engine, so that it was tried on CPUs."""


def splits_sequences(function: str) -> bool:
    """Whether runs of a function may split sequences over context-parallel ranks."""
    return architecture(function) in SPLIT_SEQUENCES


def reads_images(function: str) -> bool:
    """Whether a function that the operator starts is trained on images and text."""
    return architecture(function) in READ_IMAGES


def architecture(function: str) -> str:
    """The class of transformers, as `architectures` of config.json names it; empty where there is none."""
    return _model(function)[0]


def obstacle(function: str, mode: str, profile: AcceleratorProfile | None = None) -> str:
    """Why the operator does not start a function; empty if it does.

    `profile`: where it would run; by default GPUs with the project's image.
    """
    reason = (_pretraining if mode == "pretrain" else _model)(function)[1]
    if profile is None or reason not in KERNELS:
        return reason
    return "" if profile.platform == "cpu" or {*KERNELS[reason]} <= {*profile.image_has} else reason


def conversion_obstacle(family: str, *, shared_experts: bool) -> str:
    """Why weights of a family are not converted for Megatron Core's own loop; empty if they are.

    Also for a family of a catalog of the platform's own: the Job that imports reads its architecture.
    """
    return _SHARED_EXPERTS if family == "qwen2" and shared_experts else _OWN_LOOP.get(family, "")


def reads_model_folder(function: str) -> bool:
    """Whether a pretraining function reads the architecture from a configuration of Hugging Face."""
    return _pretraining(function)[0]


def _pretraining(function: str) -> tuple[bool, str]:
    return next(
        ((folder, text) for pattern, folder, text in _PRETRAINED if re.match(pattern, function)),
        (True, "its model is not known"),
    )


def _model(function: str) -> tuple[str, str]:
    return next(
        ((found, text) for pattern, found, text in _MODELS if re.match(pattern, function)),
        ("", "its model is not known"),
    )
