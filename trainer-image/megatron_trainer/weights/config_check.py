"""Settings of config.json that Bridge leaves out of the model it builds, whose logits would be others."""

from collections.abc import Iterator, Mapping
from typing import Any, Final

from megatron_trainer.weights.conversion_error import ConversionError
from megatron_trainer.weights.huggingface_folder import HuggingFaceFolder

Settings = Mapping[str, Any]

_LLAMA: Final[Settings] = {
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}
_GPT_OSS: Final[Settings] = {
    "factor": 32.0,
    "original_max_position_embeddings": 4096,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "truncate": False,
}
_GEMMA: Final[Settings] = {
    **{"hidden_activation": "gelu_pytorch_tanh", "attention_bias": False},
    **{"use_bidirectional_attention": False, "tie_word_embeddings": True},
}
_GEMMA3: Final[Settings] = {
    **_GEMMA,
    "sliding_window_pattern": 6,
    "layer_types": [*["sliding_attention"] * 5, "full_attention"],
    "attn_logit_softcapping": None,
    "final_logit_softcapping": None,
}
_GEMMA4: Final[Settings] = {
    **{"hidden_activation": "gelu_pytorch_tanh", "attention_bias": False, "tie_word_embeddings": True},
    **{"use_bidirectional_attention": "vision", "attention_k_eq_v": True},
    **{"hidden_size_per_layer_input": 0, "num_kv_shared_layers": 0, "use_double_wide_mlp": False},
    "layer_types": _GEMMA3["layer_types"],
}
_GLM: Final[Settings] = {"mrope_section": [8, 12, 12]}
_QWEN_VL: Final[Settings] = {"mrope_section": [16, 24, 24]}
_QWEN3_VL: Final[Settings] = {"mrope_interleaved": True}
_QWEN35_TOWER: Final[Settings] = {"hidden_act": "gelu_pytorch_tanh", "deepstack_visual_indexes": []}
_NEMOTRON_H: Final[Settings] = {
    **{"mlp_hidden_act": "relu2", "mamba_hidden_act": "silu", "use_conv_bias": True, "conv_kernel": 4},
    **{"use_bias": False, "mlp_bias": False, "attention_bias": False, "norm_topk_prob": True},
}
_NEMOTRON_OF_MEDIA: Final[Settings] = {
    # The norms of projectors have that of the text.
    **{**_NEMOTRON_H, "num_nextn_predict_layers": 0, "layer_norm_epsilon": 1e-5},
}
_RADIO: Final[Settings] = {
    **{"patch_size": 16, "max_resolution": 2048, "max_img_size": 2048, "layer_norm_eps": 1e-6},
    **{"hidden_act": "gelu", "use_swiglu_ffn": False, "qkv_bias": True},
}
_LATENT_YARN: Final[Settings] = {"attention_factor": None, "truncate": True}
_MINISTRAL3: Final[Settings] = {
    "factor": 16.0,
    "original_max_position_embeddings": 16384,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "mscale": 1.0,
    "mscale_all_dim": 1.0,
}
POSITIONS: Final[Mapping[str, Mapping[str, Settings]]] = {
    "LlamaForCausalLM": {"default": {}, "llama3": _LLAMA},
    "DeciLMForCausalLM": {"default": {}, "llama3": _LLAMA},
    "GptOssForCausalLM": {"yarn": _GPT_OSS},
    "DeepseekV2ForCausalLM": {"default": {}, "yarn": _LATENT_YARN},
    "DeepseekV3ForCausalLM": {"default": {}, "yarn": _LATENT_YARN},
    "DeepseekV4ForCausalLM": {"default": {}, "yarn": {"attention_factor": 1.0, "truncate": True}},
    "Exaone4ForCausalLM": {"default": {}, "llama3": _LLAMA},
    "Qwen2_5_VLForConditionalGeneration": {"default": _QWEN_VL, "mrope": _QWEN_VL},
    "Qwen3VLForConditionalGeneration": {"default": _QWEN3_VL},
    "Qwen3VLMoeForConditionalGeneration": {"default": _QWEN3_VL},
    "Qwen3_5ForConditionalGeneration": {"default": _QWEN3_VL},
    "Qwen3_5MoeForConditionalGeneration": {"default": _QWEN3_VL},
    "Qwen3OmniMoeForConditionalGeneration": {"default": {**_QWEN3_VL, "rope_theta": 1000000.0}},
    "Mistral3ForConditionalGeneration": {"yarn": _MINISTRAL3},
    "Gemma3ForConditionalGeneration": {"default": {}, "linear": {}},
    "Gemma4ForConditionalGeneration": {"default": {}, "proportional": {}},
    "Glm4vMoeForConditionalGeneration": {"default": _GLM},
    "Exaone4_5_ForConditionalGeneration": {"default": {}, "llama3": _LLAMA},
    "MiniMaxM3SparseForConditionalGeneration": {"default": {}},
    "KimiK25ForConditionalGeneration": {"default": {}, "yarn": _LATENT_YARN},
    "Step3p5ForCausalLM": {"default": {}, "llama3": {}},
    "Step3p7ForConditionalGeneration": {"default": {}, "llama3": {}},
}
"""Architecture -> `rope_type` that Megatron has -> values that are fixed there; others: `default` only."""
_STEP: Final[Settings] = {
    **{"hidden_act": "silu", "attention_bias": False, "mlp_bias": False, "tie_word_embeddings": False},
    **{"zero_centered": True, "use_qk_norm": True, "use_head_wise_attn_gate": True, "gating": True},
    **{"moe_router_activation": "sigmoid", "use_moe_router_bias": True, "norm_expert_weight": True},
    **{"yarn_only_types": ["full_attention"], "use_bidirectional_attention": False, "sink": False},
}
_FIXED: Final[Mapping[str, Settings]] = {
    "DeciLMForCausalLM": {"hidden_act": "silu", "attention_bias": False, "mlp_bias": False},
    "DeepseekV3ForCausalLM": {
        **{"hidden_act": "silu", "attention_bias": False, "tie_word_embeddings": False},
        **{"norm_topk_prob": True, "scoring_func": "sigmoid", "topk_method": "noaux_tc"},
        "rope_interleave": True,
    },
    "DeepseekV4ForCausalLM": {
        **{"hidden_act": "silu", "attention_bias": False, "mlp_bias": False, "tie_word_embeddings": False},
        **{"scoring_func": "sqrtsoftplus", "norm_topk_prob": True, "num_key_value_heads": 1},
    },
    "MistralForCausalLM": {"hidden_act": "silu"},
    "MixtralForCausalLM": {"hidden_act": "silu", "sliding_window": None},
    "Qwen2MoeForCausalLM": {
        **{"hidden_act": "silu", "use_sliding_window": False, "qkv_bias": True},
        **{"decoder_sparse_step": 1, "mlp_only_layers": []},
    },
    "NemotronForCausalLM": {"hidden_act": "relu2", "attention_bias": False, "mlp_bias": False},
    "MiMoForCausalLM": {"hidden_act": "silu", "use_sliding_window": False, "attention_bias": True},
    "HYV3ForCausalLM": {
        **{"hidden_act": "silu", "attention_bias": False, "mlp_bias": False, "qk_norm": True},
        **{"route_norm": True, "moe_router_use_sigmoid": True, "moe_router_enable_expert_bias": True},
    },
    "Glm4MoeLiteForCausalLM": {
        **{"hidden_act": "silu", "norm_topk_prob": True, "attention_bias": False},
        **{"tie_word_embeddings": False, "rope_interleave": True},
    },
    "Qwen2ForCausalLM": {"use_sliding_window": False},
    "Qwen3ForCausalLM": {"use_sliding_window": False},
    "Qwen3MoeForCausalLM": {"use_sliding_window": False},
    "Qwen3NextForCausalLM": {
        **{"hidden_act": "silu", "attention_bias": False, "norm_topk_prob": True},
        **{"decoder_sparse_step": 1, "mlp_only_layers": []},
    },
    "Qwen3_5ForCausalLM": {"hidden_act": "silu", "attention_bias": False},
    "Qwen3_5MoeForCausalLM": {"hidden_act": "silu", "attention_bias": False},
    "GptOssForCausalLM": {"hidden_act": "silu", "swiglu_limit": 7.0},
    "GemmaForCausalLM": {
        **{"hidden_act": "gelu_pytorch_tanh", "hidden_activation": "gelu_pytorch_tanh"},
        **{"attention_bias": False, "tie_word_embeddings": True, "use_bidirectional_attention": False},
    },
    "Gemma2ForCausalLM": {**_GEMMA, "layer_types": ["sliding_attention", "full_attention"]},
    "Gemma3ForCausalLM": _GEMMA3,
    "Gemma3ForConditionalGeneration": _GEMMA3,
    "Gemma4ForConditionalGeneration": _GEMMA4,
    "Glm4MoeForCausalLM": {"hidden_act": "silu", "norm_topk_prob": True},
    "GlmMoeDsaForCausalLM": {
        **{"hidden_act": "silu", "norm_topk_prob": True, "attention_bias": False, "mlp_bias": False},
        **{"tie_word_embeddings": False, "indexer_rope_interleave": True},
    },
    "Glm4vMoeForConditionalGeneration": {
        **{"hidden_act": "silu", "norm_topk_prob": True, "n_group": 1, "topk_group": 1},
        **{"n_shared_experts": 1, "tie_word_embeddings": False},
    },
    "Exaone4ForCausalLM": {
        **{"hidden_act": "silu", "tie_word_embeddings": True, "attention_bias": False},
        **{"sliding_window": None, "layer_types": ["full_attention"]},
    },
    "Exaone4_5_ForConditionalGeneration": {"hidden_act": "silu", "tie_word_embeddings": False},
    "MiniMaxM3SparseForConditionalGeneration": {
        **{"swiglu_alpha": 1.702, "scoring_func": "sigmoid", "use_routing_bias": True},
        **{"use_gemma_norm": True, "use_qk_norm": True, "tie_word_embeddings": False},
    },
    "KimiK25ForConditionalGeneration": {
        **{"hidden_act": "silu", "norm_topk_prob": True, "attention_bias": False},
        **{"scoring_func": "sigmoid", "tie_word_embeddings": False},
    },
    "ExaoneMoEForCausalLM": {"hidden_act": "silu", "norm_topk_prob": True, "attention_bias": False},
    "FalconH1ForCausalLM": {
        **{"hidden_act": "silu", "attention_bias": False, "mlp_bias": False, "projectors_bias": False},
        **{"mamba_proj_bias": False, "mamba_conv_bias": True, "mamba_norm_before_gate": False},
    },
    "MiniMaxM2ForCausalLM": {
        **{"hidden_act": "silu", "tie_word_embeddings": False, "use_qk_norm": True},
        **{"scoring_func": "sigmoid", "use_routing_bias": True},
    },
    "NemotronHForCausalLM": _NEMOTRON_H,
    "NemotronH_Nano_VL_V2": _NEMOTRON_OF_MEDIA,
    "NemotronH_Nano_Omni_Reasoning_V3": _NEMOTRON_OF_MEDIA,
    "OlmoeForCausalLM": {"hidden_act": "silu", "norm_topk_prob": False, "clip_qkv": None},
    "Step3p5ForCausalLM": _STEP,
    "Step3p7ForConditionalGeneration": _STEP,
    "Qwen2_5_VLForConditionalGeneration": {"hidden_act": "silu", "use_sliding_window": False},
    "Qwen2AudioForConditionalGeneration": {"use_sliding_window": False},
    "Qwen3VLForConditionalGeneration": {"hidden_act": "silu"},
    "Qwen3_5ForConditionalGeneration": {"hidden_act": "silu", "attention_bias": False},
    "Qwen3_5MoeForConditionalGeneration": {"hidden_act": "silu", "attention_bias": False},
    "Mistral3ForConditionalGeneration": {
        **{"model_type": "ministral3", "hidden_act": "silu", "rms_norm_eps": 1e-5},
    },
    "Qwen3VLMoeForConditionalGeneration": {
        **{"hidden_act": "silu", "decoder_sparse_step": 1, "mlp_only_layers": []},
    },
    "Qwen3OmniMoeForConditionalGeneration": {
        **{"hidden_act": "silu", "decoder_sparse_step": 1, "mlp_only_layers": [], "norm_topk_prob": True},
        **{"use_sliding_window": False, "rope_theta": 1000000.0},
    },
}
"""Architecture -> settings with the only value that the model gets, whatever config.json has.

A list repeats over the layers.
"""
_FIXED_VISION: Final[Mapping[str, Settings]] = {
    "Exaone4_5_ForConditionalGeneration": {
        **{"hidden_act": "silu", "patch_size": 14, "spatial_merge_size": 2, "window_size": 112},
    },
    "Gemma3ForConditionalGeneration": {"vision_use_head": False},
    "KimiK25ForConditionalGeneration": {
        **{"merge_type": "sd2_tpool", "mm_projector_type": "patchmerger", "projector_hidden_act": "gelu"},
        "pos_emb_type": "divided_fixed",
    },
    "MiniMaxM3SparseForConditionalGeneration": {"hidden_act": "gelu"},
    "Step3p7ForConditionalGeneration": {
        **{"use_cls_token": False, "use_ln_pre": True, "use_ln_post": False},
        **{"use_abs_posemb": True, "use_rope2d": True},
    },
    "NemotronH_Nano_VL_V2": _RADIO,
    "NemotronH_Nano_Omni_Reasoning_V3": _RADIO,
    "Qwen3VLForConditionalGeneration": {"hidden_act": "gelu_pytorch_tanh"},
    "Qwen3VLMoeForConditionalGeneration": {"hidden_act": "gelu_pytorch_tanh"},
    "Qwen3_5ForConditionalGeneration": _QWEN35_TOWER,
    "Qwen3_5MoeForConditionalGeneration": _QWEN35_TOWER,
}
"""The same of `vision_config`."""
SELECTED: Final[Mapping[str, int]] = {"MiniMaxM3SparseForConditionalGeneration": 2048}
"""Architecture -> tokens of a sequence in which each query attends to all before it, at least."""
_PARTLY_ROTATED: Final = frozenset(
    {
        *("Glm4MoeForCausalLM", "Glm4vMoeForConditionalGeneration", "NemotronForCausalLM"),
        *("Qwen3NextForCausalLM", "Qwen3_5ForCausalLM", "Qwen3_5MoeForCausalLM"),
        *("Qwen3_5ForConditionalGeneration", "Qwen3_5MoeForConditionalGeneration"),
        *("MiniMaxM2ForCausalLM", "MiniMaxM3SparseForConditionalGeneration"),
        *("Step3p5ForCausalLM", "Step3p7ForConditionalGeneration", "DeepseekV4ForCausalLM"),
    }
)
"""Architectures whose `partial_rotary_factor` the model gets."""


