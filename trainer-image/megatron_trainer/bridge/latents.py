"""What diffusion models are trained on: latents of images or videos, and embeddings of their texts.

Megatron-Bridge's own datasets are random batches, which a resumed run does not get again, or those of
Megatron-Energon, which do not resume with another number of data-parallel ranks. These number samples.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from megatron.bridge.data.base import DatasetBuildContext, DatasetProvider
from megatron.core import parallel_state
from torch.nn.functional import pad

from megatron_trainer.bridge import latent_shards
from megatron_trainer.bridge.latent_shards import Latents, Place
from megatron_trainer.bridge.sample_files import SampleLineError

VALIDATION = "validation"
"""Folder in that of the data, with the tar files that a run evaluates on."""
_FLUX_PATCH = 2


@dataclass(kw_only=True)
class LatentsDatasetConfig(DatasetProvider):
    """What a run reads: the tar files of `dataset_root`, or random latents of the shape that is set.

    Each epoch has all samples once, shuffled by `seed` and the number of the epoch. `text_length` are the
    tokens to which embeddings are padded with zeros, or cut. Shapes are of one sample.
    """

    seq_length: int = 1024
    """The most tokens of latents that a sample may have, unless it is `unlimited_length`."""
    unlimited_length: int = 1024
    dataset_root: str | None = None
    seed: int = 1234
    do_validation: bool = True
    dataloader_type: str | None = "single"
    pin_memory: bool = False
    persistent_workers: bool = False
    latents_shape: list[int]
    """Channels, then frames, height and width for Wan, height and width for FLUX."""
    text_length: int = 512
    text_channels: int = 4096

    def build_datasets(self, context: DatasetBuildContext) -> tuple[Any, Any, None]:
        """Return the datasets for training and validation, of the lengths that the run asks for."""
        validates = self.do_validation and context.valid_samples
        if self.dataset_root is None:
            train = _Random(context.train_samples, self, 0)
            return train, _Random(context.valid_samples, self, 1) if validates else None, None
        root = Path(self.dataset_root)
        return (
            _Samples(context.train_samples, self, latent_shards.find(root), shuffled=True),
            _Samples(context.valid_samples, self, latent_shards.find(root / VALIDATION), shuffled=False)
            if validates
            else None,
            None,
        )

    def collate(self, samples: Sequence[Latents]) -> dict[str, Any]:
        """Return the batch that the model's training step takes."""
        raise NotImplementedError

    def random(self, generator: torch.Generator) -> Latents:
        """Return a sample of random numbers."""
        return Latents(
            torch.randn(self.latents_shape, generator=generator),
            torch.randn(self.text_length, self.text_channels, generator=generator),
        )

    def check(self, sample: Latents) -> None:
        """Raise ValueError if the model cannot take a sample."""
        shape = tuple(sample.latents.shape)
        if len(shape) != len(self.latents_shape) or shape[0] != self.latents_shape[0]:
            raise ValueError(f"its latents are {shape}, not {self._form()}")
        if sample.text.ndim != 2 or sample.text.shape[1] != self.text_channels:
            found = tuple(sample.text.shape)
            raise ValueError(f"its text's embeddings are {found}, not (tokens, {self.text_channels})")
        if self.seq_length != self.unlimited_length and (tokens := self.tokens(shape)) > self.seq_length:
            raise ValueError(
                f"it has {tokens} tokens of latents, more than training.seqLength {self.seq_length}"
            )

    def tokens(self, shape: Sequence[int]) -> int:
        """Return the tokens of latents of a shape. Raises ValueError for one that patches do not divide."""
        raise NotImplementedError

    def _form(self) -> str:
        dimensions = ("frames", "height", "width")[-(len(self.latents_shape) - 1) :]
        return f"({self.latents_shape[0]}, {', '.join(dimensions)})"

    def _text(self, sample: Latents) -> torch.Tensor:
        """Return the embeddings of a text, [text_length, text_channels]."""
        text = sample.text[: self.text_length]
        return pad(text, (0, 0, 0, self.text_length - text.shape[0]))


