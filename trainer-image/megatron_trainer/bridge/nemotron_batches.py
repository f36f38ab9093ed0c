"""Processors, and batches of images, sound and text, for Nemotron Nano 2 VL and Nemotron 3 Nano Omni.

The published folders have code for both, which is not run, and transformers knows none of the former. Tiles
of the former are those of InternVL (arXiv:2404.16821, section 3.3), the sizes of images of the latter those
of `NemotronH_Omni_Reasoning_V3ImageProcessor`. Parts of a message are lines, as in Bridge's own batches.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import torch
from megatron.bridge.data.collators.sequence_padding import use_processor_right_padding
from megatron.bridge.data.conversation_processing import (
    assistant_mask_boundary_config_from_markers,
    tokenize_text_without_special_tokens,
)

from megatron_trainer.bridge import chatml_batches, nemotron_config
from megatron_trainer.bridge.sound import prepared

MEDIA: Final = ("pixel_values", "image_grid_hw", "input_features", "input_features_mask")
"""What the model takes of images and sounds."""
_PATCH, _SIDE, _TILES = 16, 2, 12
"""Pixels of a patch's side, patches of a token's side, and the most tiles of an image by default."""
_THOUGHT: Final = "<think></think>"
"""What templates put in front of an answer without a thought."""


@dataclass
class NemotronVLProcessor:
    """Of Nemotron Nano 2 VL: a tokenizer, and what divides images into tiles of one size."""

    tokenizer: Any
    image_processor: Any

    def images(self, images: Sequence[Any]) -> tuple[torch.Tensor, torch.Tensor, list[int]]:
        """Return the patches [patches, 3 x patch x patch] of images, the sizes of tiles, tokens of an image.

        Sizes are in patches [tiles, 2].
        """
        found = self.image_processor(list(images), return_tensors="pt")
        tiles = found["pixel_values"]
        grid = torch.tensor([length // _PATCH for length in tiles.shape[-2:]])
        each = int(grid.prod()) // _SIDE**2
        return _patches(tiles), grid.repeat(len(tiles), 1), [each * count for count in found["num_patches"]]


@dataclass
class NemotronOmniProcessor:
    """Of Nemotron 3 Nano Omni: a tokenizer, what resizes images, and what makes features of sound."""

    tokenizer: Any
    image_processor: Any
    feature_extractor: Any

    def images(self, images: Sequence[Any]) -> tuple[torch.Tensor, torch.Tensor, list[int]]:
        """Return the same as NemotronVLProcessor.images; an image is one tile, of a size of its own."""
        found = [self.image_processor([image], return_tensors="pt") for image in images]
        grids = torch.cat([each["image_grid_hw"] for each in found])
        patches = torch.cat([each["pixel_values"] for each in found])
        return patches, grids, (grids.prod(-1) // _SIDE**2).tolist()


PROCESSORS: Final = (NemotronVLProcessor.__name__, NemotronOmniProcessor.__name__)


@dataclass
class MediaInputs:
    """Images and sounds of a batch, as Bridge's step passes them on to a model."""

    pixel_values: torch.Tensor | None = None
    image_grid_hw: torch.Tensor | None = None
    input_features: torch.Tensor | None = None
    input_features_mask: torch.Tensor | None = None

    def normalized_for_model(self) -> dict[str, torch.Tensor]:
        """Return what there is."""
        return {name: value for name, value in vars(self).items() if value is not None}


def load_processor(folder: Path) -> Any:
    """Return the processor of a folder of these models; None for others.

    Raises OSError or ValueError for a folder that lacks a part.
    """
    from transformers import AutoTokenizer

    config = _read(folder / "config.json")
    if (kind := config.get("model_type")) not in (nemotron_config.OF_IMAGES, nemotron_config.OF_BOTH):
        return None
    # Else transformers would ask for the folder's code.
    nemotron_config.install()
    tokenizer = AutoTokenizer.from_pretrained(str(folder), local_files_only=True, trust_remote_code=False)
    settings = _read(folder / "preprocessor_config.json")
    if kind == nemotron_config.OF_IMAGES:
        return NemotronVLProcessor(tokenizer, _tiler(config | settings))
    return NemotronOmniProcessor(tokenizer, _resizer(settings), _extractor(config["sound_config"]))


def _read(file: Path) -> dict[str, Any]:
    return dict(json.loads(file.read_text(encoding="utf-8")))


def _tiler(settings: Mapping[str, Any]) -> Any:
    from transformers import GotOcr2ImageProcessor

    mean, std = _statistics(settings)
    side = settings.get("image_size") or settings.get("force_image_size") or 512
    return GotOcr2ImageProcessor(
        crop_to_patches=True,
        max_patches=settings.get("max_num_tiles") or _TILES,
        size={"height": side, "width": side},
        image_mean=mean,
        image_std=std,
    )


def _resizer(settings: Mapping[str, Any]) -> Any:
    from transformers import NemotronH_Omni_Reasoning_V3ImageProcessor as Resizer

    mean, std = _statistics(settings)
    named = ("min_num_patches", "max_num_patches", "max_model_len", "patch_size", "downsample_ratio")
    given = {name: settings[name] for name in named if settings.get(name) is not None}
    return Resizer(image_mean=mean, image_std=std, **given)


def _statistics(settings: Mapping[str, Any]) -> tuple[Any, Any]:
    """Return mean and standard deviation of colours, which no two of these models need share."""
    found = [settings.get(f"norm_{name}", settings.get(f"image_{name}")) for name in ("mean", "std")]
    if None in found:
        raise ValueError("preprocessor_config.json has no norm_mean and norm_std")
    return found[0], found[1]


