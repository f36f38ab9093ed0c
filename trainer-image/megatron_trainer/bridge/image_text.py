"""Images or sound, and text, for Megatron-Bridge's models: prepared samples of a WebDataset.

The model's collator makes tokens, labels, and pixels or features of sound of a sample.
"""

import io
import json
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from megatron.bridge.data.base import DatasetBuildContext, DatasetProvider
from megatron.bridge.training.utils.visual_inputs import GenericVisualInputs

from megatron_trainer.bridge import nemotron_batches
from megatron_trainer.bridge.lines import Lines
from megatron_trainer.bridge.omni_batches import PROCESSOR as OF_QWEN
from megatron_trainer.bridge.sample_files import SampleLineError
from megatron_trainer.bridge.sound import Sound, decode
from megatron_trainer.read_errors import is_temporary

FILES = ("training.jsonl", "validation.jsonl")
_OF_BOTH = (OF_QWEN, nemotron_batches.NemotronOmniProcessor.__name__)
"""Processors of images and sound."""


@dataclass(kw_only=True)
class ImageTextDatasetConfig(DatasetProvider):
    """What a run reads: files of samples below `dataset_root`, of `seq_length` tokens each.

    Without `dataset_root` images, or sounds, are random, for trials. `processor_path` is the model's folder.
    Each epoch has all samples of the training file once, shuffled by `seed` and the number of the epoch.
    """

    seq_length: int = 1
    dataset_root: str | None = None
    processor_path: str | None = None
    seed: int = 1234
    do_validation: bool = True
    do_test: bool = False
    dataloader_type: str | None = "single"
    skip_getting_attention_mask_from_dataset: bool = True
    pin_memory: bool = False
    persistent_workers: bool = False

    def build_datasets(self, context: DatasetBuildContext) -> tuple[Any, Any, None]:
        """Return the datasets for training and validation, of the lengths that the run asks for."""
        processor = load_processor(str(self.processor_path))
        if self.dataset_root is None:
            kind = _random(processor)
            return (
                kind(context.train_samples, self, processor),
                kind(context.valid_samples, self, processor),
                None,
            )
        root = Path(self.dataset_root)
        train = _Samples(root / FILES[0], context.train_samples, self, processor, shuffled=True)
        if not (self.do_validation and context.valid_samples):
            return train, None, None
        return train, _Samples(root / FILES[1], context.valid_samples, self, processor, shuffled=False), None


class _Conversations(torch.utils.data.Dataset[dict[str, Any]]):
    """`length` conversations, of which Bridge's loader makes batches by `collate_fn`."""

    def __init__(self, length: int, config: ImageTextDatasetConfig, processor: Any) -> None:
        self._length = length
        self.collate_fn = partial(
            collate,
            processor=processor,
            sequence_length=config.seq_length,
            with_mask=not config.skip_getting_attention_mask_from_dataset,
        )

    def __len__(self) -> int:
        return self._length


class _RandomImages(_Conversations):
    """An image of random pixels each."""

    def __getitem__(self, index: int) -> dict[str, Any]:
        from PIL import Image

        pixels = np.random.default_rng(index).integers(0, 256, (224, 224, 3), dtype=np.uint8)
        asked: list[dict[str, Any]] = [
            {"type": "image", "image": Image.fromarray(pixels)},
            {"type": "text", "text": "What is it?"},
        ]
        answer = [{"type": "text", "text": f"random pixels {index}"}]
        return {"conversation": [_turn("user", asked), _turn("assistant", answer)]}


class _RandomSounds(_Conversations):
    """A sound of random samples each."""

    def __getitem__(self, index: int) -> dict[str, Any]:
        asked = [_random_sound(index), {"type": "text", "text": "What is it?"}]
        answer = [{"type": "text", "text": f"random samples {index}"}]
        return {"conversation": [_turn("user", asked), _turn("assistant", answer)]}


class _RandomMedia(_RandomImages):
    """A sound beside each image."""

    def __getitem__(self, index: int) -> dict[str, Any]:
        example = super().__getitem__(index)
        example["conversation"][0]["content"].insert(1, _random_sound(index))
        return example


def _random(processor: Any) -> type[_Conversations]:
    """What random samples a processor takes; that of Gemma 4 has a part for sound, which its run does not."""
    if type(processor).__name__ in _OF_BOTH:
        return _RandomMedia
    return _RandomImages if hasattr(processor, "image_processor") else _RandomSounds


def _random_sound(index: int) -> dict[str, Any]:
    samples = np.random.default_rng(index).uniform(-1, 1, 16_000).astype(np.float32)
    return {"type": "audio", "audio": Sound(samples, 16_000)}


def _turn(role: str, content: list[dict[str, Any]]) -> dict[str, Any]:
    return {"role": role, "content": content}


class _Samples(_Conversations):
    """Samples of a file, in as many epochs as it takes."""

    def __init__(
        self, path: Path, length: int, config: ImageTextDatasetConfig, processor: Any, *, shuffled: bool
    ) -> None:
        super().__init__(length, config, processor)
        self.read_from, self._lines = path, Lines(path)
        self._seed = config.seed if shuffled else None
        self._epoch, self._order = -1, np.arange(len(self._lines))

    def __getitem__(self, index: int) -> dict[str, Any]:
        number = self.place_of(index)
        return _read(self._lines[number], f"{self.read_from}:{number + 1}")

    def place_of(self, index: int) -> int:
        """Return which line of the file, from 0, a number stands for."""
        epoch, place = divmod(index, len(self._lines))
        if self._seed is not None and epoch != self._epoch:
            self._epoch = epoch
            self._order = np.random.default_rng([self._seed, epoch]).permutation(len(self._lines))
        return int(self._order[place])


