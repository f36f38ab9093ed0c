"""`make bench-gang`: many launchers without ranks against one store on this machine.

Launchers are threads of a few processes, and the store is that of node 0, as in a run. Printed are the time
until all have met, the operations that the store serves while nothing happens, and the time until all have
noticed a failure that one reports, and one that fell silent.
"""

import multiprocessing
import os
import resource
import threading
import time
from collections.abc import Mapping
from multiprocessing.queues import Queue
from queue import Empty

import click
from megatron_trainer.rendezvous.handler import SILENCE_SECONDS, GangRendezvous
from megatron_trainer.rendezvous.state import GenerationPlan
from megatron_trainer.rendezvous.store import GangStore, StoreLostError
from megatron_trainer.telemetry.incidents import FailureKind, FailureReport

from testkit.ports import free_port

TOKEN = b"a token of the benchmark, not secret"
POLL_SECONDS = 0.1
HEARTBEAT_SECONDS = 1.0
TIMEOUT = 600.0
FAILURE = FailureReport(FailureKind.RANK, "a rank was killed", 1, 1)

Event = tuple[str, int, float]
"""What happened, the node rank, and a number: a time (monotonic seconds) or operations a second."""
Seen = dict[str, dict[int, float]]
"""The numbers of all events by what happened and node rank."""


class Launcher:
    """One launcher: meets twice; the second generation starts when node 1 reports a failure."""

    def __init__(self, node_rank: int, nodes: int, port: int, events: "Queue[Event]") -> None:
        self._node_rank = node_rank
        self._events = events
        self._store = GangStore("localhost", port, host=node_rank == 0, token=TOKEN)
        self._gang = GangRendezvous(
            store=self._store,
            run_id="bench",
            node_rank=node_rank,
            nodes=nodes,
            master_addr="localhost",
            timeout=TIMEOUT,
            prepare=lambda _state, _new: GenerationPlan(None),
            interruption=lambda: None,
            log=lambda _text: None,
        )

    def run(self, quiet: float) -> None:
        """Take part from the start to the loss of a pod; `quiet` in seconds."""
        self._meet("met")
        begin, before = time.monotonic(), self._store.requests
        while time.monotonic() - begin < quiet and not self._over():
            pass
        self._record("rate", (self._store.requests - before) / (time.monotonic() - begin))
        if self._node_rank == 1:
            self._record("reported", time.monotonic())
            self._gang.advance(FAILURE)
        self._await_end_of_generation("noticed")
        self._meet("met again")
        if self._node_rank != 1:
            # Node 1 is silent from now on; node 0 notices it.
            self._await_end_of_generation("lost")

    def _record(self, what: str, number: float) -> None:
        self._events.put((what, self._node_rank, number))

    def _meet(self, what: str) -> None:
        self._gang.next_rendezvous()
        self._record(what, time.monotonic())

    def _await_end_of_generation(self, what: str) -> None:
        while not self._over():
            pass
        self._record(what, time.monotonic())

    def _over(self) -> bool:
        """Whether all must meet again. A launcher that lost the store meets the others there, as in a run."""
        try:
            # A launcher polls ten times a second; thousands that share a few cores wait for a change.
            self._store.wait(POLL_SECONDS if self._node_rank == 0 else HEARTBEAT_SECONDS)
            return bool(self._gang.num_nodes_waiting())
        except StoreLostError:
            self._record("store lost", time.monotonic())
            self._gang.next_rendezvous()
            return False


def launchers(ranks: list[int], nodes: int, port: int, quiet: float, events: "Queue[Event]") -> None:
    """Run these launchers as threads to their end."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    threads = [
        threading.Thread(target=Launcher(rank, nodes, port, events).run, args=(quiet,), daemon=True)
        for rank in ranks
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def measure(nodes: int, processes: int, quiet: float, timeout: float) -> Seen:
    """Run the gang. Returns what has happened after at most `timeout` seconds; `begin` is when it started."""
    context = multiprocessing.get_context("forkserver")
    # torch is imported once.
    context.set_forkserver_preload(["megatron_trainer.rendezvous.handler"])
    events: Queue[Event] = context.Queue()
    port = free_port()
    shares = [[0], *(list(range(first, nodes, processes)) for first in range(1, processes + 1))]
    started = [
        context.Process(target=launchers, args=(share, nodes, port, quiet, events), daemon=True)
        for share in shares
        if share
    ]
    for process in started:
        process.start()
    begin = time.monotonic()
    seen: Seen = {"begin": {0: begin}}
    while len(seen.get("lost", {})) < nodes - 1:
        try:
            what, rank, number = events.get(timeout=max(begin + timeout - time.monotonic(), 0))
        except Empty:
            break
        seen.setdefault(what, {})[rank] = number
    for process in started:
        process.terminate()
        process.join()
    return seen


def report(seen: Mapping[str, Mapping[int, float]], nodes: int) -> dict[str, str]:
    """What was measured, as texts by name; a phase that not all launchers have ended has their number."""

    def last(what: str, since: float | None, launchers: int) -> str:
        times = seen.get(what, {})
        if since is None or len(times) < launchers:
            return f"only {len(times)} of {launchers}"
        return f"{max(times.values()) - since:.2f}"

    begin = seen["begin"][0]
    reported = seen.get("reported", {}).get(1)
    silent = seen.get("met again", {}).get(1)
    rates = seen.get("rate", {})
    others = [rate for rank, rate in rates.items() if rank]
    return {
        "launchers": str(nodes),
        "seconds until all have started and met": last("met", begin, nodes),
        "operations a second of the store": f"{sum(rates.values()):.0f}",
        "operations a second of a launcher": f"{sum(others) / len(others):.2f}" if others else "none",
        "operations a second of node 0": f"{rates[0]:.2f}" if 0 in rates else "none",
        "seconds until all have noticed a failure": last("noticed", reported, nodes),
        "seconds until all have met again": last("met again", reported, nodes),
        f"seconds until all have noticed a silent pod (limit {SILENCE_SECONDS:.0f})": last(
            "lost", silent, nodes - 1
        ),
        "launchers that lost the store meanwhile": str(len(seen.get("store lost", {}))),
    }


@click.command()
@click.option("--launchers", "nodes", default=64, show_default=True, type=click.IntRange(2))
@click.option("--processes", default=os.cpu_count() or 1, show_default=True, type=click.IntRange(1))
@click.option("--quiet", default=10.0, show_default=True, help="Seconds in which operations are counted.")
@click.option("--timeout", default=TIMEOUT, show_default=True, help="Seconds after which it gives up.")
def main(nodes: int, processes: int, quiet: float, timeout: float) -> None:
    """Measure the gang's store with launchers that have no ranks."""
    for name, text in report(measure(nodes, processes, quiet, timeout), nodes).items():
        click.echo(f"{name:60} {text:>16}")


if __name__ == "__main__":
    main()
