"""A small random Step-3.7 that reads images, with its processor."""

import json
from pathlib import Path
from typing import Any, Final

from testkit import image_text
from testkit.image_text import VOCABULARY
from testkit.weights.step import PUBLISHED, STEP_PREDICTING


def write_step37(folder: Path, dtype: str = "bfloat16") -> Any:
    """Write a Step-3.7 with the text of Step-3.5, two layers of multi-token prediction and two of vision.

    Its config.json and its weights have the names of the published ones. An image is 56 x 56 pixels, beside
    parts of the same size into which it is cut. Returns the model of transformers.
    """
    import transformers

    from testkit.weights import step_model

    tokenizer = image_text.write_tokenizer(folder, _SPECIAL, "<|im_end|>", "<|endoftext|>", _TEMPLATE)
    text = {**STEP_PREDICTING, "vocab_size": VOCABULARY, "max_position_embeddings": 2048}
    text |= {"eos_token_id": tokenizer.eos_token_id, "pad_token_id": tokenizer.pad_token_id}
    vision = {
        **{"width": 32, "layers": 2, "heads": 2, "image_size": 112, "patch_size": 14},
        **{"mlp_ratio": 2.0, "ls_init_value": 0.1},
    }
    config = transformers.Step3p7Config(
        text_config=text,
        vision_config=vision,
        image_token_id=tokenizer.convert_tokens_to_ids("<im_patch>"),
        tie_word_embeddings=False,
    )
    images = transformers.Step3p7ImageProcessor(size={"height": 56, "width": 56}, patch_size=56)
    processor = transformers.Step3p7Processor(images, tokenizer, chat_template=_TEMPLATE)
    kind = transformers.Step3p7ForConditionalGeneration
    model = image_text.save_model(kind, config, processor, folder, dtype)
    step_model.write_prediction(folder / "model.safetensors", text["num_hidden_layers"])
    settings = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(
        json.dumps(settings | {"text_config": {**PUBLISHED, **text}, "vision_config": vision})
    )
    return model


_SPECIAL: Final = (
    *("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<im_start>", "<im_patch>", "<im_end>"),
    *("<patch_start>", "<patch_end>", "<patch_newline>", "<think>", "</think>"),
)
_TEMPLATE: Final = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n"
    "{% if m['content'] is string %}{{ m['content'] }}{% else %}{% for part in m['content'] %}"
    "{% if part['type'] == 'image' %}<im_patch>{% else %}{{ part['text'] }}{% endif %}{% endfor %}{% endif %}"
    "<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