def sample(path: Path, number: int) -> dict[str, Any]:
    """Return the conversation of a line, counted from 0, with its media.

    Raises SampleLineError, and OSError for a volume that cannot be read for a while.
    """
    return _read(Lines(path)[number], f"{path}:{number + 1}")


def _read(line: bytes, place: str) -> dict[str, Any]:
    """Return what Bridge's collators take."""
    try:
        return {"conversation": load_media(json.loads(line)["messages"])}
    except Exception as error:  # whatever a decoder raises for a file that has changed
        if is_temporary(error):
            raise
        raise SampleLineError(f"{place}: {' '.join(str(error).split())}") from error


def load_media(messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the messages, each part of type `image` with its image as PIL has it, the right way up.

    Each part of type `audio` has its Sound. Raises OSError, also for bytes of another checksum than the part
    has, and what a decoder raises.
    """
    return [
        {"role": message["role"], "content": [_loaded(part) for part in message["content"]]}
        for message in messages
    ]


def _loaded(part: Mapping[str, Any]) -> dict[str, Any]:
    if part["type"] == "text":
        return dict(part)
    data = _bytes(part)
    if zlib.crc32(data) != part["crc32"]:
        raise OSError(
            f"{part['tar']} has changed since it was prepared: byte {part['offset']:,} begins another "
            f"{'image' if part['type'] == 'image' else 'sound'}; "
            "set another data.prepare.name to prepare it again"
        )
    if part["type"] == "audio":
        return {"type": "audio", "audio": decode(data)}
    from PIL import Image, ImageOps

    with Image.open(io.BytesIO(data)) as image:
        # A camera that was turned notes it in the file, and leaves the pixels as they were.
        return {"type": "image", "image": ImageOps.exif_transpose(image).convert("RGB")}


def checksum(part: Mapping[str, Any]) -> int:
    """Return the CRC-32 of a part's image or sound, by which a rewritten file is noticed. Raises OSError."""
    return zlib.crc32(_bytes(part))


def _bytes(part: Mapping[str, Any]) -> bytes:
    with Path(part["tar"]).open("rb") as tar:
        tar.seek(part["offset"])
        return tar.read(part["size"])


def load_processor(folder: str) -> Any:
    """Return the processor of a model's folder: its tokenizer, and what makes pixels or features of sound."""
    from transformers import AutoProcessor

    if (of_nemotron := nemotron_batches.load_processor(Path(folder))) is not None:
        return of_nemotron
    return AutoProcessor.from_pretrained(folder, local_files_only=True, trust_remote_code=False)


def collate(
    examples: list[dict[str, Any]], processor: Any, sequence_length: int | None, *, with_mask: bool = False
) -> dict[str, Any]:
    """Return the batch of the model's collator, padded to `sequence_length`; None pads to the longest.

    GLM-4.5V takes None for one example only.

    `with_mask`: with a causal mask [1, 1, length, length], True where attention is not paid.
    """
    from megatron_trainer.bridge.image_batches import collator

    kind, padded = type(processor).__name__, sequence_length is not None
    make = collator(kind)
    # With others beside it, Bridge takes the padding of GLM-4.5V for many ends of an answer.
    groups = [[example] for example in examples] if kind == "Glm4vProcessor" else [examples]
    batch = _joined(
        [
            make(group, processor, sequence_length=sequence_length, pad_to_max_length=padded)
            for group in groups
        ]
    )
    length = batch["input_ids"].shape[1]
    mask = torch.ones(1, 1, length, length, dtype=torch.bool).triu(1)
    batch["attention_mask"] = mask if with_mask else None
    return batch


def _joined(batches: list[dict[str, Any]]) -> dict[str, Any]:
    """Return one batch of several whose sequences have the same length."""
    if len(batches) == 1:
        return batches[0]
    joined = {
        name: torch.cat([batch[name] for batch in batches])
        for name, value in batches[0].items()
        if isinstance(value, torch.Tensor)
    }
    images = [vars(batch["visual_inputs"]) for batch in batches if batch["visual_inputs"] is not None]
    names = {name for each in images for name, value in each.items() if value is not None}
    parts = {name: torch.cat([each[name] for each in images if each[name] is not None]) for name in names}
    return {**joined, "visual_inputs": GenericVisualInputs(**parts) if parts else None}


class Tokens(NamedTuple):
    """Numbers of a sample: its tokens, those that the loss counts, and the largest id."""

    all: int
    counted: int
    largest: int


def count_tokens(example: dict[str, Any], processor: Any) -> Tokens:
    """Count the tokens of a sample, those of its media included. Raises what the processor raises."""
    batch = collate([example], processor, None)
    ids = batch["input_ids"]
    return Tokens(ids.shape[1], int((batch["loss_mask"] > 0).sum()), int(ids.max()))
