"""The most memory that this pod's ranks have reserved, and its form in the gang's store."""

import json
import threading
from collections.abc import Iterable
from typing import Any

from megatron_contract.progress import ReportedMemory, fullest_ranks


class PeakMemory:
    """The peak of each local rank in the newest generation. Safe in several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._generation = 0
        self._ranks: dict[int, ReportedMemory] = {}

    def apply(self, event: dict[str, Any]) -> None:
        """Record the peak of an `iteration` event that has `reservedBytes`, as those of GPUs do."""
        if event["event"] != "iteration" or event.get("reservedBytes") is None:
            return
        new = ReportedMemory(int(event["rank"]), int(event["stage"]), int(event["reservedBytes"]))
        with self._lock:
            if event["generation"] > self._generation:
                self._generation = event["generation"]
                self._ranks.clear()
            if event["generation"] < self._generation:
                return
            known = self._ranks.get(new.rank)
            if known is None or known.bytes < new.bytes:
                self._ranks[new.rank] = new

    def dump(self) -> str:
        """Return the fullest rank of each stage as one value of the store; the same while no peak grows."""
        with self._lock:
            fullest = [each.to_json() for each in fullest_ranks(self._ranks.values())]
            return json.dumps({"generation": self._generation, "ranks": fullest})


def load(texts: Iterable[str], generation: int) -> tuple[ReportedMemory, ...]:
    """Return the fullest rank of each stage from the values of all pods, without other generations."""
    pods = [pod for pod in map(json.loads, texts) if pod["generation"] == generation]
    return fullest_ranks(ReportedMemory.from_json(each) for pod in pods for each in pod["ranks"])
