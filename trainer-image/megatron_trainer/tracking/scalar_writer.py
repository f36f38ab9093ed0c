"""What the last rank writes of its curves: the scalars that Megatron gives to a TensorBoard writer.

A line for each iteration and evaluation goes to the run's file of scalars and nowhere else. Trackers follow
that file in processes of their own, so none of them can delay a step.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from megatron_trainer.telemetry.reporter import ProgressFile

_OVER_SAMPLES: Final = " vs samples"
"""End of the names of Megatron's second copy of each curve, whose step is not an iteration."""


class ScalarWriter:
    """Stands in for torch's SummaryWriter in both engines. Collects the values of one iteration."""

    def __init__(self, generation: int) -> None:
        self._generation = generation
        self._file: ProgressFile | None = None
        self._iteration = 0
        self._values: dict[str, float] = {}

    def add_scalar(self, tag: str, scalar_value: Any, global_step: int, *_: object, **__: object) -> None:
        """Add one value, a number or a tensor with one element."""
        if tag.endswith(_OVER_SAMPLES):
            return
        self._values[tag] = float(scalar_value)
        self._iteration = int(global_step)

    def add(self, iteration: int, values: Mapping[str, float]) -> None:
        """Add several values of an iteration."""
        self._values |= values
        self._iteration = iteration

    def add_text(self, *_: object, **__: object) -> None:
        """Ignored: Megatron writes its flags as text."""

    def flush(self) -> None:
        """Ignored: `write` is called after each iteration and evaluation."""

    def close(self) -> None:
        """Ignored, as `flush` is."""

    def write(self, file: Path) -> None:
        """Append what was added since the last call to `file`."""
        if not self._values:
            return
        if self._file is None:
            self._file = ProgressFile(file)
        line = {"iteration": self._iteration, "values": self._values, "generation": self._generation}
        self._file.append(line)
        self._values = {}