_NOT_BUILT: Final = (
    *("replace_with_linear", "sparsify", "moe", "window_length", "num_sink_tokens"),
    *("use_prefill_window_in_sink_attention", "unshifted_sink"),
)
"""Settings of a part of a layer of Llama-Nemotron that must be unset."""


_READ_BY_BRIDGE: Final[Mapping[str, tuple[str, str]]] = {
    "HYV3ForCausalLM": ("first_k_dense_replace", "the number of first layers, which have no experts"),
}
"""Architecture -> setting that Bridge reads and the class in transformers does not have, and what it is."""


def require_all_taken(folder: HuggingFaceFolder) -> None:
    """Raise ConversionError for a setting that the model in Megatron would not have; names all of them.

    Also for one without which Bridge cannot build it.
    """
    name, meaning = _READ_BY_BRIDGE.get(folder.architecture, ("", ""))
    if name and _text(folder).get(name) is None:
        raise ConversionError(
            f"{folder.path}/config.json has no {name}, which Megatron-Bridge reads; add it: {meaning}"
        )
    found = (_positions, _others, _windows, _blocks, _layers, _rotated, _towers, _compressed, _groups)
    if problems := [problem for each in found for problem in each(folder)]:
        raise ConversionError(
            f"{folder.path}/config.json has what the model in Megatron would not have: "
            f"{'; '.join(problems)}. Its logits would be others: it cannot be converted"
        )


