"""Small random models of EXAONE 4.5 and MiniMax-M3, with their processors."""

from pathlib import Path
from typing import Any

from testkit import image_text
from testkit.image_text import VOCABULARY
from testkit.weights.families import write_exaone_prediction

MINIMAX_M3: dict[str, Any] = {
    **{"hidden_size": 64, "intermediate_size": 32, "dense_intermediate_size": 128, "head_dim": 32},
    **{"shared_intermediate_size": 48, "num_hidden_layers": 4, "num_attention_heads": 4},
    **{"num_key_value_heads": 2, "num_local_experts": 4, "num_experts_per_tok": 2},
    **{"rotary_dim": 16, "index_n_heads": 2, "index_head_dim": 16, "vocab_size": VOCABULARY},
    "rope_parameters": {"rope_type": "default", "rope_theta": 5e6, "partial_rotary_factor": 0.5},
    "layer_types": ["full_attention", *["minimax_m3_sparse"] * 3],
    "mlp_layer_types": ["dense", *["sparse"] * 3],
}
"""Of its text: all layers but the first have four experts each, and attend to selected blocks."""


def write_exaone45(folder: Path, dtype: str = "bfloat16") -> Any:
    """Write an EXAONE 4.5 of four layers of text and four of vision, with a layer of multi-token prediction.

    The last layer of text sees all of a sequence, that of vision all of an image; the others see windows.
    """
    import transformers

    tokenizer = image_text.write_tokenizer(folder, _OF_EXAONE, "<|endofturn|>", "<pad>", _EXAONE)
    ids = {word: tokenizer.convert_tokens_to_ids(word) for word in _OF_EXAONE}
    config = transformers.Exaone4_5_Config(
        text_config={
            **{"model_type": "exaone4", "hidden_size": 64, "intermediate_size": 128, "head_dim": 16},
            **{"num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 2},
            **{"vocab_size": VOCABULARY, "max_position_embeddings": 262144, "sliding_window": 32},
            **{"bos_token_id": None, "eos_token_id": tokenizer.eos_token_id, "num_nextn_predict_layers": 1},
            "rope_parameters": {
                **{"rope_type": "llama3", "rope_theta": 1e6, "factor": 16.0, "low_freq_factor": 1.0},
                **{"high_freq_factor": 4.0, "original_max_position_embeddings": 8192},
            },
        },
        vision_config={
            **{"depth": 4, "hidden_size": 64, "intermediate_size": 96, "num_heads": 4},
            **{"num_key_value_heads": 2, "out_hidden_size": 64, "fullatt_block_indexes": [3]},
        },
        image_token_id=ids["<|image_pad|>"],
        video_token_id=ids["<|video_pad|>"],
        vision_start_token_id=ids["<vision>"],
        vision_end_token_id=ids["</vision>"],
    )
    processor = transformers.Exaone4_5_Processor(
        # Several windows of an image.
        transformers.Qwen2VLImageProcessor(min_pixels=224 * 224, max_pixels=448 * 448),
        tokenizer,
        transformers.Qwen2VLVideoProcessor(),
        chat_template=_EXAONE,
    )
    model = image_text.save_model(
        transformers.Exaone4_5_ForConditionalGeneration, config, processor, folder, dtype
    )
    write_exaone_prediction(folder / "model.safetensors", "model.language_model.")
    return model


def write_minimax_m3(folder: Path, dtype: str = "bfloat16") -> Any:
    """Write a MiniMax-M3 of four layers of text and two of vision.

    All layers of text but the first have four experts each, and attend to selected blocks of the sequence.
    """
    import transformers

    tokenizer = image_text.write_tokenizer(folder, _OF_MINIMAX, "[e~[", "]!p~[", _MINIMAX)
    ids = {word: tokenizer.convert_tokens_to_ids(word) for word in _OF_MINIMAX}
    config = transformers.MiniMaxM3VLConfig(
        text_config=MINIMAX_M3 | {"bos_token_id": ids["]~!b["], "eos_token_id": tokenizer.eos_token_id},
        vision_config={
            **{"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2},
            **{"num_attention_heads": 2, "image_size": 448},
        },
        image_token_index=ids["]<]image[>["],
        video_token_index=ids["]<]video[>["],
        projector_hidden_size=96,
        # Of the projector, whose features would be small beside its biases.
        initializer_range=0.1,
    )
    processor = transformers.MiniMaxM3VLProcessor(
        transformers.MiniMaxM3VLImageProcessor(),
        tokenizer,
        transformers.MiniMaxM3VLVideoProcessor(),
        chat_template=_MINIMAX,
    )
    kind = transformers.MiniMaxM3SparseForConditionalGeneration
    return image_text.save_model(kind, config, processor, folder, dtype)


_OF_EXAONE = ("<|image_pad|>", "<|video_pad|>", "<vision>", "</vision>", "<think>", "</think>")
_EXAONE = (
    "{% for m in messages %}<|{{ m['role'] }}|>\n"
    "{% if m['role'] == 'assistant' %}<think>\n\n</think>\n\n{% endif %}"
    "{% if m['content'] is string %}{{ m['content'] }}{% else %}{% for part in m['content'] %}"
    "{% if part['type'] == 'image' %}<vision><|image_pad|></vision>{% else %}{{ part['text'] }}{% endif %}"
    "{% endfor %}{% endif %}<|endofturn|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>\n<think>\n{% endif %}"
)
_OF_MINIMAX = (
    *("]<]image[>[", "]<]video[>[", "]<]start of image[>[", "]<]end of image[>["),
    *("]~!b[", "]~b]", "[e~[", "<think>", "</think>"),
)
_MINIMAX = (
    "]~!b[{% for m in messages %}]~b]{{ {'user': 'user', 'assistant': 'ai'}[m['role']] }}\n"
    "{% if m['content'] is string %}{{ m['content'] }}{% else %}{% for part in m['content'] %}"
    "{% if part['type'] == 'image' %}]<]image[>[{% else %}{{ part['text'] }}{% endif %}"
    "{% endfor %}{% endif %}[e~[\n{% endfor %}"
    "{% if add_generation_prompt %}]~b]ai\n<think>\n{% endif %}"
)
