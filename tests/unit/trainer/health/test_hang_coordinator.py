"""How a pod reports a hang; the gang's store is a stand-in."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

from megatron_trainer.health.hang_coordinator import HangCoordinator
from megatron_trainer.health.stacks import RankState
from megatron_trainer.rendezvous.state import State
from megatron_trainer.telemetry.incidents import FailureKind


def test_a_hang_is_reported_though_its_stacks_cannot_be_collected(tmp_path: Path) -> None:
    answers: dict[str, str] = {}
    store = SimpleNamespace(
        set=lambda key, value: answers.update({key.rpartition("/")[2]: value}),
        reached=lambda _key, count: len(answers) == count,
        children=lambda _key: answers,
    )
    gang: Any = SimpleNamespace(node_rank=0, nodes=1, generation=1, store=store)
    watchdog: Any = SimpleNamespace(silent_seconds=lambda: 16.0)
    log: list[str] = []

    def collect() -> list[RankState]:
        raise IndexError("list index out of range")

    hangs = HangCoordinator(gang, watchdog, tmp_path, collect, log.append)
    report = hangs.poll(State(1, hang="hangs/now"))

    assert report is not None
    assert (report.kind, report.rank) == (FailureKind.HANG, None)
    assert report.cause == "no rank has made progress for 16 s, the stalled rank is unknown"
    (line,) = log
    assert "IndexError: list index out of range" in line