def _text(folder: HuggingFaceFolder) -> Settings:
    """Settings of the text's part of a model that also reads images; they may be beside the others."""
    settings = _understanding(folder)
    return dict(settings.get("text_config") or settings.get("llm_config") or settings)


def _understanding(folder: HuggingFaceFolder) -> Settings:
    """Settings of what is converted: of Qwen3-Omni the part that does not speak."""
    found: Settings = folder.config.get("thinker_config") or folder.config
    return found


def _positions(folder: HuggingFaceFolder) -> Iterator[str]:
    known = POSITIONS.get(folder.architecture, {"default": {}})
    text = _text(folder)
    rope = text.get("rope_parameters") or text.get("rope_scaling") or {}
    if not isinstance(rope, dict):
        yield f"rope_parameters {rope!r}"
        return
    # Gemma 3 has some for each kind of layer.
    for each in [part for part in rope.values() if isinstance(part, dict)] or [rope]:
        yield from _of_one_kind(each, known)
    partly = rope.get("partial_rotary_factor", text.get("partial_rotary_factor"))
    if partly not in (None, 1, 1.0) and folder.architecture not in _PARTLY_ROTATED:
        yield "partial_rotary_factor other than 1"


def _of_one_kind(rope: Settings, known: Mapping[str, Settings]) -> Iterator[str]:
    kind = str(rope.get("rope_type", rope.get("type", "default")))
    if kind not in known:
        # Of a family that always has one, its own class supplies what config.json leaves out.
        if rope or "default" in known:
            yield f"rope_type {kind!r} (known: {', '.join(known)})"
        return
    for name, value in known[kind].items():
        if rope.get(name, value) != value:
            yield f"{name} {rope[name]!r} of rope_type {kind!r}, which is {value} there"
    if known[kind] is _LATENT_YARN:
        yield from _scales(rope)


