"""By which weights a run that fine-tunes reads the samples of its sources, and in which order.

A file of prepared samples has those of all sources after each other. `blend.json` beside it has how many each
source has, and the weight of each. A source is read in whole epochs, of which each has another order: none of
its samples is read again before all others of it are.
"""

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np

from megatron_trainer.errors import TrainerError
from megatron_trainer.read_errors import is_temporary

FILE: Final = "blend.json"
PARTS: Final = ("training", "validation")


class BlendError(TrainerError):
    """The weights of prepared samples are missing or damaged. The text names the file."""


class Share(NamedTuple):
    """A source: the number of its samples in the file, and its weight, which is relative to the others'."""

    samples: int
    weight: float


type Mix = Sequence[Share]
"""The sources of a file, in its order."""


def is_weighted(weights: Iterable[float]) -> bool:
    """Whether sources are read by weight. If all weights are 1, an epoch has each sample of each once."""
    return any(weight != 1.0 for weight in weights)


def dump(mixes: dict[str, Mix | None]) -> str:
    """Return the content of FILE; None for a part of PARTS whose samples are not read by weight."""
    found = {part: None if mix is None else [share._asdict() for share in mix] for part, mix in mixes.items()}
    return json.dumps(found)


def load(folder: Path) -> dict[str, Mix | None]:
    """Return what `dump` was given, from FILE in a folder.

    Raises BlendError, and OSError for a volume that cannot be read for a while.
    """
    path = folder / FILE
    try:
        found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        return {
            part: None
            if found[part] is None
            else [Share(int(each["samples"]), float(each["weight"])) for each in found[part]]
            for part in PARTS
        }
    except (OSError, ValueError, KeyError, TypeError) as error:
        if is_temporary(error):
            raise
        raise BlendError(f"{path}: {error}; the weights of the samples are there") from error


def _places(mix: Mix, count: int) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Source and number in the source of the first `count` samples: int16 and int64, of shape [count].

    By Megatron's own function, as in a BlendedDataset: the source that is furthest behind its weight is next.
    The first ones do not depend on `count`.
    """
    from megatron.core.datasets import helpers_cpp

    of, numbers = np.zeros(count, dtype=np.int16), np.zeros(count, dtype=np.int64)
    weights = np.array([share.weight for share in mix], dtype=np.float64)
    helpers_cpp.build_blending_indices(of, numbers, weights / weights.sum(), len(mix), count, False)
    return of, numbers


def samples_read(mix: Mix, count: int) -> list[int]:
    """Return how many of the first `count` samples of a run are of each source."""
    of, _ = _places(mix, count)
    return [int(some) for some in np.bincount(of, minlength=len(mix))]


def order(mix: Mix, count: int, seed: int) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Return the places in the file, from 0, of the first `count` samples of a run: int64 [count].

    The first ones do not depend on `count`: a run that is made longer goes on in the same order.
    """
    of, numbers = _places(mix, count)
    found = np.zeros(count, dtype=np.int64)
    start = 0
    for source, share in enumerate(mix):
        mine = of == source
        epochs = -(-int(mine.sum()) // share.samples)
        # RandomState has the same numbers in all releases of numpy: a run may resume in another image.
        orders = [
            np.random.RandomState([seed, source, epoch]).permutation(share.samples) for epoch in range(epochs)
        ]
        if epochs:
            found[mine] = start + np.concatenate(orders)[numbers[mine]]
        start += share.samples
    return found
