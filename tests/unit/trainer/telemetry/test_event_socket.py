"""How the events of ranks arrive at the launcher."""

import socket
from collections.abc import Iterator

import pytest
from megatron_trainer.telemetry.event_socket import EventSocket
from megatron_trainer.telemetry.reporter import GENERATION_ENV, SOCKET_ENV, Reporter
from megatron_trainer.telemetry.status import Status


@pytest.fixture
def status() -> Status:
    status = Status(node_rank=0, train_iters=20)
    status.start_generation(generation=1, resumed_from=None)
    return status


@pytest.fixture
def events(status: Status, monkeypatch: pytest.MonkeyPatch) -> Iterator[EventSocket]:
    events = EventSocket(status.apply)
    monkeypatch.setenv(SOCKET_ENV, events.address)
    monkeypatch.setenv(GENERATION_ENV, "1")
    yield events
    events.close()


def test_events_that_have_arrived_are_applied(events: EventSocket, status: Status) -> None:
    Reporter().send("iteration", iteration=3, lmLoss=2.5)
    events.drain()
    assert (status.report.iteration, status.report.lm_loss) == (3, 2.5)


@pytest.mark.parametrize("data", [b'{"event": "iter', b"[1", b"\xff"])
def test_an_incomplete_event_is_dropped(data: bytes, events: EventSocket, status: Status) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
        sender.sendto(data, events.address)
    Reporter().send("iteration", iteration=3)
    events.drain()
    assert status.report.iteration == 3


def test_an_event_with_a_value_of_the_wrong_type_is_dropped(events: EventSocket, status: Status) -> None:
    Reporter().send("iteration", iteration="three")
    Reporter().send("iteration", iteration=4)
    events.drain()
    assert status.report.iteration == 4
