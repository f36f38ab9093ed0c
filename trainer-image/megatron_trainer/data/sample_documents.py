"""What the numbers of samples stand for: documents of datasets, lines of a file, keys in tar files.

Megatron writes the index of a dataset to files that are named after a hash of its settings, and describes
them in another file there.
"""

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from megatron_trainer.errors import TrainerError

_BLEND, _DATASET = "BlendedDataset", "GPTDataset"


class SampleIndexError(TrainerError):
    """The files that a run's samples are looked up in are missing or damaged. The text names the file."""


@dataclass(frozen=True)
class Part:
    """A part of a sample: of a document, or line, of a file, both counted from 0.

    Of a document also the first token and the number of tokens; the last token of the last part is the label
    of the one before.
    """

    path: str
    number: int
    first_token: int | None = None
    tokens: int | None = None
    key: str | None = None
    """Of a sample in a tar file, `path` is that file."""


class _Documents:
    """A dataset of Megatron, of one source: its index, as Megatron reads it."""

    def __init__(self, folder: Path, name: str) -> None:
        described = _described(folder, name)
        self.path = str(described["dataset_path"])
        self.tokenizer = described.get("tokenizer")
        self._documents, self._samples, self._shuffled = (
            _load(folder / f"{name}-{part}_index.npy") for part in ("document", "sample", "shuffle")
        )

    def parts(self, number: int) -> list[Part]:
        """The parts of documents that a sample has."""
        if not 0 <= number < len(self._shuffled):
            raise SampleIndexError(f"sample {number} is not one of the {len(self._shuffled)} of {self.path}")
        at = int(self._shuffled[number])
        (first, start), (last, end) = (map(int, self._samples[place]) for place in (at, at + 1))
        found = []
        for place in range(first, last + 1):
            begin = start if place == first else 0
            # One token more than the sequence is long: the label of the last.
            tokens = end + 1 - begin if place == last else None
            found.append(Part(self.path, int(self._documents[place]), begin, tokens))
        return found


class _Blend:
    """A blend of Megatron's: which dataset each sample is of, and its number there."""

    def __init__(self, folder: Path, name: str) -> None:
        described = _described(folder, name)
        self._folder, self._split = folder, name.rpartition("-")[2]
        self._described: Sequence[Any] = described["datasets"]
        self._of, self._numbers = (
            _load(folder / f"{name}-{part}_index.npy") for part in ("dataset", "dataset_sample")
        )
        self._datasets: dict[int, _Documents] = {}
        tokenizers = [each.get("tokenizer") for each in self._described]
        self.tokenizer = tokenizers[0] if tokenizers else None

    def parts(self, number: int) -> list[Part]:
        """The parts of documents that a sample has."""
        if not 0 <= number < len(self._of):
            raise SampleIndexError(f"sample {number} is not one of the {len(self._of)} of the blend")
        place = int(self._of[number])
        if place not in self._datasets:
            described = self._described[place]
            # As Megatron names the files of a dataset.
            text = json.dumps(described, indent=4)
            digest = hashlib.md5(text.encode(), usedforsecurity=False).hexdigest()
            name = f"{digest}-{described.get('class', _DATASET)}-{self._split}"
            self._datasets[place] = _Documents(self._folder, name)
        return self._datasets[place].parts(int(self._numbers[number]))


def _described(folder: Path, name: str) -> dict[str, Any]:
    path = folder / f"{name}-description.txt"
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise SampleIndexError(f"{path}: {error}; the index of the run's samples is there") from error
    if not isinstance(value, dict):
        raise SampleIndexError(f"{path} does not describe a dataset")
    return value


def _load(path: Path) -> np.ndarray[Any, Any]:
    try:
        return np.load(path, mmap_mode="r")  # type: ignore[no-any-return]
    except (OSError, ValueError) as error:
        raise SampleIndexError(f"{path}: {error}") from error


@dataclass(frozen=True)
class SampleIndex:
    """What the samples of a dataset are made of, and the folder of the tokenizer that made it."""

    parts: Callable[[int], list[Part]]
    tokenizer: Path | None = None


def open_index(dataset: dict[str, Any], save: Path) -> SampleIndex | None:
    """Return the index of a dataset that a run in `save` has recorded; None for random numbers.

    Raises SampleIndexError.
    """
    kind = dataset.get("kind")
    if kind == "documents":
        folder, name = Path(str(dataset["folder"])), str(dataset["index"])
        if not folder.is_dir():
            # The volume is mounted at another path here.
            folder = save / folder.name
        opened = (_Blend if f"-{_BLEND}-" in name else _Documents)(folder, name)
        path = (opened.tokenizer or {}).get("tokenizer_path")
        return SampleIndex(opened.parts, Path(path) if path else None)
    path = str(dataset.get("path", ""))
    if kind == "packed" and "lines" in dataset:
        return SampleIndex(_packed(path, str(dataset["lines"]), save))
    if kind in ("lines", "packed"):
        return SampleIndex(lambda number: [Part(path, number)])
    if kind == "tars":
        return SampleIndex(_keys(Path(path)))
    return None


def _packed(path: str, lines_of: str, save: Path) -> Callable[[int], list[Part]]:
    """The lines of the file `lines_of` that are in each sequence of a packed one."""
    from megatron_trainer.bridge import packed_lines

    file = Path(path)
    if not file.is_file():
        # The volume is mounted at another path here.
        file = save.joinpath(*file.parts[-3:])
    try:
        sequences = packed_lines.read(file)
    except (OSError, ValueError) as error:
        raise SampleIndexError(f"{file}: {error}; the lines of packed sequences are there") from error

    def parts(number: int) -> list[Part]:
        if not 0 <= number < len(sequences):
            raise SampleIndexError(f"{file} has {len(sequences)} sequences, and {number} was read")
        return [Part(lines_of, line) for line in sequences[number]]

    return parts


def _keys(folder: Path) -> Callable[[int], list[Part]]:
    from megatron_trainer.bridge import latent_shards  # imports torch

    places = latent_shards.find(folder)

    def parts(number: int) -> list[Part]:
        if number >= len(places):
            raise SampleIndexError(f"{folder} has {len(places)} samples, and sample {number} was read")
        return [Part(str(places[number].tar), number, key=places[number].key)]

    return parts
