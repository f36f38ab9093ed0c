"""Follows the run's file of scalars from where a tracker has read it before."""

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

from megatron_contract.limits import MOST_ITERATIONS
from megatron_contract.wire import WireError, load_json

CHUNK_BYTES: Final = 1 << 20
"""Bytes that are read at once: a tracker that starts late must not hold the curves of a whole run."""


@dataclass(frozen=True, slots=True)
class Scalars:
    """The values of one iteration by name, all finite, and when they were written (Unix seconds)."""

    iteration: int
    generation: int
    time: float
    values: dict[str, float]


@dataclass(slots=True)
class Position:
    """What a tracker has recorded."""

    offset: int = 0
    """Bytes of the file before the first line of the last iteration, which is read again after a restart."""
    highest: dict[str, int] = field(default_factory=dict)
    """Name of a curve -> last iteration that is recorded of it."""
    generation: int = 0
    """Of the line that was recorded last."""
    run: str = ""
    """The tracker's run that has it; another one knows none of it."""

    @property
    def iteration(self) -> int:
        """The last iteration that is recorded of any curve, -1 without one."""
        return max(self.highest.values(), default=-1)

    def rewind(self, iteration: int) -> None:
        """Forget what is recorded of `iteration` and all later ones."""
        self.highest = {name: min(last, iteration - 1) for name, last in self.highest.items()}

    def unrecorded(self, scalars: Scalars) -> dict[str, float]:
        """The values that are not recorded yet.

        A second evaluation of an iteration, that of the test data, has the names of the first.
        """
        return {
            name: value
            for name, value in scalars.values.items()
            if scalars.iteration > self.highest.get(name, -1)
        }

    def add(self, scalars: Scalars) -> None:
        """Note that `scalars` are recorded."""
        for name in scalars.values:
            self.highest[name] = max(scalars.iteration, self.highest.get(name, -1))
        self.generation = scalars.generation


def load_position(file: Path) -> Position:
    """Read a tracker's position; that of a new tracker if there is none, or none that can be read."""
    try:
        value = load_json(file.read_bytes())
        if isinstance(value, dict):
            highest = {str(name): int(last) for name, last in value["highest"].items()}
            return Position(
                max(0, int(value["offset"])), highest, int(value["generation"]), str(value["run"])
            )
    except (OSError, WireError, KeyError, TypeError, ValueError, AttributeError):
        pass
    return Position()


def save_position(file: Path, position: Position) -> None:
    """Write a tracker's position whole. Raises OSError."""
    file.parent.mkdir(parents=True, exist_ok=True)
    partial = file.with_name(f".partial-{file.name}")
    partial.write_text(json.dumps(asdict(position)))
    partial.replace(file)


class ScalarLog:
    """The complete lines of the file from `offset`."""

    def __init__(self, path: Path, offset: int) -> None:
        self._path = path
        self._offset = offset
        self._last = -1
        self.start_of_last = offset
        """Bytes before the first line of the iteration that was read last."""

    def read_new(self) -> list[Scalars]:
        """Read the lines completed since the last call, at most CHUNK_BYTES of them. Raises OSError.

        A file that is shorter than what was read of it is another one, and is read from its start.
        """
        try:
            with self._path.open("rb") as file:
                if file.seek(0, 2) < self._offset:
                    self._offset = 0
                file.seek(self._offset)
                text = file.read(CHUNK_BYTES)
        except FileNotFoundError:
            return []
        return list(self._parse(text[: text.rfind(b"\n") + 1]))

    def _parse(self, text: bytes) -> Iterator[Scalars]:
        for line in text.splitlines(keepends=True):
            scalars = _parse_line(line)
            if scalars is not None:
                if scalars.iteration != self._last:
                    self._last, self.start_of_last = scalars.iteration, self._offset
                yield scalars
            self._offset += len(line)


def _parse_line(line: bytes) -> Scalars | None:
    """A line of the file without values that are not finite; None for one that its writer did not finish."""
    try:
        value: Any = load_json(line)
        iteration, generation = int(value["iteration"]), int(value["generation"])
        time = float(value["time"])
        values = {str(name): float(each) for name, each in value["values"].items() if each is not None}
    except (WireError, KeyError, TypeError, ValueError, AttributeError):
        return None
    return Scalars(iteration, generation, time, values) if 0 <= iteration <= MOST_ITERATIONS else None
