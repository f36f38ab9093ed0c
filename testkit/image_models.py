"""Small random models that read images, with their processors: one of each family that is trained."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from testkit import image_text
from testkit.exaone_minimax import write_exaone45, write_minimax_m3
from testkit.image_text import CHATML, VOCABULARY
from testkit.kimi import write_kimi_k25
from testkit.step37 import write_step37
from testkit.weights.gated_delta import QWEN3_5, QWEN3_5_MOE, write_prediction


@dataclass(frozen=True)
class ImageFamily:
    """A family by its name in testkit.fine_tuned."""

    name: str
    architecture: str
    """The name in `architectures` of config.json."""
    write: Callable[..., Any]
    """Writes a model and its processor into a folder, in a dtype; returns the model of transformers."""
    end: str
    """What ends an answer, and counts in the loss."""


def write_qwen3_vl(folder: Path, dtype: str = "bfloat16", *, experts: bool = False) -> Any:
    """Write a Qwen3-VL of four layers of text and three of vision, two of which feed layers of text.

    `experts`: four in each layer of text.
    """
    text: dict[str, Any] = {
        **{"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 4, "head_dim": 32},
        **{"num_attention_heads": 4, "num_key_value_heads": 2, "bos_token_id": 0},
        "rope_parameters": {
            **{"rope_type": "default", "rope_theta": 5e6},
            **{"mrope_section": [6, 5, 5], "mrope_interleaved": True},
        },
    }
    if experts:
        text |= {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
    kind = "Qwen3VLMoe" if experts else "Qwen3VL"
    return _write_qwen(folder, dtype, kind, text, {"depth": 3, "deepstack_visual_indexes": [0, 1]})


def write_qwen35_vl(
    folder: Path, dtype: str = "bfloat16", *, sizes: Mapping[str, Any] = QWEN3_5, tied: bool = False
) -> Any:
    """Write a Qwen3.5-VL of four layers of text and two of vision, with a layer of multi-token prediction.

    `sizes`: of its text. `tied`: its output to its embedding, as those up to 4B.
    """
    text = {
        **sizes,
        **{"head_dim": 64, "mtp_num_hidden_layers": 1, "tie_word_embeddings": tied},
        "rope_parameters": {
            **{"rope_type": "default", "rope_theta": 1e7, "partial_rotary_factor": 0.25},
            **{"mrope_section": [3, 3, 2], "mrope_interleaved": True},
        },
    }
    kind = "Qwen3_5Moe" if "num_experts" in sizes else "Qwen3_5"
    model = _write_qwen(folder, dtype, kind, text, {"depth": 2}, tied=tied)
    write_prediction(folder / "model.safetensors", "model.language_model.")
    return model


def _write_qwen(
    folder: Path,
    dtype: str,
    kind: str,
    text: Mapping[str, Any],
    vision: Mapping[str, Any],
    *,
    tied: bool = False,
) -> Any:
    """Write a model with Qwen3-VL's vision tower and processor; return it.

    `kind`: what names of its classes begin with. `text`, `vision`: its sizes beside those that all have.
    """
    import transformers

    tokenizer = image_text.write_tokenizer(folder)
    config = getattr(transformers, f"{kind}Config")(
        text_config={
            **text,
            **{"vocab_size": VOCABULARY, "max_position_embeddings": 2048},
            "eos_token_id": tokenizer.eos_token_id,
        },
        vision_config={
            **{"hidden_size": 32, "intermediate_size": 64, "num_heads": 2},
            **{"out_hidden_size": 64, "num_position_embeddings": 64},
            **vision,
        },
        **image_text.image_tokens(tokenizer),
        tie_word_embeddings=tied,
    )
    images = transformers.Qwen2VLImageProcessor(patch_size=16)
    videos = transformers.Qwen3VLVideoProcessor()
    processor = transformers.Qwen3VLProcessor(images, tokenizer, videos, chat_template=CHATML)
    return image_text.save_model(
        getattr(transformers, f"{kind}ForConditionalGeneration"), config, processor, folder, dtype
    )


def write_ministral3(folder: Path, dtype: str = "bfloat16", *, tied: bool = False) -> Any:
    """Write a Ministral 3 of two layers of text and two of vision.

    `tied`: its output to its embedding, as that of 3B.
    """
    import transformers

    tokenizer = image_text.write_tokenizer(folder, _OF_MISTRAL, "</s>", "<pad>", _MISTRAL)
    ids = {word: tokenizer.convert_tokens_to_ids(word) for word in _OF_MISTRAL}
    config = transformers.Mistral3Config(
        text_config={
            **{"model_type": "ministral3", "hidden_size": 64, "intermediate_size": 128, "head_dim": 32},
            **{"num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2},
            **{"vocab_size": VOCABULARY, "max_position_embeddings": 262144, "tie_word_embeddings": tied},
            **{"bos_token_id": ids["<s>"], "eos_token_id": ids["</s>"], "pad_token_id": ids["<pad>"]},
        },
        vision_config={
            **{"model_type": "pixtral", "hidden_size": 32, "intermediate_size": 64, "head_dim": 16},
            **{"num_hidden_layers": 2, "num_attention_heads": 2, "patch_size": 14, "image_size": 1540},
        },
        image_token_index=ids["[IMG]"],
        spatial_merge_size=2,
        tie_word_embeddings=tied,
    )
    processor = transformers.PixtralProcessor(
        transformers.PixtralImageProcessor(patch_size=14),
        tokenizer,
        patch_size=14,
        spatial_merge_size=2,
        chat_template=_MISTRAL,
    )
    return image_text.save_model(
        transformers.Mistral3ForConditionalGeneration, config, processor, folder, dtype
    )


def write_gemma3(folder: Path, dtype: str = "bfloat16") -> Any:
    """Write a Gemma 3 of six layers of text, the last of which sees all of a sequence, and two of vision."""
    import transformers

    words = [word for word in _OF_GEMMA if word not in ("<eos>", "<pad>")]
    tokenizer = image_text.write_tokenizer(
        folder,
        tuple(words[len(_GEMMA_IMAGE) :]),
        "<eos>",
        "<pad>",
        _GEMMA,
        dict(zip(("boi_token", "image_token", "eoi_token"), _GEMMA_IMAGE, strict=True)),
    )
    ids = {word: tokenizer.convert_tokens_to_ids(word) for word in _OF_GEMMA}
    config = transformers.Gemma3Config(
        text_config={
            **{"hidden_size": 64, "intermediate_size": 128, "head_dim": 32, "num_hidden_layers": 6},
            **{"num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": VOCABULARY},
            **{"query_pre_attn_scalar": 32, "sliding_window": 32, "max_position_embeddings": 131072},
            **{"bos_token_id": ids["<bos>"], "eos_token_id": ids["<eos>"], "pad_token_id": ids["<pad>"]},
            "rope_parameters": {
                "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6},
                "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
            },
        },
        vision_config={
            **{"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2},
            **{"num_attention_heads": 2, "patch_size": 14, "image_size": 112, "vision_use_head": False},
        },
        mm_tokens_per_image=16,
        boi_token_index=ids["<start_of_image>"],
        eoi_token_index=ids["<end_of_image>"],
        image_token_index=ids["<image_soft_token>"],
    )
    images = transformers.Gemma3ImageProcessor(size={"height": 112, "width": 112})
    processor = transformers.Gemma3Processor(images, tokenizer, chat_template=_GEMMA, image_seq_length=16)
    return image_text.save_model(
        transformers.Gemma3ForConditionalGeneration, config, processor, folder, dtype
    )


def write_gemma4(folder: Path, dtype: str = "bfloat16", *, experts: bool = True) -> Any:
    """Write a Gemma 4 of six layers of text, by default with four experts each, and two of vision.

    The last layer of text sees all of a sequence, with heads of another width whose values are their keys.
    """
    import transformers

    named = {
        **dict(zip(("boi_token", "image_token", "eoi_token"), _GEMMA4_IMAGE, strict=True)),
        **dict(zip(("boa_token", "audio_token", "eoa_token"), _GEMMA4_SOUND, strict=True)),
    }
    tokenizer = image_text.write_tokenizer(folder, _OF_GEMMA4, "<eos>", "<pad>", _GEMMA4, named)
    ids = dict(zip(named, tokenizer.convert_tokens_to_ids(list(named.values())), strict=True))
    # Bridge pads that of dense models to a multiple of 128, which the published one is.
    vocabulary = VOCABULARY if experts else 384
    config = transformers.Gemma4Config(
        text_config={
            **{"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 6, "vocab_size": vocabulary},
            **{"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32},
            **{"num_global_key_value_heads": 1, "global_head_dim": 64, "attention_k_eq_v": True},
            **({"enable_moe_block": True, **_GEMMA4_EXPERTS} if experts else {}),
            **{"vocab_size_per_layer_input": vocabulary, "hidden_size_per_layer_input": 0},
            **{"sliding_window": 32, "final_logit_softcapping": 30.0},
            **{"bos_token_id": tokenizer.convert_tokens_to_ids("<bos>")},
            **{"eos_token_id": tokenizer.eos_token_id, "pad_token_id": tokenizer.pad_token_id},
            "use_bidirectional_attention": "vision",
        },
        vision_config={
            **{"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "head_dim": 16},
            **{"num_attention_heads": 2, "num_key_value_heads": 2},
            **{"position_embedding_size": 64, "standardize": True},
        },
        boi_token_id=ids["boi_token"],
        image_token_id=ids["image_token"],
        eoi_token_id=ids["eoi_token"],
        boa_token_id=ids["boa_token"],
        audio_token_id=ids["audio_token"],
        eoa_token_index=ids["eoa_token"],
        video_token_id=tokenizer.convert_tokens_to_ids("<|video|>"),
    )
    processor = transformers.Gemma4Processor(
        transformers.Gemma4AudioFeatureExtractor(),
        transformers.Gemma4ImageProcessor(max_soft_tokens=70),
        tokenizer,
        transformers.Gemma4VideoProcessor(),
        chat_template=_GEMMA4,
        image_seq_length=70,
    )
    return image_text.save_model(
        transformers.Gemma4ForConditionalGeneration, config, processor, folder, dtype
    )


def write_glm45v(folder: Path, dtype: str = "bfloat16") -> Any:
    """Write a GLM-4.5V of two layers of text, the second with four experts, and two of vision."""
    import transformers

    tokenizer = image_text.write_tokenizer(folder, _OF_GLM, "<|endoftext|>", "<|endoftext|>", _GLM)
    ids = {word: tokenizer.convert_tokens_to_ids(word) for word in _OF_GLM}
    config = transformers.Glm4vMoeConfig(
        text_config={
            # Bridge has the sections of heads of 128 elements, whatever config.json has.
            **{"hidden_size": 256, "intermediate_size": 128, "num_hidden_layers": 2, "head_dim": 128},
            **{"num_attention_heads": 2, "num_key_value_heads": 2, "vocab_size": VOCABULARY},
            **{"n_routed_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32},
            **{"max_position_embeddings": 2048, "eos_token_id": ids["<|endoftext|>"], "use_qk_norm": False},
            "rope_parameters": {
                **{"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.5},
                "mrope_section": [8, 12, 12],
            },
        },
        vision_config={
            **{"depth": 2, "hidden_size": 32, "intermediate_size": 64, "num_heads": 2},
            **{"out_hidden_size": 256, "image_size": 84},
        },
        image_token_id=ids["<|image|>"],
        video_token_id=ids["<|video|>"],
        image_start_token_id=ids["<|begin_of_image|>"],
        image_end_token_id=ids["<|end_of_image|>"],
        video_start_token_id=ids["<|begin_of_video|>"],
        video_end_token_id=ids["<|end_of_video|>"],
    )
    processor = transformers.Glm4vProcessor(
        transformers.Glm4vImageProcessor(size={"shortest_edge": 112 * 112, "longest_edge": 448 * 448}),
        tokenizer,
        transformers.Glm4vVideoProcessor(),
        chat_template=_GLM,
    )
    return image_text.save_model(
        transformers.Glm4vMoeForConditionalGeneration, config, processor, folder, dtype
    )


_OF_MISTRAL = ("<s>", "</s>", "<pad>", "[INST]", "[/INST]", "[IMG]", "[IMG_BREAK]", "[IMG_END]")
_MISTRAL = (
    "<s>{% for m in messages %}{% if m['role'] == 'user' %}[INST]{% endif %}"
    "{% if m['content'] is string %}{{ m['content'] }}{% else %}{% for part in m['content'] %}"
    "{% if part['type'] == 'image' %}[IMG]{% else %}{{ part['text'] }}{% endif %}{% endfor %}{% endif %}"
    "{% if m['role'] == 'user' %}[/INST]{% else %}</s>{% endif %}{% endfor %}"
)
_GEMMA_IMAGE = ("<start_of_image>", "<image_soft_token>", "<end_of_image>")
_OF_GEMMA = (*_GEMMA_IMAGE, "<bos>", "<eos>", "<pad>", "<start_of_turn>", "<end_of_turn>")
_GEMMA = (
    "<bos>{% for m in messages %}{% if m['role'] == 'user' %}<start_of_turn>user\n"
    "{% else %}<start_of_turn>model\n{% endif %}"
    "{% if m['content'] is string %}{{ m['content'] }}{% else %}{% for part in m['content'] %}"
    "{% if part['type'] == 'image' %}<start_of_image>{% else %}{{ part['text'] }}{% endif %}{% endfor %}"
    "{% endif %}<end_of_turn>\n{% endfor %}"
)
_GEMMA4_EXPERTS = {"num_experts": 4, "top_k_experts": 2, "moe_intermediate_size": 32}
_GEMMA4_IMAGE = ("<|image>", "<|image|>", "<image|>")
_GEMMA4_SOUND = ("<|audio>", "<|audio|>", "<audio|>")
_OF_GEMMA4 = ("<bos>", "<|turn>", "<turn|>", "<|video|>")
_GEMMA4 = (
    "<bos>{% for m in messages %}{% if m['role'] == 'user' %}<|turn>user\n{% else %}<|turn>model\n{% endif %}"
    "{% if m['content'] is string %}{{ m['content'] }}{% else %}{% for part in m['content'] %}"
    "{% if part['type'] == 'image' %}<|image|>{% else %}{{ part['text'] }}{% endif %}{% endfor %}{% endif %}"
    "<turn|>\n{% endfor %}"
)
_OF_GLM = (
    *("<|endoftext|>", "[gMASK]", "<sop>", "<|user|>", "<|assistant|>", "<|system|>", "<|observation|>"),
    *("<think>", "</think>", "<|image|>", "<|begin_of_image|>", "<|end_of_image|>"),
    *("<|video|>", "<|begin_of_video|>", "<|end_of_video|>"),
)
_GLM = (
    "[gMASK]<sop>{% for m in messages %}{% if m['role'] == 'user' %}<|user|>\n"
    "{% else %}<|assistant|>\n<think></think>\n{% endif %}"
    "{% if m['content'] is string %}{{ m['content'] }}{% else %}{% for part in m['content'] %}"
    "{% if part['type'] == 'image' %}<|begin_of_image|><|image|><|end_of_image|>"
    "{% else %}{{ part['text'] }}{% endif %}{% endfor %}{% endif %}{% endfor %}"
)
_CHATML_END = "<|im_end|>\n"
FAMILIES = {
    family.name: family
    for family in (
        ImageFamily("Qwen2.5-VL", image_text.ARCHITECTURE, image_text.write_model, _CHATML_END),
        ImageFamily("Qwen3-VL", "Qwen3VLForConditionalGeneration", write_qwen3_vl, _CHATML_END),
        ImageFamily(
            "Qwen3-VL-MoE",
            "Qwen3VLMoeForConditionalGeneration",
            partial(write_qwen3_vl, experts=True),
            _CHATML_END,
        ),
        ImageFamily("Qwen3.5-VL", "Qwen3_5ForConditionalGeneration", write_qwen35_vl, _CHATML_END),
        ImageFamily(
            "Qwen3.5-VL, tied embedding",
            "Qwen3_5ForConditionalGeneration",
            partial(write_qwen35_vl, tied=True),
            _CHATML_END,
        ),
        ImageFamily(
            "Qwen3.5-VL-MoE",
            "Qwen3_5MoeForConditionalGeneration",
            partial(write_qwen35_vl, sizes=QWEN3_5_MOE),
            _CHATML_END,
        ),
        ImageFamily(
            "Ministral 3, tied embedding",
            "Mistral3ForConditionalGeneration",
            partial(write_ministral3, tied=True),
            "</s>",
        ),
        ImageFamily("Ministral 3", "Mistral3ForConditionalGeneration", write_ministral3, "</s>"),
        ImageFamily("Gemma 3 VL", "Gemma3ForConditionalGeneration", write_gemma3, "<end_of_turn>"),
        # The last token of a conversation counts, which its template has behind the end of an answer.
        ImageFamily("Gemma 4 VL", "Gemma4ForConditionalGeneration", write_gemma4, "<turn|>\n"),
        ImageFamily(
            "Gemma 4 VL, dense",
            "Gemma4ForConditionalGeneration",
            partial(write_gemma4, experts=False),
            "<turn|>\n",
        ),
        # Bridge leaves out what ends an answer.
        ImageFamily("GLM-4.5V", "Glm4vMoeForConditionalGeneration", write_glm45v, ""),
        ImageFamily("MiniMax-M3", "MiniMaxM3SparseForConditionalGeneration", write_minimax_m3, "[e~["),
        ImageFamily("EXAONE 4.5 VL", "Exaone4_5_ForConditionalGeneration", write_exaone45, "<|endofturn|>"),
        ImageFamily("Kimi-K2.5", "KimiK25ForConditionalGeneration", write_kimi_k25, "<|im_end|>"),
        ImageFamily("Step-3.7", "Step3p7ForConditionalGeneration", write_step37, "<|im_end|>"),
    )
}
"""By name."""
