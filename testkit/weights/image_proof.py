"""Logits of a small Qwen2.5-VL for pictures and text: Megatron's against those of transformers."""

from pathlib import Path
from typing import Any

from testkit import image_text


def prove(folder: Path) -> dict[str, float]:
    """Return the largest difference of logits of two samples, and that which other pictures make."""
    import torch
    from megatron_trainer.bridge import image_text as samples
    from megatron_trainer.data.image_text import to_messages
    from megatron_trainer.weights import cpu_model, huggingface_folder

    model = image_text.write_model(folder / "model", "float32")
    processor = samples.load_processor(str(folder / "model"))
    conversations = [
        {"conversation": _with_pictures(to_messages(record, "", [member]), picture)}
        for record, member, picture in image_text.pictures(2)
    ]
    batch = samples.collate(conversations, processor, None, with_mask=True)
    pixels = {name: getattr(batch["visual_inputs"], name) for name in ("pixel_values", "image_grid_thw")}
    read = huggingface_folder.read(folder / "model", "--from", weights=True)
    bridge = cpu_model.make_bridge(read)
    kinds = (batch["input_ids"] == model.config.image_token_id).int()
    with cpu_model.one_process(), torch.no_grad():
        megatron = cpu_model.make_model(bridge, "float32")
        bridge.load_hf_weights([megatron])
        inputs = {name: batch[name] for name in ("input_ids", "position_ids", "attention_mask")}
        found = megatron(**inputs, **pixels)
        others = megatron(**inputs, **pixels | {"pixel_values": pixels["pixel_values"].flip(0)})
        expected = model(input_ids=batch["input_ids"], mm_token_type_ids=kinds, **pixels).logits
    return {
        "difference": float((found - expected).abs().max()),
        "of other pictures": float((found - others).abs().max()),
    }


def _with_pictures(messages: list[dict[str, Any]], picture: Any) -> list[dict[str, Any]]:
    for message in messages:
        for part in message["content"]:
            if part["type"] == "image":
                part["image"] = picture
    return messages
