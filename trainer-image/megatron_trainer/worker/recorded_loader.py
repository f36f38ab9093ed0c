"""A data loader whose batches carry the numbers of their samples, from the process that has read them.

Loaders read ahead of the step that trains on a batch, in processes of their own, and may do so in any number.
What travels with a batch is what was read for it.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from torch.utils.data import DataLoader, Dataset

from megatron_trainer.telemetry.sample_log import SEQUENTIAL, SHUFFLED

_IN_ORDER = "MegatronPretrainingSampler"
_PACKED = (".npy", ".parquet")


class Read(NamedTuple):
    """Numbers of samples as the loader asked for them, and their places in the dataset, if those differ."""

    numbers: list[int]
    places: list[int] | None


class _Samples(NamedTuple):
    read: Read
    samples: list[Any]


class _RecordedDataset(Dataset[Any]):
    """Returns the samples of a batch with their numbers."""

    def __init__(self, dataset: Any) -> None:
        self._dataset = dataset
        self._place = place_in(dataset)

    def __len__(self) -> int:
        return len(self._dataset)

    def __getitems__(self, numbers: Sequence[int]) -> _Samples:
        if hasattr(self._dataset, "__getitems__"):
            samples = self._dataset.__getitems__(numbers)
        else:
            samples = [self._dataset[number] for number in numbers]
        # Negative ones pad a batch: the loss counts nothing of them.
        real = [int(number) for number in numbers if number >= 0]
        places = None if self._place is None else [int(self._place(number)) for number in real]
        return _Samples(Read(real, places), samples)


def _collate(inner: Callable[[list[Any]], Any], batch: _Samples) -> tuple[Read, Any]:
    return batch.read, inner(batch.samples)


class RecordedLoader:
    """The batches of `loader`; `note` is called with what was read for each, when it is taken."""

    def __init__(self, loader: DataLoader[Any], note: Callable[[Read], None]) -> None:
        self._note = note
        self._loader: DataLoader[Any] = DataLoader(
            _RecordedDataset(loader.dataset),
            batch_sampler=loader.batch_sampler,
            num_workers=loader.num_workers,
            collate_fn=partial(_collate, loader.collate_fn),
            pin_memory=loader.pin_memory,
            timeout=loader.timeout,
            worker_init_fn=loader.worker_init_fn,
            multiprocessing_context=loader.multiprocessing_context,
            generator=loader.generator,
            prefetch_factor=loader.prefetch_factor,
            persistent_workers=loader.persistent_workers,
        )

    def __iter__(self) -> Iterator[Any]:
        # Made here, not with the first batch: it draws from torch's random numbers.
        return self._noted(iter(self._loader))

    def _noted(self, batches: Iterator[Any]) -> Iterator[Any]:
        for (numbers, places), batch in batches:
            self._note(Read(numbers, places))
            yield batch


def place_in(dataset: Any) -> Callable[[int], int] | None:
    """Return what maps a number to its place in the file of a dataset; None if they are the same."""
    if (place := getattr(dataset, "place_of", None)) is not None:
        return place  # type: ignore[no-any-return]
    mapping = getattr(dataset, "samples_mapping", None)
    if mapping is None:
        return None

    def mapped(number: int) -> int:
        found = mapping[number]
        # Of samples that are not packed, Bridge has the number of the line and the length of its parts.
        return int(found[0] if hasattr(found, "__len__") else found)

    return mapped


def describe(loader: DataLoader[Any]) -> dict[str, Any]:
    """Return `kind`, `order` and where the dataset of a loader is.

    Kinds: `documents` of Megatron's datasets, with the files of their index; `lines` of a file; `packed`
    sequences of `lines` of one; `tars` of a folder; `random` numbers, and others.
    """
    dataset: Any = loader.dataset
    sampler = loader.batch_sampler
    in_order = type(sampler).__name__ == _IN_ORDER or getattr(sampler, "shuffle", None) is False
    order = SEQUENTIAL if in_order else SHUFFLED
    found: dict[str, Any] = {"order": order}
    digest, config = getattr(dataset, "unique_description_hash", None), getattr(dataset, "config", None)
    if digest is not None and not getattr(config, "mock", False):
        split = getattr(dataset, "split", None) or dataset.index_split
        index = f"{digest}-{type(dataset).__name__}-{split.name}"
        return found | {
            "kind": "documents",
            "index": index,
            "folder": str(getattr(config, "path_to_cache", "")),
        }
    if (path := getattr(dataset, "file_path", None)) is not None:
        kind = "packed" if Path(str(path)).suffix in _PACKED else "lines"
        lines = getattr(dataset, "lines_of", None)
        found |= {} if lines is None else {"lines": lines}
        return found | {"kind": kind, "path": str(path)}
    if (path := getattr(dataset, "read_from", None)) is not None:
        return found | {"kind": "tars" if Path(path).is_dir() else "lines", "path": str(path)}
    return found | {"kind": "random"}
