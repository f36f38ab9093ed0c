"""A WebDataset of synthesized tones with their names as text, and what a small random Qwen2-Audio needs."""

import io
import tarfile
import wave
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from testkit.image_text import conversation, write_tars, write_tokenizer

TONES = {"low": 220.0, "middle": 440.0, "high": 880.0, "shrill": 1760.0}
"""Name of a tone -> its frequency in hertz."""
RATE = 16000
"""Samples of a second that the models take."""
CHUNK_SECONDS = 2
"""The longest sound of the small models; that of published ones is 30 seconds."""
BINS = 32
SPECIAL = (
    *("<|endoftext|>", "<|im_start|>", "<|im_end|>"),
    *("<|AUDIO|>", "<|audio_bos|>", "<|audio_eos|>"),
)
TEMPLATE = (
    "{% set count = namespace(value=0) %}{% for m in messages %}<|im_start|>{{ m['role'] }}\n"
    "{% if m['content'] is string %}{{ m['content'] }}{% else %}{% for part in m['content'] %}"
    "{% if part['type'] == 'audio' %}{% set count.value = count.value + 1 %}"
    "Audio {{ count.value }}: <|audio_bos|><|AUDIO|><|audio_eos|>\n"
    "{% else %}{{ part['text'] }}{% endif %}{% endfor %}{% endif %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
"""As Qwen2-Audio's, which numbers the sounds of a conversation, without its message of the system."""
ARCHITECTURE = "Qwen2AudioForConditionalGeneration"
"""The name in `architectures` of config.json."""
VOCABULARY = 288
"""Entries of the model's vocabulary; the tokenizer has 256 bytes and the special tokens."""


def write_model(folder: Path, dtype: str = "bfloat16") -> Any:
    """Write a random Qwen2-Audio with two layers of text and two of sound, and its processor; return it."""
    import torch
    import transformers

    from testkit.weights.disturbed import disturb_vectors

    tokenizer = write_tokenizer(folder, SPECIAL, template=TEMPLATE)
    config = transformers.Qwen2AudioConfig(
        text_config={
            **{"model_type": "qwen2", "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2},
            **{"num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": VOCABULARY},
            **{"max_position_embeddings": 2048, "bos_token_id": 0, "eos_token_id": tokenizer.eos_token_id},
            **{"rope_parameters": {"rope_type": "default", "rope_theta": 1e4}, "tie_word_embeddings": False},
        },
        audio_config={
            **{"model_type": "qwen2_audio_encoder", "d_model": 32, "encoder_layers": 2},
            **{"encoder_attention_heads": 2, "encoder_ffn_dim": 64, "num_mel_bins": BINS},
            # A hop of 10 ms, halved by a convolution.
            "max_source_positions": CHUNK_SECONDS * 50,
        },
        audio_token_index=tokenizer.convert_tokens_to_ids("<|AUDIO|>"),
        tie_word_embeddings=False,
    )
    torch.manual_seed(0)
    model = transformers.Qwen2AudioForConditionalGeneration._from_config(config, attn_implementation="eager")
    disturb_vectors(model)
    model = model.to(getattr(torch, dtype)).eval()
    model.save_pretrained(folder)
    features = transformers.WhisperFeatureExtractor(feature_size=BINS, chunk_length=CHUNK_SECONDS)
    processor = transformers.Qwen2AudioProcessor(features, tokenizer, chat_template=TEMPLATE)
    processor.save_pretrained(folder)
    return model


def tone(name: str, seconds: float, rate: int = RATE) -> np.ndarray:
    """Return a sine of half the full amplitude, as float32."""
    times = np.arange(round(seconds * rate)) / rate
    return (0.5 * np.sin(2 * np.pi * TONES[name] * times)).astype(np.float32)


def wav(samples: np.ndarray, rate: int = RATE) -> bytes:
    """Return a WAV file of 16 bits; `samples` [samples] or [samples, channels] between -1 and 1."""
    stream = io.BytesIO()
    with wave.open(stream, "wb") as file:
        file.setnchannels(1 if samples.ndim == 1 else samples.shape[1])
        file.setsampwidth(2)
        file.setframerate(rate)
        file.writeframes((samples * 32767).round().astype("<i2").tobytes())
    return stream.getvalue()


def tones(count: int) -> Iterator[tuple[dict[str, Any], tarfile.TarInfo, np.ndarray]]:
    """Yield conversations in both forms, where a tar file has their tone, and the samples of each."""
    names = list(TONES)
    for number in range(count):
        name = names[number % len(names)]
        question = f"<audio>what is tone {number}?"
        place = tarfile.TarInfo(f"{number:06}.wav")
        yield conversation(number, question, name), place, tone(name, seconds(number))


def seconds(number: int) -> float:
    """Length of the tone of a sample."""
    return 0.4 + 0.05 * (number % 16)


def write_shards(folder: Path, shards: int, samples: int) -> None:
    """Write `shards` tar files of `samples` tones each."""
    write_tars(folder, shards, [(each, at.name, wav(heard)) for each, at, heard in tones(shards * samples)])
