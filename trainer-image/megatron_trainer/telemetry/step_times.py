"""The measured steps of this pod's ranks, and their form in the gang's store."""

import json
import threading
from collections.abc import Iterable, Mapping
from itertools import accumulate, pairwise
from typing import Any, Final

from megatron_trainer.telemetry.stragglers import WINDOW, RankSteps

KEPT_STEPS = 2 * WINDOW
"""Steps of a rank: pods share theirs at different times, and WINDOW of them must be common to all."""
_TICKS: Final = 10_000
"""In a second. In the store times are integers and iterations differences, because node 0 reads those of all
ranks every few seconds: as floats they take three times as many bytes."""


class StepTimes:
    """The last measured steps of each local rank in the newest generation. Safe in several threads."""

    def __init__(self, node_rank: int) -> None:
        self._node_rank = node_rank
        self._lock = threading.Lock()
        self._generation = 0
        self._stages: dict[int, int] = {}
        self._steps: dict[int, dict[int, tuple[float, float]]] = {}

    def apply(self, event: dict[str, Any]) -> None:
        """Record the step of an `iteration` event that has `waitSeconds`. The warm-up steps do not count."""
        if event["event"] != "iteration" or event.get("waitSeconds") is None or not event["settled"]:
            return
        rank, seconds = int(event["rank"]), float(event["stepSeconds"])
        own = max(0.0, seconds - float(event["waitSeconds"]))
        with self._lock:
            if event["generation"] > self._generation:
                self._generation = event["generation"]
                self._steps.clear()
            if event["generation"] < self._generation:
                return
            self._stages[rank] = int(event["stage"])
            steps = self._steps.setdefault(rank, {})
            steps[int(event["iteration"])] = own, seconds
            while len(steps) > KEPT_STEPS:
                del steps[next(iter(steps))]

    def dump(self) -> str:
        """Return the steps as one value of the store; the same text again while no step was added."""
        with self._lock:
            ranks = [[rank, self._stages[rank], *_columns(steps)] for rank, steps in self._steps.items()]
            values = {"node": self._node_rank, "generation": self._generation, "ranks": ranks}
            return json.dumps(values, separators=(",", ":"))


def _columns(steps: Mapping[int, tuple[float, float]]) -> list[list[int]]:
    """Iterations as differences, the rank's own time and the step's."""
    iterations = [0, *steps]
    differences = [after - before for before, after in pairwise(iterations)]
    return [differences, *([round(each[which] * _TICKS) for each in steps.values()] for which in (0, 1))]


def load(texts: Iterable[str], generation: int) -> list[RankSteps]:
    """Return the steps of all pods from their values in the store, without those of other generations."""
    found = []
    for pod in map(json.loads, texts):
        if pod["generation"] == generation:
            for rank, stage, differences, own, seconds in pod["ranks"]:
                columns = zip(accumulate(differences), own, seconds, strict=True)
                steps = {at: (mine / _TICKS, whole / _TICKS) for at, mine, whole in columns}
                found.append(RankSteps(rank, pod["node"], stage, steps))
    return found
