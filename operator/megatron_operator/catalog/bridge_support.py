"""Which models of engine `bridge` the operator trains, and what is in the way of all others.

`tests/bridge` compares the architectures with those that the functions of Megatron-Bridge ask for, and
`tests/unit/catalog` the reasons with the table of docs/weights.md.
"""

import re
from collections.abc import Mapping
from typing import Final, Literal

from megatron_operator.api.fine_tuning import ModelPart
from megatron_operator.api.model import ModelSpec
from megatron_operator.api.platform import AcceleratorProfile, ImagePackage

_LACKS: Final = "the trainer's image lacks {}"
_STATE_SPACE: Final = "on GPUs " + _LACKS.format("the kernels of its state-space layers (mamba-ssm)")
_DELTA_NET: Final = "on GPUs " + _LACKS.format("the kernels of its gated delta net (flash-linear-attention)")
_NO_SMALL_MODEL: Final = "no small model of this architecture was trained"
_SPARSE: Final = "on GPUs " + _LACKS.format("the kernels of its sparse attention (flash-mla)")

SEEN_ON_A_GPU: Final = frozenset({"llama3.2-1b-lora"})
"""Names of the recipes of which docs/hardware.md has figures."""

_MODELS: Final[tuple[tuple[str, str, str], ...]] = (
    (r"llama_nemotron", "DeciLMForCausalLM", ""),
    (r"llama", "LlamaForCausalLM", ""),
    (r"qwen2_audio", "Qwen2AudioForConditionalGeneration", ""),
    (r"qwen25_vl", "Qwen2_5_VLForConditionalGeneration", ""),
    (r"qwen2", "Qwen2ForCausalLM", ""),
    (r"qwen3_next", "Qwen3NextForCausalLM", _DELTA_NET),
    (r"qwen3_omni", "Qwen3OmniMoeForConditionalGeneration", ""),
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
    (r"deepseek_v4", "DeepseekV4ForCausalLM", ""),
    (r"kimi_k25", "KimiK25ForConditionalGeneration", ""),
    (r"gemma2", "Gemma2ForCausalLM", ""),
    (r"gemma3_vl", "Gemma3ForConditionalGeneration", ""),
    (r"gemma3", "Gemma3ForCausalLM", ""),
    (r"gemma4", "Gemma4ForConditionalGeneration", ""),
    (r"glm_45v", "Glm4vMoeForConditionalGeneration", ""),
    (r"glm45", "Glm4MoeForCausalLM", ""),
    (r"glm5", "GlmMoeDsaForCausalLM", _SPARSE),
    (r"nemotron_nano_v2_vl", "NemotronH_Nano_VL_V2", _STATE_SPACE),
    (r"nemotron_omni", "NemotronH_Nano_Omni_Reasoning_V3", _STATE_SPACE),
    (r"nemotron", "NemotronHForCausalLM", _STATE_SPACE),
    (r"olmoe", "OlmoeForCausalLM", ""),
    (r"exaone45_vl", "Exaone4_5_ForConditionalGeneration", ""),
    (r"exaone_moe", "ExaoneMoEForCausalLM", ""),
    (r"exaone4", "Exaone4ForCausalLM", ""),
    (r"falcon_h1", "FalconH1ForCausalLM", _STATE_SPACE),
    (r"minimax_m2", "MiniMaxM2ForCausalLM", ""),
    (r"minimax_m3", "MiniMaxM3SparseForConditionalGeneration", ""),
    (r"step35", "Step3p5ForCausalLM", ""),
    (r"step37", "Step3p7ForConditionalGeneration", ""),
    (r"flux", "", ""),
    (r"wan", "", ""),
)
"""Pattern of a function, architecture, and what is in the way. The first match is used."""

