"""`make bench-polling`: how often the operator polls a healthy run beside runs whose pods do not answer.

The operator's poller asks pods on loopback. Silent pods accept the connection and never answer.
"""

import asyncio
import json
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Final

import click
from megatron_operator.controller.progress_poller import ProgressPoller
from megatron_operator.controller.settings import Settings
from megatron_operator.lifecycle.progress_reading import ProgressTarget
from megatron_operator.lifecycle.status_builder import RecipeKey

INTERVAL: Final = 1.0
"""Seconds between two polls of a run that answers; shorter ones grow with so many runs."""
HEALTHY: Final = RecipeKey("healthy", "run")
REPORT: Final = json.dumps({"schema": 1, "phase": "training", "iteration": 7, "generation": 1}).encode()


@dataclass(frozen=True)
class Scenario:
    """The runs beside the healthy one."""

    name: str
    runs: int
    silent: int
    """Pods of each of these runs that do not answer."""
    answering: int = 0
    """Pods of each of these runs that answer."""


SCENARIOS: Final = (
    Scenario("alone", 0, 0),
    Scenario("4 runs x 8 silent pods", 4, 8),
    Scenario("40 runs x 8 silent pods", 40, 8),
    Scenario("40 runs x 7 silent pods of 8", 40, 7, 1),
)


class Pods:
    """All pods on one port; the path of a request has the pod's run and name."""

    def __init__(self) -> None:
        self.polls: Counter[tuple[str, str]] = Counter()
        """Requests by namespace and pod."""
        self.open = 0
        """Requests without an answer whose connection is open."""
        self.url = ""

    @asynccontextmanager
    async def running(self) -> AsyncIterator["Pods"]:
        """Serve; `url` is for the operator's settings."""
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0, backlog=4096)
        port = server.sockets[0].getsockname()[1]
        self.url = f"http://127.0.0.1:{port}/{{namespace}}/{{pod}}"
        try:
            yield self
        finally:
            server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            request = await reader.readuntil(b"\r\n\r\n")
            namespace, pod = request.split()[1].decode().strip("/").split("/")
            self.polls[namespace, pod] += 1
            if pod.startswith("silent"):
                self.open += 1
                await reader.read()
                self.open -= 1
            else:
                writer.write(b"HTTP/1.0 200 OK\r\n\r\n" + REPORT)
                await writer.drain()
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()


def targets(silent: int, answering: int) -> tuple[ProgressTarget, ...]:
    """The pods of a run; the first ones are silent."""
    names = [*(f"silent-{n}" for n in range(silent)), *(f"pod-{n}" for n in range(answering))]
    return tuple(ProgressTarget(name, "127.0.0.1", rank) for rank, name in enumerate(names))


async def measure(scenario: Scenario, seconds: float) -> str:
    """Poll for so many seconds; one line of the table."""
    beside = [RecipeKey(f"beside-{number}", "run") for number in range(scenario.runs)]
    async with Pods().running() as pods:
        settings = Settings(progress_url=pods.url, progress_interval=INTERVAL)
        poller = ProgressPoller(settings, lambda _key, _patience: None, time.time)
        for key in beside:
            poller.watch(key, targets(scenario.silent, scenario.answering))
        poller.watch(HEALTHY, targets(0, 2))
        polling, began = asyncio.create_task(poller.run()), time.process_time()
        await asyncio.sleep(seconds)
        cpu = time.process_time() - began
        polling.cancel()
        await asyncio.gather(polling, return_exceptions=True)
    found = [pods.polls[key.namespace, "pod-0"] for key in beside] if scenario.answering else []
    others = f"{min(found)} to {max(found)}" if found else "-"
    silent = sum(number for (_, pod), number in pods.polls.items() if pod.startswith("silent"))
    polls = pods.polls[HEALTHY.namespace, "pod-0"]
    return f"{scenario.name:30} {polls:10} {others:>14} {silent:12} {cpu:8.2f}"


@click.command()
@click.option("--seconds", default=40.0, help="Duration of each measurement.")
def main(seconds: float) -> None:
    """Print polls of a healthy run beside runs whose pods do not answer."""
    click.echo(f"polls in {seconds:.0f} s, one every {INTERVAL:.0f} s wanted; CPU with the pods' own")
    click.echo(f"{'beside':30} {'healthy':>10} {'pods beside':>14} {'silent pods':>12} {'CPU s':>8}")
    for scenario in SCENARIOS:
        click.echo(asyncio.run(measure(scenario, seconds)))


if __name__ == "__main__":
    main()
