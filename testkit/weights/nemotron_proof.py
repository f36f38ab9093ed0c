"""Logits of small Nemotron VL and Omni models for pictures, sound and text, beside those of transformers."""

from pathlib import Path
from typing import Any

from testkit import image_text, nemotron, sound_text
from testkit.weights import round_trip


def compare(base: Path, folder: Path, directory: Path) -> dict[str, Any]:
    """Compare a checkpoint in Megatron with a folder in transformers, both in float32.

    The first of two conversations has a picture, between two sounds where the model takes them, the second
    two pictures of other sizes.
    """
    import torch
    from megatron_trainer.bridge import image_text as samples
    from megatron_trainer.weights import cpu_model

    model = nemotron.read(folder, dtype=torch.float32)
    processor = samples.load_processor(str(base))
    takes_sound = hasattr(processor, "feature_extractor")
    conversations = [_conversation(1, *((0.5, 1.2) if takes_sound else ())), _conversation(2)]
    length = max(samples.count_tokens(each, processor).all for each in conversations)
    batch = samples.collate(conversations, processor, length, with_mask=True)
    ids, media = batch["input_ids"], batch["visual_inputs"].normalized_for_model()
    there = ids != processor.tokenizer.pad_token_id
    with cpu_model.one_process(), torch.no_grad():
        megatron = round_trip.loaded(base, directory)
        inputs = {"input_ids": ids, "attention_mask": batch["attention_mask"]}
        found = megatron(**inputs, **media)
        seen = megatron(**inputs, **media | {"pixel_values": media["pixel_values"].flip(0)})
        expected = model(input_ids=ids, attention_mask=there.long(), **media).logits
        result = {
            "difference": float((found - expected)[there].abs().max()),
            "largest": float(expected[there].abs().max()),
            "of other pictures": float((found - seen)[there].abs().max()),
        }
        if takes_sound:
            heard = megatron(**inputs, **media | {"input_features": media["input_features"].flip(0)})
            result["of other sounds"] = float((found - heard)[there].abs().max())
    return result


def _conversation(pictures: int, *seconds: float) -> dict[str, Any]:
    """A conversation about pictures, and about tones of these lengths."""
    from megatron_trainer.bridge.sound import Sound

    asked: list[dict[str, Any]] = [
        {"type": "audio", "audio": Sound(sound_text.tone(name, x), sound_text.RATE)}
        for name, x in zip(("low", "high"), seconds, strict=False)
    ]
    drawn = [image for _, _, image in image_text.pictures(2 * pictures)][pictures:]
    asked[1:1] = [{"type": "image", "image": image} for image in drawn]
    asked.append({"type": "text", "text": "what is it?"})
    answer = [{"type": "text", "text": f"{len(seconds)} tones"}]
    return {"conversation": [{"role": "user", "content": asked}, {"role": "assistant", "content": answer}]}
