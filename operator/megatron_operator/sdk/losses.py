"""The loss over iterations, from the lines that Megatron prints."""

import math
import re
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Final

from megatron_operator.sdk.errors import MissingExtraError

if TYPE_CHECKING:
    import pandas

_LINE: Final = re.compile(r"^(?P<time>\S+) .*?\biteration +(?P<iteration>\d{1,15})/ *\d+ \|(?P<rest>.*)$")
_FIELDS: Final = {
    "lm_loss": r"lm loss",
    "learning_rate": r"learning rate",
    "grad_norm": r"grad norm",
    "milliseconds": r"elapsed time per iteration \(ms\)",
    "consumed_samples": r"consumed samples",
    "global_batch_size": r"global batch size",
}
_NUMBER: Final = r"[-+]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][-+]?[0-9]+)?"
_VALUES: Final = {
    field: re.compile(rf"(?:^|\|) *{label}: *({_NUMBER}) *(?:\||$)") for field, label in _FIELDS.items()
}


@dataclass(frozen=True, slots=True)
class LossPoint:
    """One line of Megatron's log: the loss is the mean since the line before (`training.logInterval`)."""

    iteration: int
    time: str
    """When it was printed, RFC 3339."""
    lm_loss: float
    learning_rate: float | None = None
    grad_norm: float | None = None
    step_seconds: float | None = None
    """Mean duration of an iteration."""
    consumed_samples: int | None = None
    global_batch_size: int | None = None
    """Samples of the iteration; with a batch ramp-up it grows."""


def loss_points(lines: Iterable[str]) -> list[LossPoint]:
    """The points in lines of a log with Kubernetes' timestamps, in order of iterations.

    An iteration that was repeated after a restart replaces the discarded one and all after it. Other lines
    are left out, and values that are no finite numbers: a program in the pod can print anything.
    """
    points: list[LossPoint] = []
    for line in lines:
        point = _point(line)
        if point is None:
            continue
        while points and points[-1].iteration >= point.iteration:
            points.pop()
        points.append(point)
    return points


def _point(line: str) -> LossPoint | None:
    found = _LINE.match(line)
    if found is None:
        return None
    values: dict[str, float] = {}
    for field, pattern in _VALUES.items():
        if (value := pattern.search(found["rest"])) and math.isfinite(number := float(value[1])):
            values[field] = number
    if "lm_loss" not in values:
        return None
    milliseconds, samples = values.get("milliseconds"), values.get("consumed_samples")
    batch = values.get("global_batch_size")
    return LossPoint(
        int(found["iteration"]),
        found["time"],
        values["lm_loss"],
        values.get("learning_rate"),
        values.get("grad_norm"),
        None if milliseconds is None else milliseconds / 1000,
        None if samples is None else int(samples),
        None if batch is None else int(batch),
    )


def data_frame(points: list[LossPoint]) -> "pandas.DataFrame":
    """The points as a table with the index `iteration`. Raises MissingExtraError without pandas."""
    try:
        import pandas
    except ImportError:
        raise MissingExtraError(
            "loss() returns a pandas DataFrame, and pandas is not installed; install"
            " megatron-operator[pandas], or use loss_points()"
        ) from None
    columns = list(LossPoint.__dataclass_fields__)
    frame = pandas.DataFrame([asdict(point) for point in points], columns=columns)
    frame["time"] = pandas.to_datetime(frame["time"], utc=True, format="ISO8601")
    return frame.set_index("iteration")