def _extractor(sound: Mapping[str, Any]) -> Any:
    """Return what makes mel features, as Bridge's `compute_mel_features` does.

    Its longest sound is one of as many tokens as the encoder has positions.
    """
    from transformers import ParakeetEncoderConfig, ParakeetFeatureExtractor

    rate = sound.get("sampling_rate") or 16_000
    extractor = ParakeetFeatureExtractor(feature_size=sound["num_mel_bins"], sampling_rate=rate)
    positions = ParakeetEncoderConfig().max_position_embeddings
    extractor.n_samples = positions * sound["subsampling_factor"] * extractor.hop_length
    return extractor


def collate(
    examples: Sequence[Mapping[str, Any]],
    processor: Any,
    *,
    sequence_length: int | None,
    pad_to_max_length: bool,
) -> dict[str, Any]:
    """Return tokens, labels and the mask of the loss [batch, length], and what MEDIA names of all media.

    Labels are those of the next position. The loss counts each answer of the assistant and what ends it, not
    an empty thought in front. Raises ValueError for a sound that is too long or too short, and for a text
    that has the name of a token of an image or a sound.
    """
    tokenizer = processor.tokenizer
    conversations = [example["conversation"] for example in examples]
    images = list(chatml_batches.media(conversations, "image"))
    sounds = list(chatml_batches.media(conversations, "audio"))
    counts: dict[str, Iterator[int]] = {}
    found = MediaInputs()
    if images:
        found.pixel_values, found.image_grid_hw, tokens = processor.images(images)
        counts["image"] = iter(tokens)
    if sounds:
        extractor = processor.feature_extractor
        samples = [prepared(sound, extractor) for sound in sounds]
        features = extractor(samples, sampling_rate=extractor.sampling_rate, return_tensors="pt")
        found.input_features = features["input_features"]
        found.input_features_mask = features["attention_mask"]
        counts["audio"] = iter([_tokens_of_sound(len(each) // extractor.hop_length + 1) for each in samples])
    texts = [
        tokenizer.apply_chat_template(_lines(conversation, counts), tokenize=False)
        for conversation in conversations
    ]
    with use_processor_right_padding(processor):
        rows = tokenizer(texts, return_tensors="pt", padding=True)
    batch = {"input_ids": rows["input_ids"], "attention_mask": rows["attention_mask"]}
    _require_all(batch["input_ids"], processor, found)
    chatml_batches.complete(
        batch,
        {"visual_inputs": found if images or sounds else None},
        conversations,
        processor,
        sequence_length=sequence_length,
        pad_to_max_length=pad_to_max_length,
        boundaries=_boundaries(processor),
    )
    return batch


def _tokens_of_sound(frames: int) -> int:
    """Tokens of mel frames behind three convolutions of stride 2."""
    for _ in range(3):
        frames = (frames + 1) // 2
    return frames


def _lines(
    conversation: Sequence[Mapping[str, Any]], counts: Mapping[str, Iterator[int]]
) -> list[dict[str, Any]]:
    """Return the messages as text, with as many tokens of an image, or a sound, as it has features."""
    return [
        {**message, "content": "\n".join(_line(part, counts) for part in message["content"])}
        for message in conversation
    ]


def _line(part: Mapping[str, Any], counts: Mapping[str, Iterator[int]]) -> str:
    if part["type"] == "image":
        return f"<img>{'<image>' * next(counts['image'])}</img>"
    if part["type"] == "audio":
        return f"<so_start>{'<so_embedding>' * next(counts['audio'])}<so_end>"
    return str(part["text"])


def _require_all(ids: torch.Tensor, processor: Any, found: MediaInputs) -> None:
    """Raise ValueError unless there are as many tokens of images and sounds as features of them."""
    grids, mask = found.image_grid_hw, found.input_features_mask
    counts = {"<image>": 0 if grids is None else int(grids.prod(-1).sum()) // _SIDE**2}
    if isinstance(processor, NemotronOmniProcessor):
        frames = [] if mask is None else mask.sum(-1).tolist()
        counts["<so_embedding>"] = sum(_tokens_of_sound(each + 1) for each in frames)
    for token, count in counts.items():
        there = ids == processor.tokenizer.convert_tokens_to_ids(token)
        if int(torch.as_tensor(there).sum()) != count:
            raise ValueError(f"the text has {token} of its own, or the model's tokenizer does not know it")


def _patches(tiles: torch.Tensor) -> torch.Tensor:
    """Return the patches [patches, 3 x patch x patch] of tiles [tiles, 3, height, width], row by row."""
    height, width = (length // _PATCH for length in tiles.shape[-2:])
    squares = tiles.view(-1, 3, height, _PATCH, width, _PATCH).permute(0, 2, 4, 1, 3, 5)
    return squares.reshape(-1, 3 * _PATCH**2)


def _boundaries(processor: Any) -> Any:
    """What begins and ends an answer: in ChatML, or in Nemotron Nano 2's template."""
    thought = (tokenize_text_without_special_tokens(processor.tokenizer, _THOUGHT),)
    if isinstance(processor, NemotronOmniProcessor):
        return chatml_batches.of_chatml(processor, trim_leading_token_sequences=thought)
    return assistant_mask_boundary_config_from_markers(
        processor,
        assistant_start="<SPECIAL_11>Assistant\n",
        assistant_end="<SPECIAL_12>",
        trim_leading_token_sequences=thought,
    )