def _scales(rope: Settings) -> Iterator[str]:
    """Scales of YaRN that transformers reads only together, and Megatron each by itself."""
    scale, of_all = rope.get("mscale"), rope.get("mscale_all_dim")
    if of_all and not scale:
        yield f"mscale_all_dim {of_all!r} without mscale"
    if scale and scale != 1 and not of_all:
        yield f"mscale {scale!r} without mscale_all_dim"


def _others(folder: HuggingFaceFolder) -> Iterator[str]:
    vision: Settings = _understanding(folder).get("vision_config") or {}
    for settings, fixed, place in (
        (_text(folder), _FIXED, ""),
        (vision, _FIXED_VISION, " of vision_config"),
    ):
        for name, value in fixed.get(folder.architecture, {}).items():
            found = settings.get(name)
            if found is None and name == "tie_word_embeddings" and not place:
                # A setting of the whole model, where it also reads images.
                found = _understanding(folder).get(name)
            if found is not None and found != _repeated(value, found):
                yield f"{name} {found!r}{place}, which is {value!r} there"


def _windows(folder: HuggingFaceFolder) -> Iterator[str]:
    """An image of Gemma 3 that is longer than a window: in transformers all of it sees all of it.

    EXAONE 4.5 without windows: there all layers have rotary embeddings.
    """
    hybrid = folder.architecture == "Exaone4_5_ForConditionalGeneration"
    if hybrid and _text(folder).get("sliding_window", 4096) is None:
        yield "sliding_window None"
    if folder.architecture == "Gemma3ForConditionalGeneration":
        tokens = folder.config.get("mm_tokens_per_image") or 256
        window = _text(folder).get("sliding_window") or 4096
        if tokens > window:
            yield f"mm_tokens_per_image {tokens}, which is more than sliding_window {window}"