_NO_MODEL: Final = "transformers has no model with these layers"
_NOT_CONVERTED: Final = "its class is not in transformers, and no small model of it was converted"
_GPT2: Final = "its layers are those of GPT-2, unknown to Megatron-Bridge 0.6.2"
_SOFTMAX: Final = "its experts are chosen by softmax scores with a bias, which Megatron Core does not have"
_GROUPS: Final = "it takes groups of experts by the best of each, and Megatron Core by sums of the best two"
_PRETRAINED: Final[tuple[tuple[str, bool, str], ...]] = (
    (r"deepseek_v2_lite", True, ""),
    (r"deepseek_v4", True, ""),
    (r"exaone4_", True, ""),
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
    (r"vanilla_gpt", False, ""),
    (r"gemma4_e4b", True, ""),
    (r"qwen3_vl", True, ""),
    (r"qwen35_vl", True, _DELTA_NET),
    (r"falcon_h1", True, _STATE_SPACE),
    (r"llama_nemotron", True, ""),
    (r"minimax_m2", True, ""),
    (r"minimax_m3", True, ""),
    (r"step35", True, ""),
    (r"flux", False, ""),
    (r"wan", False, ""),
)
"""Pattern of a pretraining function, whether it reads a model's folder, and what is in the way."""
_OF_TEXT: Final = "its function trains the text part alone, and a conversion is of the whole model"
_NOT_PRETRAINED_FROM_WEIGHTS: Final[tuple[tuple[str, str], ...]] = (
    (r"gemma4_e4b", _OF_TEXT),
    (r"minimax_m3", _OF_TEXT),
    (r"qwen35_text", _OF_TEXT),
    (r"vanilla_gpt", _NO_MODEL),
)
"""Pattern of a pretraining function -> why weights of its model are neither imported nor exported."""
_VIDEOS: Final = "trains the embedder of videos, which are not passed on"
_FSDP: Final = "shards by Megatron's FSDP, whose checkpoints are in another format"
_INDEXER: Final = "trains the indexer by a loss of its own, which the image's layers do not have"
OF_FUNCTION: Final[Mapping[str, str]] = {
    "deepseek_v4_flash_pretrain_64gpu_gb200_bf16_config": _INDEXER,
    "deepseek_v4_flash_pretrain_64gpu_gb200_bf16_muon_config": _INDEXER,
    "nemotron_3_5_lightning_pretrain_8k_fsdp_config": _FSDP,
    "nemotron_3_nano_gb200_pretrain_config": (
        "reads a model's folder, which the other functions of its recipe do not"
    ),
    "nemotron_omni_valor32k_peft_4gpu_h100_bf16_config": _VIDEOS,
    "nemotron_omni_valor32k_sft_4gpu_h100_bf16_config": _VIDEOS,
    "qwen35_vl_35b_a3b_sft_2gpu_h100_bf16_fsdp_config": _FSDP,
    "step37_sft_4gpu_h100_bf16_flickr8k_smoke_config": (
        "trains the projector on one pack of Flickr8k, as a trial of the code"
    ),
}
"""Function -> why it starts no recipe, though others of its recipe do."""

KERNELS: Final[Mapping[str, tuple[ImagePackage, ...]]] = {
    _STATE_SPACE: ("mamba-ssm",),
    _DELTA_NET: ("flash-linear-attention",),
    _SPARSE: ("flash-mla",),
}
"""Reason that holds on GPUs alone -> the packages without one of which it does."""

STARTED: Final = frozenset(
    found for _, found, reason in _MODELS if found and (not reason or reason in KERNELS)
)
"""Architectures that the operator fine-tunes: their weights convert, and a small one of each was trained."""


READ_IMAGES: Final = frozenset(
    {
        "Exaone4_5_ForConditionalGeneration",
        "Gemma3ForConditionalGeneration",
        "Gemma4ForConditionalGeneration",
        "Glm4vMoeForConditionalGeneration",
        "KimiK25ForConditionalGeneration",
        "MiniMaxM3SparseForConditionalGeneration",
        "Mistral3ForConditionalGeneration",
        "NemotronH_Nano_VL_V2",
        "Qwen2_5_VLForConditionalGeneration",
        "Qwen3VLForConditionalGeneration",
        "Qwen3VLMoeForConditionalGeneration",
        "Qwen3_5ForConditionalGeneration",
        "Qwen3_5MoeForConditionalGeneration",
        "Step3p7ForConditionalGeneration",
    }
)
"""Those of them that are trained on images and text."""

