"""Logits of small models for pictures, sound and text: Megatron's against those of transformers."""

from pathlib import Path
from typing import Any

from testkit import image_text, sound_text
from testkit.weights import round_trip


def compare(base: Path, folder: Path, directory: Path) -> dict[str, Any]:
    """Compare a checkpoint in Megatron with a folder in transformers, both in float32.

    The first of two conversations has a picture between two sounds, the second a picture alone.
    """
    import torch
    import transformers
    from megatron_trainer.bridge import image_text as samples
    from megatron_trainer.bridge.omni_batches import MEDIA
    from megatron_trainer.weights import cpu_model

    kind = getattr(transformers, transformers.AutoConfig.from_pretrained(folder).architectures[0])
    model = kind.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()
    processor = samples.load_processor(str(base))
    conversations = [_conversation(0, 0.5, 1.2), _conversation(1)]
    length = max(samples.count_tokens(each, processor).all for each in conversations)
    batch = samples.collate(conversations, processor, length, with_mask=True)
    ids, media = batch["input_ids"], {name: batch[name] for name in MEDIA}
    there = ids != processor.tokenizer.pad_token_id
    with cpu_model.one_process(), torch.no_grad():
        megatron = round_trip.loaded(base, directory)
        # Positions are the model's own, as in training.
        inputs = {"input_ids": ids, "attention_mask": batch["attention_mask"]}
        found = megatron(**inputs, **media)
        seen = megatron(**inputs, **media | {"pixel_values": media["pixel_values"].flip(0)})
        heard = megatron(**inputs, **media | {"input_features": media["input_features"].flip(0)})
        expected = model.thinker(input_ids=ids, attention_mask=there.long(), **media).logits
    return {
        "difference": float((found - expected)[there].abs().max()),
        "largest": float(expected[there].abs().max()),
        "of other pictures": float((found - seen)[there].abs().max()),
        "of other sounds": float((found - heard)[there].abs().max()),
    }


def _conversation(number: int, *seconds: float) -> dict[str, Any]:
    """A conversation about a picture and tones of these lengths."""
    from megatron_trainer.bridge.sound import Sound

    *_, (_, _, picture) = image_text.pictures(number + 1)
    asked: list[dict[str, Any]] = [
        {"type": "audio", "audio": Sound(sound_text.tone(name, x), sound_text.RATE)}
        for name, x in zip(("low", "high"), seconds, strict=False)
    ]
    asked.insert(1, {"type": "image", "image": picture})
    asked.append({"type": "text", "text": "what is it?"})
    answer = [{"type": "text", "text": f"{len(seconds)} tones"}]
    return {"conversation": [{"role": "user", "content": asked}, {"role": "assistant", "content": answer}]}