def _blocks(folder: HuggingFaceFolder) -> Iterator[str]:
    """Fewer tokens that a query of MiniMax-M3 attends to than a sequence may have."""
    if folder.architecture in SELECTED:
        text = _text(folder)
        older = text.get("sparse_attention_config") or {}
        size = text.get("index_block_size", older.get("sparse_block_size", 128))
        blocks = text.get("index_topk_blocks", older.get("sparse_topk_blocks", 16))
        if size * blocks < (least := SELECTED[folder.architecture]):
            yield f"index_topk_blocks {blocks} of index_block_size {size}, fewer tokens than {least}"


def _layers(folder: HuggingFaceFolder) -> Iterator[str]:
    """Parts of a layer of Llama-Nemotron that Bridge does not build, or in another size than it has them."""
    if folder.architecture != "DeciLMForCausalLM":
        return
    groups = set()
    for number, block in enumerate(folder.config.get("block_configs") or ()):
        for part in ("attention", "ffn"):
            settings: Settings = block.get(part) or {}
            for name in _NOT_BUILT:
                if settings.get(name):
                    yield f"{name} {settings[name]!r} of {part} of block_configs[{number}]"
        if parallel := block.get("parallel_blocks"):
            yield f"parallel_blocks {parallel!r} of block_configs[{number}]"
        attention: Settings = block.get("attention") or {}
        if not attention.get("no_op"):
            groups.add(attention.get("n_heads_in_group"))
    if len(groups) > 1:
        yield f"n_heads_in_group {', '.join(map(str, sorted(groups, key=str)))} in different layers"


