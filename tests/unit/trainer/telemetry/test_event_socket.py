"""How the events of ranks arrive at the launcher."""

import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from megatron_trainer.telemetry import reporter
from megatron_trainer.telemetry.event_socket import EventSocket
from megatron_trainer.telemetry.rank_failure import RankFailure
from megatron_trainer.telemetry.reporter import GENERATION_ENV, SOCKET_ENV, Reporter
from megatron_trainer.telemetry.status import Status

QUEUE = Path("/proc/sys/net/unix/max_dgram_qlen")
"""Datagrams that a socket takes."""


@pytest.fixture
def status() -> Status:
    status = Status(node_rank=0, train_iters=20)
    status.start_generation(generation=1, resumed_from=None)
    return status


@pytest.fixture
def events(status: Status, monkeypatch: pytest.MonkeyPatch) -> Iterator[EventSocket]:
    events = EventSocket(status.apply)
    events.start()
    monkeypatch.setenv(SOCKET_ENV, events.address)
    monkeypatch.setenv(GENERATION_ENV, "1")
    yield events
    events.close()


def test_events_that_have_arrived_are_applied(events: EventSocket, status: Status) -> None:
    Reporter().send("iteration", iteration=3, lmLoss=2.5)
    events.drain()
    assert (status.report.iteration, status.report.lm_loss) == (3, 2.5)


@pytest.mark.parametrize("data", [b'{"event": "iter', b"[1", b"[1]", b"1", b"{}", b"\xff"])
def test_an_incomplete_event_is_dropped(data: bytes, events: EventSocket, status: Status) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
        sender.sendto(data, events.address)
    Reporter().send("iteration", iteration=3)
    events.drain()
    assert status.report.iteration == 3


def test_a_mark_that_nobody_waits_for_any_more_is_dropped(events: EventSocket, status: Status) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
        sender.sendto(b'{"mark": 77}', events.address)
    Reporter().send("iteration", iteration=3)
    events.drain()
    assert status.report.iteration == 3


def test_an_event_with_a_value_of_the_wrong_type_is_dropped(events: EventSocket, status: Status) -> None:
    Reporter().send("iteration", iteration="three")
    Reporter().send("iteration", iteration=4)
    events.drain()
    assert status.report.iteration == 4


def test_an_event_that_was_taken_from_the_socket_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its exit code alone does not show that a rank fails like the last time."""
    taken, continues, applied = threading.Event(), threading.Event(), []

    def apply(event: dict[str, Any]) -> None:
        taken.set()
        continues.wait(10)
        applied.append(event["event"])

    events = EventSocket(apply)
    events.start()
    monkeypatch.setenv(SOCKET_ENV, events.address)
    Reporter().send("failed")
    assert taken.wait(10)
    drain = threading.Thread(target=events.drain)
    drain.start()
    drain.join(0.2)
    assert drain.is_alive(), "it does not return before the event is applied"
    continues.set()
    drain.join(10)
    assert applied == ["failed"]
    events.close()


def test_the_last_event_of_a_rank_waits_for_a_launcher_that_gets_no_processor(
    events: EventSocket, status: Status, monkeypatch: pytest.MonkeyPatch
) -> None:
    blocked, first = threading.Event(), threading.Event()
    apply = events._apply

    def slowly(event: dict[str, Any]) -> None:
        first.set()
        blocked.wait(10)
        apply(event)

    monkeypatch.setattr(events, "_apply", slowly)
    monkeypatch.setattr(reporter, "_PATIENCE", 0.01)
    sender = Reporter()
    sender.send("iteration", iteration=1)
    assert first.wait(10)
    for iteration in range(int(QUEUE.read_text()) + 10):  # The last of them are dropped.
        sender.send("iteration", iteration=iteration)
    failure = RankFailure(138, "bad", None, "", None).to_json()
    last = threading.Thread(target=sender.send, args=("failed",), kwargs=failure)
    last.start()
    last.join(0.2)
    assert last.is_alive(), "it waits for the full socket"
    blocked.set()
    last.join(10)
    events.drain()
    assert status.failures()[0].message == "bad"