READ_SOUND: Final = frozenset({"Qwen2AudioForConditionalGeneration"})
"""Those of them that are trained on sound and text."""

READ_BOTH: Final = frozenset({"NemotronH_Nano_Omni_Reasoning_V3", "Qwen3OmniMoeForConditionalGeneration"})
"""Those of them that are trained on images, sound and text."""

FROZEN_IN_PARTS: Final = READ_IMAGES - {
    "KimiK25ForConditionalGeneration",
    "MiniMaxM3SparseForConditionalGeneration",
    "NemotronH_Nano_VL_V2",
    "Step3p7ForConditionalGeneration",
}
"""Those of them that were trained with frozen parts."""

type Media = Literal["", "images", "sound", "media"]
"""What samples have beside text, `media` for images and sound; empty for text alone."""

KEEP_SEQUENCES_WHOLE: Final = frozenset(
    {"Exaone4_5_ForConditionalGeneration", "Qwen2AudioForConditionalGeneration"}
)
"""Those whose model in Megatron-Bridge has no sequence parallelism: Qwen2-Audio's does not scatter its
embeddings, and EXAONE 4.5's not those of multi-token prediction."""


SPLIT_ON_CPUS: Final = frozenset(
    {
        *("LlamaForCausalLM", "DeciLMForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM"),
        *("Gemma2ForCausalLM", "Gemma3ForCausalLM", "Exaone4ForCausalLM", "Glm4MoeForCausalLM"),
        "Qwen3MoeForCausalLM",
    }
)
"""Those with sequence parallelism on CPUs: at TP 2 a small model had the gradients of one rank."""


JOIN_EXPERTS: Final = frozenset(
    {
        *("Gemma4ForConditionalGeneration", "GptOssForCausalLM", "Qwen3VLMoeForConditionalGeneration"),
        *("Qwen3_5MoeForConditionalGeneration", "Step3p7ForConditionalGeneration"),
    }
)
"""Those whose files may have tensors that hold a matrix of all experts of a layer each."""


NORMALIZED_WHOLE: Final = frozenset({"MiniMaxM2ForCausalLM", "OlmoeForCausalLM"})
"""Those whose norms of queries and keys are over all heads, which cannot be split over ranks: each rank
builds all of the norm (`OLMoESelfAttention`), or sums squares over ranks and not their gradients
(`_FullDimRMSNorm` of MiniMax-M2)."""


SPLIT_SEQUENCES: Final = frozenset({"GlmMoeDsaForCausalLM"})
"""Those whose attention splits sequences over context-parallel ranks itself (`DSAttention`): without
Transformer Engine, so that it was tried on CPUs."""


LONGEST_SEQUENCES: Final[Mapping[str, int]] = {"MiniMaxM3SparseForConditionalGeneration": 2048}
"""Architecture -> tokens of a sequence up to which its layers attend to all that is before: they attend to 16
blocks of 128, and Megatron-Bridge keeps the weights that select blocks and never uses them."""


def splits_sequences(function: str) -> bool:
    """Whether runs of a function may split sequences over context-parallel ranks.

    Wan's adapter (`WanAdapter`) splits latents and texts itself, which was tried on CPUs too.
    """
    return architecture(function) in SPLIT_SEQUENCES or function.startswith("wan_")


def is_in_one_stage(function: str) -> bool:
    """Whether a function's model has no pipeline stages.

    Dense models of Gemma 4 (`Gemma4DenseProvider`), and Nemotron Nano 2 VL, of which Megatron-Bridge would
    build RADIO in each stage (`NemotronVLModelProvider`).
    """
    return function.startswith(("gemma4_e4b_", "gemma4_vl_31b_", "nemotron_nano_v2_vl_"))