def _rotated(folder: HuggingFaceFolder) -> Iterator[str]:
    """Elements of a head of MiniMax-M3 that are rotated, of which transformers reads the other setting."""
    if folder.architecture == "MiniMaxM3SparseForConditionalGeneration":
        text = _text(folder)
        rope = text.get("rope_parameters") or {}
        part = rope.get("partial_rotary_factor", text.get("partial_rotary_factor"))
        width, rotated = text.get("head_dim", 128), text.get("rotary_dim", 64)
        if part is not None and int(part * width) != rotated:
            yield f"rotary_dim {rotated} and partial_rotary_factor {part} of head_dim {width}"


def _towers(folder: HuggingFaceFolder) -> Iterator[str]:
    """Towers and projectors of Nemotrons that read images other than those that Bridge builds."""
    if folder.architecture not in ("NemotronH_Nano_VL_V2", "NemotronH_Nano_Omni_Reasoning_V3"):
        return
    vision: Settings = folder.config.get("vision_config") or {}
    sound: Settings = folder.config.get("sound_config") or {}
    of_sound = {"subsampling_factor": 8, "scale_input": False, "projection_bias": False}
    for settings, place, fixed in (
        (vision.get("args") or {}, " of vision_config.args", {"model": "vit_huge_patch16_224"}),
        (folder.config, "", {"downsample_ratio": 0.5, "ps_version": "v2"}),
        (sound, " of sound_config", of_sound),
    ):
        for name, value in fixed.items():
            if (found := settings.get(name, value)) != value:
                yield f"{name} {found!r}{place}, which is {value!r} there"


def _compressed(folder: HuggingFaceFolder) -> Iterator[str]:
    """Entries of DeepSeek-V4's attention of other lengths than those that distinguish its two kinds."""
    if folder.architecture != "DeepseekV4ForCausalLM":
        return
    rates = {"compressed_sparse_attention": 4, "heavily_compressed_attention": 128}
    rates |= folder.config.get("compress_rates") or {}
    if rates["compressed_sparse_attention"] != 4 or rates["heavily_compressed_attention"] == 4:
        yield f"compress_rates {rates!r}, of which the first alone is 4 there"
    rope = folder.config.get("rope_parameters") or {}
    if (main := (rope.get("main") or {}).get("rope_type", "default")) != "default":
        yield f"rope_type {main!r} of main"


def _groups(folder: HuggingFaceFolder) -> Iterator[str]:
    """Groups of experts that are chosen by another rule than Megatron's.

    That takes those with the largest sums of the best experts, as many of each group as a token has experts
    per chosen group; DeepSeek-V2 the best expert alone, later models the best two.
    """
    text = _text(folder)
    groups, chosen = text.get("n_group") or 1, text.get("topk_group") or 1
    taken = text.get("num_experts_per_tok") or 1
    summed = taken // chosen
    method = f" of topk_method {text['topk_method']!r}" if "topk_method" in text else ""
    found = f"n_group {groups}, topk_group {chosen} and num_experts_per_tok {taken}{method}"
    if chosen >= groups:
        return
    if folder.architecture == "DeepseekV2ForCausalLM":
        if text.get("topk_method", "greedy") == "greedy":
            yield f"{found}, which does not limit groups"
        elif summed != 1:
            yield f"{found}, which takes groups by their best expert: Megatron adds the best {summed}"
    elif summed != 2:
        yield f"{found}, which takes groups by their best two experts: Megatron adds the best {summed}"


def _repeated(value: Any, found: Any) -> Any:
    if isinstance(found, list) and isinstance(value, list) and value:
        return [value[layer % len(value)] for layer in range(len(found))]
    return value
