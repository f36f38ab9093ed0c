"""A small random Kimi-K2.5 that reads images, with its processor."""

import json
from pathlib import Path
from typing import Any, Final

from testkit import image_text
from testkit.image_text import VOCABULARY
from testkit.weights.families import LATENT


def write_kimi_k25(folder: Path, dtype: str = "bfloat16") -> Any:
    """Write a Kimi-K2.5 of three layers of text, the last two with four experts, and two of vision.

    Its folder has the names of architecture and weights of the published one, which transformers reads and
    does not write. Returns the model of transformers.
    """
    import transformers

    tokenizer = image_text.write_tokenizer(folder, _OF_KIMI, "<|im_end|>", "[PAD]", _KIMI)
    config = transformers.Kimi_K25Config(
        text_config={
            **{**LATENT, "norm_topk_prob": True, "num_nextn_predict_layers": 0, "tie_word_embeddings": False},
            **{"model_type": "deepseek_v3", "vocab_size": VOCABULARY, "max_position_embeddings": 2048},
            **{"num_hidden_layers": 3, "bos_token_id": None, "eos_token_id": tokenizer.eos_token_id},
        },
        vision_config={
            **{"hidden_size": 32, "intermediate_size": 64, "num_attention_heads": 2},
            **{"num_hidden_layers": 2, "pos_emb_height": 8, "pos_emb_width": 8},
        },
        projection_hidden_size=32,
        image_token_id=tokenizer.convert_tokens_to_ids("<|media_pad|>"),
        video_token_id=VOCABULARY,
        tie_word_embeddings=False,
    )
    processor = transformers.Kimi_K25Processor(
        transformers.Kimi_K25ImageProcessor(),
        tokenizer,
        transformers.Kimi_K25VideoProcessor(),
        chat_template=_KIMI,
    )
    kind = transformers.Kimi_K25ForConditionalGeneration
    model = image_text.save_model(kind, config, processor, folder, dtype)
    _publish(folder)
    return model


def _publish(folder: Path) -> None:
    """Give a folder that transformers wrote the names of the published one."""
    from safetensors.torch import load_file, save_file

    weights = load_file(folder / "model.safetensors")
    for written, published in _PUBLISHED:
        weights = {name.replace(written, published): tensor for name, tensor in weights.items()}
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    settings = json.loads((folder / "config.json").read_text())
    settings["architectures"] = ["KimiK25ForConditionalGeneration"]
    (folder / "config.json").write_text(json.dumps(settings))


_PUBLISHED: Final = (
    ("language_model.model.blocks.", "language_model.model.layers."),
    ("model.mm_projector.", "mm_projector."),
    ("vision_tower.encoder.patch_embed.", "vision_tower.patch_embed."),
)
"""What names of weights have in folders that transformers 5.23 writes, and in the published one."""
_OF_KIMI: Final = (
    *("[PAD]", "<|im_user|>", "<|im_assistant|>", "<|im_middle|>", "<|im_end|>", "<think>", "</think>"),
    *("<|media_begin|>", "<|media_content|>", "<|media_pad|>", "<|media_end|>"),
    "<|kimi_k25_video_placeholder|>",
)
_KIMI: Final = (
    "{% for m in messages %}<|im_{{ m['role'] }}|>{{ m['role'] }}<|im_middle|>"
    "{% if m['role'] == 'assistant' %}<think></think>{% endif %}"
    "{% if m['content'] is string %}{{ m['content'] }}{% else %}{% for part in m['content'] %}"
    "{% if part['type'] == 'image' %}<|media_begin|>image<|media_content|><|media_pad|><|media_end|>"
    "{% else %}{{ part['text'] }}{% endif %}{% endfor %}{% endif %}<|im_end|>{% endfor %}"
    "{% if add_generation_prompt %}<|im_assistant|>assistant<|im_middle|><think>{% endif %}"
)
