"""A small random Qwen2.5-VL with its processor, and a WebDataset of pictures with their colours as text."""

import io
import json
import sys
import tarfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from testkit.weights.disturbed import disturb_vectors

COLOURS = {
    "red": (200, 30, 30),
    "green": (30, 200, 30),
    "blue": (30, 30, 200),
    "black": (10, 10, 10),
    "white": (240, 240, 240),
}
SPECIAL = (
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "<|vision_start|>",
    "<|vision_end|>",
    "<|image_pad|>",
    "<|video_pad|>",
)
CHATML = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n"
    "{% if m['content'] is string %}{{ m['content'] }}{% else %}{% for part in m['content'] %}"
    "{% if part['type'] == 'image' %}<|vision_start|><|image_pad|><|vision_end|>"
    "{% elif 'text' in part %}{{ part['text'] }}{% endif %}{% endfor %}{% endif %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
ARCHITECTURE = "Qwen2_5_VLForConditionalGeneration"
"""The name in `architectures` of config.json."""
VOCABULARY = 288
"""Entries of the model's vocabulary; the tokenizer has 256 bytes and the special tokens."""


def write_tokenizer(
    folder: Path,
    special: tuple[str, ...] = SPECIAL,
    end: str = "<|im_end|>",
    pad: str = "<|endoftext|>",
    template: str = CHATML,
    named: Mapping[str, str] = MappingProxyType({}),
) -> Any:
    """Write a tokenizer of bytes with special tokens, by default Qwen's; return it.

    `named`: attribute of the tokenizer -> the special token that it names.
    """
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={word: index for index, word in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token=end,
        pad_token=pad,
        additional_special_tokens=[word for word in special if word not in (end, pad)],
        model_specific_special_tokens=dict(named),
    )
    fast.chat_template = template
    fast.save_pretrained(folder)
    return fast


def image_tokens(tokenizer: Any) -> dict[str, int]:
    """Settings of a Qwen's configuration -> ids of the tokens around images and in their place."""
    words = {
        "image_token_id": "<|image_pad|>",
        "video_token_id": "<|video_pad|>",
        "vision_start_token_id": "<|vision_start|>",
        "vision_end_token_id": "<|vision_end|>",
    }
    return {setting: tokenizer.convert_tokens_to_ids(word) for setting, word in words.items()}


def write_model(folder: Path, dtype: str = "bfloat16", *, tied: bool = False) -> Any:
    """Write a random model of two layers of text and two of vision, and its processor; return the model.

    `tied`: its output to its embedding, as that of 3B.
    """
    import torch
    import transformers

    tokenizer = write_tokenizer(folder)
    config = transformers.Qwen2_5_VLConfig(
        text_config={
            # Bridge has the sections of heads of 128 elements, whatever config.json has.
            **{"hidden_size": 256, "intermediate_size": 128, "num_hidden_layers": 2},
            **{"num_attention_heads": 2, "num_key_value_heads": 2, "vocab_size": VOCABULARY},
            **{"max_position_embeddings": 2048, "bos_token_id": 0, "eos_token_id": tokenizer.eos_token_id},
            "rope_parameters": {"rope_type": "default", "rope_theta": 1e6, "mrope_section": [16, 24, 24]},
        },
        vision_config={
            **{"depth": 2, "hidden_size": 32, "intermediate_size": 64, "num_heads": 2},
            **{"out_hidden_size": 256, "fullatt_block_indexes": [1]},
        },
        **image_tokens(tokenizer),
        tie_word_embeddings=tied,
    )
    torch.manual_seed(0)
    model = transformers.Qwen2_5_VLForConditionalGeneration._from_config(config)
    model = model.to(getattr(torch, dtype)).eval()
    model.save_pretrained(folder)
    processor = transformers.Qwen2_5_VLProcessor(
        transformers.Qwen2VLImageProcessor(),
        tokenizer,
        transformers.Qwen2VLVideoProcessor(),
        chat_template=CHATML,
    )
    processor.save_pretrained(folder)
    return model


def save_model(kind: Any, config: Any, processor: Any, folder: Path, dtype: str) -> Any:
    """Write a random model of a class of transformers, and its processor. Returns the model."""
    import torch

    torch.manual_seed(0)
    model = kind._from_config(config, attn_implementation="eager")
    disturb_vectors(model)
    with torch.no_grad():
        # transformers starts the projector of Gemma 3 with zeros.
        for value in model.parameters():
            if not value.any():
                value.normal_(std=0.1)
    model = model.to(getattr(torch, dtype)).eval()
    model.save_pretrained(folder)
    processor.save_pretrained(folder)
    return model


def conversation(number: int, question: str, answer: str) -> dict[str, Any]:
    """A question and its answer: in OpenAI's form where the number is odd, else in ShareGPT's."""
    if number % 2:
        turns = [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]
        return {"messages": turns}
    return {"conversations": [{"from": "human", "value": question}, {"from": "gpt", "value": answer}]}


def pictures(count: int) -> Iterator[tuple[dict[str, Any], tarfile.TarInfo, Any]]:
    """Yield conversations in both forms, where a tar file has their picture, and the picture of each."""
    from PIL import Image

    names = list(COLOURS)
    for number in range(count):
        colour = names[number % len(names)]
        question = f"<image>what colour has picture {number}?"
        picture = Image.new("RGB", (56 + number, 84), COLOURS[colour])
        yield conversation(number, question, colour), tarfile.TarInfo(f"{number:06}.png"), picture


def write_shards(folder: Path, shards: int, samples: int) -> None:
    """Write `shards` tar files of `samples` pictures each."""
    drawn = [(each, at.name, png(picture)) for each, at, picture in pictures(shards * samples)]
    write_tars(folder, shards, drawn)


def png(picture: Any) -> bytes:
    """Return a PNG file."""
    drawn = io.BytesIO()
    picture.save(drawn, "PNG")
    return drawn.getvalue()


def write_tars(folder: Path, shards: int, samples: list[tuple[dict[str, Any], str, bytes]]) -> None:
    """Write conversations, each with a file of this name, into `shards` tar files of as many."""
    folder.mkdir(parents=True, exist_ok=True)
    each = len(samples) // shards
    for shard in range(shards):
        with tarfile.open(folder / f"{shard:05}.tar", "w") as tar:
            for record, name, data in samples[shard * each : (shard + 1) * each]:
                add_file(tar, name, data)
                add_file(tar, f"{Path(name).stem}.json", json.dumps(record).encode())


def add_file(tar: tarfile.TarFile, name: str, data: bytes) -> None:
    """Append a file to a tar file."""
    member = tarfile.TarInfo(name)
    member.size = len(data)
    tar.addfile(member, io.BytesIO(data))


def main(folder: Path) -> None:
    """Write vision/, a model, and pictures/, four tar files, into `folder`."""
    write_model(folder / "vision")
    write_shards(folder / "pictures", 4, 100)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
