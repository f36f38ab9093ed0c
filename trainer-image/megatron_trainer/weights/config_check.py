"""Settings of config.json that Bridge leaves out of the model it builds, whose logits would be others."""

from collections.abc import Iterator, Mapping
from typing import Any, Final

from megatron_trainer.weights.conversion_error import ConversionError
from megatron_trainer.weights.fixed_settings import (
    FIXED,
    FIXED_VISION,
    LATENT_YARN,
    NOT_BUILT,
    PARTLY_ROTATED,
    POSITIONS,
    SELECTED,
    Settings,
)
from megatron_trainer.weights.huggingface_folder import HuggingFaceFolder

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
    if partly not in (None, 1, 1.0) and folder.architecture not in PARTLY_ROTATED:
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
    if known[kind] is LATENT_YARN:
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
        (_text(folder), FIXED, ""),
        (vision, FIXED_VISION, " of vision_config"),
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
            for name in NOT_BUILT:
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