@dataclass(kw_only=True)
class WanLatents(LatentsDatasetConfig):
    """Videos. The samples of a micro batch are packed to one sequence, as Bridge's step takes it."""

    patch: list[int]
    """Frames, height and width of the latents of a token."""
    fine_tunes: bool = False
    """Whether noise is drawn as Bridge draws it to fine-tune, or as it does to pretrain."""

    def tokens(self, shape: Sequence[int]) -> int:
        grid = [size // each for size, each in zip(shape[1:], self.patch, strict=True)]
        if list(shape[1:]) != [count * each for count, each in zip(grid, self.patch, strict=True)]:
            raise ValueError(f"its latents are {tuple(shape)}, which patches of {self.patch} do not divide")
        return int(np.prod(grid))

    def collate(self, samples: Sequence[Latents]) -> dict[str, Any]:
        """Return a packed sequence of all samples, each padded to what context parallelism splits it by."""
        from megatron.bridge.diffusion.models.wan.utils import patchify

        videos = patchify([sample.latents.float() for sample in samples], tuple(self.patch))
        texts = [self._text(sample).float() for sample in samples]
        parts = parallel_state.get_context_parallel_world_size()
        padded, masks = zip(*(_padded(video, 2 * parts if parts > 1 else 1) for video in videos), strict=True)
        padded_texts = [_padded(text, 2 * parts if parts > 1 else 1)[0] for text in texts]
        grids = [
            [size // each for size, each in zip(sample.latents.shape[1:], self.patch, strict=True)]
            for sample in samples
        ]
        return {
            "video_latents": torch.cat(padded).unsqueeze(1),
            "context_embeddings": torch.cat(padded_texts).unsqueeze(1),
            "loss_mask": torch.cat(masks).unsqueeze(1),
            "seq_len_q": _lengths(videos),
            "seq_len_q_padded": _lengths(padded),
            "seq_len_kv": _lengths(texts),
            "seq_len_kv_padded": _lengths(padded_texts),
            "grid_sizes": torch.tensor(grids, dtype=torch.int32),
        }


@dataclass(kw_only=True)
class FluxLatents(LatentsDatasetConfig):
    """Images of one size in a micro batch."""

    pooled_channels: int = 768

    def random(self, generator: torch.Generator) -> Latents:
        """Return a sample of random numbers, with the pooled embedding of its text."""
        sample = super().random(generator)
        return Latents(sample.latents, sample.text, torch.randn(self.pooled_channels, generator=generator))

    def check(self, sample: Latents) -> None:
        """Raise ValueError if the model cannot take a sample."""
        super().check(sample)
        if sample.pooled is None or tuple(sample.pooled.shape) != (self.pooled_channels,):
            found = None if sample.pooled is None else tuple(sample.pooled.shape)
            raise ValueError(f"its pooled_prompt_embeds are {found}, not ({self.pooled_channels},)")

    def tokens(self, shape: Sequence[int]) -> int:
        if any(size % _FLUX_PATCH for size in shape[1:]):
            raise ValueError(f"its latents are {tuple(shape)}: height and width must be even")
        return int(np.prod([size // _FLUX_PATCH for size in shape[1:]]))

    def collate(self, samples: Sequence[Latents]) -> dict[str, Any]:
        """Return the batch. Positions of the text are 0, as in the published model.

        Raises SampleLineError for images of several sizes.
        """
        if len(shapes := latent_shards.shapes(samples)) > 1:
            sizes = " and ".join(str(shape) for shape in sorted(shapes))
            fix = "set training.microBatchSize: 1, or prepare images of one size"
            raise SampleLineError(f"a micro batch has latents of {sizes}: {fix}")
        pooled = [sample.pooled for sample in samples if sample.pooled is not None]
        return {
            "latents": torch.stack([sample.latents.bfloat16() for sample in samples]),
            "prompt_embeds": torch.stack([self._text(sample).bfloat16() for sample in samples]),
            "pooled_prompt_embeds": torch.stack(pooled).bfloat16(),
            "text_ids": torch.zeros(len(samples), self.text_length, 3, dtype=torch.bfloat16),
        }


def _padded(tokens: torch.Tensor, multiple: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return `tokens` [positions, channels] with zeros up to a multiple, and 1 where there is no padding."""
    more = -tokens.shape[0] % multiple
    mask = torch.ones(tokens.shape[0], dtype=torch.bfloat16)
    return pad(tokens, (0, 0, 0, more)), pad(mask, (0, more))


def _lengths(parts: Sequence[torch.Tensor]) -> torch.Tensor:
    return torch.tensor([len(part) for part in parts], dtype=torch.int32)


class _Numbered(torch.utils.data.Dataset[Latents]):
    """`length` samples, of which Bridge's loader makes batches by `collate_fn`."""

    def __init__(self, length: int, config: LatentsDatasetConfig) -> None:
        self._length, self._config = length, config
        self.collate_fn = config.collate

    def __len__(self) -> int:
        return self._length


class _Random(_Numbered):
    """Random numbers, another stream for each sample."""

    def __init__(self, length: int, config: LatentsDatasetConfig, part: int) -> None:
        super().__init__(length, config)
        self._part = part

    def __getitem__(self, index: int) -> Latents:
        seed = np.random.SeedSequence([self._config.seed, self._part, index]).generate_state(1, np.uint64)[0]
        return self._config.random(torch.Generator().manual_seed(int(seed >> np.uint64(1))))


class _Samples(_Numbered):
    """Samples of tar files, in as many epochs as it takes."""

    def __init__(
        self, length: int, config: LatentsDatasetConfig, places: list[Place], *, shuffled: bool
    ) -> None:
        super().__init__(length, config)
        self._places = places
        self.read_from = places[0].tar.parent if places else None
        self._seed = config.seed if shuffled else None
        self._epoch, self._order = -1, np.arange(len(places))

    def __getitem__(self, index: int) -> Latents:
        return sample(self._places[self.place_of(index)], self._config)

    def place_of(self, index: int) -> int:
        """Return which of the folder's samples, from 0, a number stands for."""
        epoch, position = divmod(index, len(self._places))
        if self._seed is not None and epoch != self._epoch:
            self._epoch = epoch
            self._order = np.random.default_rng([self._seed, epoch]).permutation(len(self._places))
        return int(self._order[position])


def sample(place: Place, config: LatentsDatasetConfig) -> Latents:
    """Return a sample that the model takes. Raises SampleLineError."""
    found = latent_shards.read(place)
    try:
        config.check(found)
    except ValueError as error:
        raise SampleLineError(f"{place}: {error}") from error
    return found
