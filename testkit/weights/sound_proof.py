"""Logits of small models for sound and text: Megatron's against those of transformers."""

from pathlib import Path
from typing import Any

from testkit import sound_text
from testkit.weights import round_trip


def compare(base: Path, folder: Path, directory: Path) -> dict[str, Any]:
    """Compare a checkpoint in Megatron with a folder in transformers, both in float32.

    The first of two conversations has two sounds, which are shorter than the longest.
    """
    import torch
    import transformers
    from megatron_trainer.bridge import image_text as samples
    from megatron_trainer.weights import cpu_model

    kind = getattr(transformers, transformers.AutoConfig.from_pretrained(folder).architectures[0])
    model = kind.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()
    processor = samples.load_processor(str(base))
    conversations = [_conversation(0.5, 1.2), _conversation(float(sound_text.CHUNK_SECONDS))]
    length = max(samples.count_tokens(each, processor).all for each in conversations)
    batch = samples.collate(conversations, processor, length, with_mask=True)
    features = batch["visual_inputs"].normalized_for_model()
    with cpu_model.one_process(), torch.no_grad():
        megatron = round_trip.loaded(base, directory)
        inputs = {name: batch[name] for name in ("input_ids", "position_ids", "attention_mask")}
        found = megatron(**inputs, **features)
        others = features | {"input_features": features["input_features"].flip(0)}
        heard = megatron(**inputs, **others)
        expected = model(input_ids=batch["input_ids"], **features).logits
    return {
        "difference": float((found - expected).abs().max()),
        "largest": float(expected.abs().max()),
        "of other sounds": float((found - heard).abs().max()),
    }


def _conversation(*seconds: float) -> dict[str, Any]:
    """A conversation about tones of these lengths."""
    from megatron_trainer.bridge.sound import Sound

    tones = [
        Sound(sound_text.tone(name, x), sound_text.RATE)
        for name, x in zip(("low", "high"), seconds, strict=False)
    ]
    asked: list[dict[str, Any]] = [{"type": "audio", "audio": tone} for tone in tones]
    # Of id 0 in the tokenizer, which is not padding.
    asked.append({"type": "text", "text": "!which tones?"})
    answer = [{"type": "text", "text": f"{len(tones)} of them"}]
    return {"conversation": [{"role": "user", "content": asked}, {"role": "assistant", "content": answer}]}
