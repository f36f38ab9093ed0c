"""`make bench-gang`: many launchers without ranks against one store on this machine.

Launchers are threads of a few processes, and the store is that of node 0, as in a run. Printed are the time
until all have met, the requests that each sends while nothing happens, the time until all have noticed a
failure that one reports, and until all have noticed one that fell silent.
"""

import multiprocessing
import socket
import threading
import time
from multiprocessing.queues import Queue
from typing import Any

import click
from megatron_trainer.rendezvous.handler import GangRendezvous
from megatron_trainer.rendezvous.state import GenerationPlan
from megatron_trainer.rendezvous.store import GangStore
from megatron_trainer.telemetry.incidents import FailureKind, FailureReport

TOKEN = b"a token of the benchmark, not secret"
POLL_SECONDS = 0.1
TIMEOUT = 600.0
FAILURE = FailureReport(FailureKind.RANK, "a rank was killed", 1, 1)

Event = tuple[str, int, float]
"""What happened, the node rank, and a number: a time (monotonic seconds) or requests a second."""


def free_port() -> int:
    """Return a port that nothing listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def launcher(node_rank: int, nodes: int, port: int, quiet: float, events: "Queue[Event]") -> None:
    """One launcher: meets twice; the second generation starts when node 1 reports a failure."""
    store = GangStore("localhost", port, host=node_rank == 0, token=TOKEN)
    gang = GangRendezvous(
        store=store,
        run_id="bench",
        node_rank=node_rank,
        nodes=nodes,
        master_addr="localhost",
        timeout=TIMEOUT,
        prepare=lambda _state, _new: GenerationPlan(None),
        interruption=lambda: None,
        log=lambda _text: None,
    )
    gang.next_rendezvous()
    events.put(("met", node_rank, time.monotonic()))
    begin, before = time.monotonic(), store.requests
    while time.monotonic() - begin < quiet:
        if gang.num_nodes_waiting():
            break
        time.sleep(POLL_SECONDS)
    events.put(("rate", node_rank, (store.requests - before) / (time.monotonic() - begin)))
    if node_rank == 1:
        events.put(("reported", node_rank, time.monotonic()))
        gang.advance(FAILURE)
    while not gang.num_nodes_waiting():
        time.sleep(POLL_SECONDS)
    events.put(("noticed", node_rank, time.monotonic()))
    gang.next_rendezvous()
    events.put(("met again", node_rank, time.monotonic()))
    if node_rank == 1:
        # Silent from now on; node 0 notices it.
        return
    while not gang.num_nodes_waiting():
        time.sleep(POLL_SECONDS)
    events.put(("lost", node_rank, time.monotonic()))


def launchers(ranks: list[int], nodes: int, port: int, quiet: float, events: "Queue[Event]") -> None:
    """Run these launchers as threads to their end."""
    threads = [
        threading.Thread(target=launcher, args=(rank, nodes, port, quiet, events), daemon=True)
        for rank in ranks
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def measure(nodes: int, processes: int, quiet: float) -> dict[str, float]:
    """Run the gang. Returns seconds, and requests a second of the launchers, by name."""
    context = multiprocessing.get_context("spawn")
    events: Queue[Event] = context.Queue()
    port = free_port()
    shares = [[0], *(list(range(first, nodes, processes)) for first in range(1, processes + 1))]
    started = [
        context.Process(target=launchers, args=(share, nodes, port, quiet, events), daemon=True)
        for share in shares
        if share
    ]
    begin = time.monotonic()
    for process in started:
        process.start()
    seen: dict[str, dict[int, float]] = {}
    while len(seen.get("lost", {})) < nodes - 1:
        what, rank, number = events.get(timeout=TIMEOUT)
        seen.setdefault(what, {})[rank] = number
    for process in started:
        process.terminate()
        process.join()
    others = [rate for rank, rate in seen["rate"].items() if rank]
    reported = seen["reported"][1]
    return {
        "seconds until all have started and met": max(seen["met"].values()) - begin,
        "requests a second of a launcher": sum(others) / len(others),
        "requests a second of node 0": seen["rate"][0],
        "seconds until all have noticed a failure": max(seen["noticed"].values()) - reported,
        "seconds until all have met again": max(seen["met again"].values()) - reported,
        "seconds until all have noticed a silent pod": max(seen["lost"].values()) - seen["met again"][1],
    }


@click.command()
@click.option("--launchers", "nodes", default=64, show_default=True, type=click.IntRange(2))
@click.option("--processes", default=4, show_default=True, type=click.IntRange(1))
@click.option("--quiet", default=10.0, show_default=True, help="Seconds in which requests are counted.")
def main(**options: Any) -> None:
    """Measure the gang's store with launchers that have no ranks."""
    for name, value in measure(**options).items():
        click.echo(f"{name:48} {value:8.2f}")


if __name__ == "__main__":
    main()
