"""Logits of small models for pictures and text: Megatron's against those of transformers."""

import inspect
from pathlib import Path
from typing import Any

from testkit import image_text
from testkit.weights import round_trip

_PIXELS = (
    *("pixel_values", "image_grid_thw", "image_sizes", "image_position_ids"),
    *("pixel_values_local", "num_local_patches"),
)
_KINDS = "mm_token_type_ids"


def compare(base: Path, folder: Path, directory: Path) -> dict[str, Any]:
    """Compare a checkpoint in Megatron with a folder in transformers, both in float32."""
    import torch
    import transformers
    from megatron_trainer.bridge import image_text as samples
    from megatron_trainer.data.image_text import to_messages
    from megatron_trainer.weights import cpu_model

    model = transformers.AutoModelForImageTextToText.from_pretrained(
        folder, dtype=torch.float32, attn_implementation="eager"
    ).eval()
    processor = samples.load_processor(str(base))
    conversations = [
        {"conversation": _with_pictures(to_messages(record, "", [member]), picture)}
        for record, member, picture in image_text.pictures(2)
    ]
    length = max(samples.count_tokens(each, processor).all for each in conversations)
    batch = samples.collate(conversations, processor, length, with_mask=True)
    values = batch["visual_inputs"].normalized_for_model()
    pixels = {key: value for key, value in values.items() if key in _PIXELS}
    pixels["pixel_values"] = pixels["pixel_values"].float()
    with cpu_model.one_process(), torch.no_grad():
        megatron = round_trip.loaded(base, directory)
        inputs = {name: batch[name] for name in ("input_ids", "position_ids", "attention_mask")}
        if _KINDS in values and _KINDS in inspect.signature(megatron.forward).parameters:
            inputs[_KINDS] = values[_KINDS]
        found = _logits(megatron(**inputs, **pixels))
        others = _logits(megatron(**inputs, **pixels | {"pixel_values": pixels["pixel_values"].flip(0)}))
        expected = model(input_ids=batch["input_ids"], **_kinds(model, batch), **pixels).logits
    return {
        "difference": float((found - expected).abs().max()),
        "largest": float(expected.abs().max()),
        "of other pictures": float((found - others).abs().max()),
    }


def _kinds(model: Any, batch: dict[str, Any]) -> dict[str, Any]:
    """What some models take besides: which tokens are of images."""
    family = str(model.config.model_type)
    if not family.startswith(("qwen", "gemma", "glm")):
        return {}
    name = "token_type_ids" if family == "gemma3" else _KINDS
    return {name: (batch["input_ids"] == model.config.image_token_id).int()}


def _logits(output: Any) -> Any:
    """Some models of Bridge return the mask of the loss as well."""
    return output[0] if isinstance(output, tuple) else output


def _with_pictures(messages: list[dict[str, Any]], picture: Any) -> list[dict[str, Any]]:
    for message in messages:
        for part in message["content"]:
            if part["type"] == "image":
                part["image"] = picture
            else:
                # Of id 0 in the tokenizer, which is not padding.
                part["text"] = f"!{part['text']}"
    return messages