def has_virtual_stages(function: str) -> bool:
    """Whether the stages of a function's model may be virtual ones.

    None with images and sound know them, and Megatron would send states of another width than DeepSeek-V4's.
    """
    return architecture(function) not in {*READ_BOTH, "DeepseekV4ForCausalLM"}


def reads_latents(function: str) -> bool:
    """Whether a function trains a diffusion model: on latents of images or videos, made beforehand."""
    return function.startswith(("flux_", "wan_"))


def reads_images(function: str) -> bool:
    """Whether a function that the operator starts is trained on images and text."""
    return architecture(function) in READ_IMAGES


def media(function: str) -> Media:
    """What samples of a function that the operator starts have beside text."""
    if reads_images(function):
        return "images"
    if architecture(function) in READ_BOTH:
        return "media"
    return "sound" if architecture(function) in READ_SOUND else ""


def has_sequence_parallelism(function: str) -> bool:
    """Whether a function's model takes sequence parallelism.

    FLUX does not split its sequences. Wan's text is not split (`WanModel`), and of its embedding's gradient
    all ranks but one would have nothing. Dense models of Gemma 4 put images into whole sequences, and their
    embedding would have split them already (`Gemma4DenseProvider`).
    """
    whole = architecture(function) in KEEP_SEQUENCES_WHOLE or function.startswith("gemma4_vl_31b_")
    return not whole and not reads_latents(function)


def splits_sequences_on_cpus(function: str) -> bool:
    """Whether a function's model takes sequence parallelism on CPUs too."""
    return architecture(function) in SPLIT_ON_CPUS and has_sequence_parallelism(function)


def joins_experts(function: str) -> bool:
    """Whether files of a function's model may have one tensor for a matrix of all experts of a layer."""
    return architecture(function) in JOIN_EXPERTS


def aligns_projector(function: str) -> bool:
    """Whether a pretraining function trains the projector of a vision-language model between frozen towers.

    The operator starts it from the weights of a model, on images and text.
    """
    return re.fullmatch(r"qwen35?_vl_\w+_pretrain_\w+", function) is not None


def keeps_samples_whole(function: str) -> bool:
    """Whether a function that splits samples over context-parallel ranks is started at CP 1 instead."""
    return aligns_projector(function) or function.startswith("step35_")


def freezes_parts(function: str) -> bool:
    """Whether parts of a function's model can be frozen as a recipe asks."""
    return architecture(function) in FROZEN_IN_PARTS


def frozen_parts(function: str) -> tuple[ModelPart, ...]:
    """The parts of a vision-language model that a function itself freezes."""
    if aligns_projector(function) and function.endswith("_mock_config"):
        return ("language", "vision")
    return ("vision",) if re.match(r"gemma4_vl_\w+_sft_", function) else ()


def leaves_sizes_open(function: str) -> bool:
    """Whether a recipe gives the sizes of a function's model."""
    return function.startswith("vanilla_gpt_")


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


def conversion_obstacle(family: str, model: ModelSpec) -> str:
    """Why weights of a recipe of Megatron Core's own loop are not converted; empty if they are.

    Also for a recipe of a catalog of the platform's own: the Job that imports reads its architecture.
    """
    match family:
        case "ernie":
            return _SOFTMAX
        case "deepseek" if model.moe_router_num_groups and model.moe_router_score_function != "sigmoid":
            return _GROUPS
        case "gpt3" | "gpt-scaling" if model.position_embedding_type == "learned_absolute":
            return _GPT2
        case "ling":
            return _NOT_CONVERTED
        case "gpt3" if not model.apply_layernorm_1p:
            return _NO_MODEL
    return ""


def pretraining_conversion_obstacle(function: str) -> str:
    """Why weights of a pretraining function's model are not converted; empty if they are."""
    matching = (text for pattern, text in _NOT_PRETRAINED_FROM_WEIGHTS if re.match(pattern, function))
    return next(matching, "")


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
