"""A slow rank of a real gang is named with its node; a gang whose machine is busy names nobody."""

import os
import sys
import time
from collections.abc import Iterator
from typing import Any

import psutil
import pytest
from localcluster.faults import Process, slowed
from localcluster.processes import start_time
from megatron_trainer.telemetry.stragglers import SLOW_SECONDS

from tests.trainer.gang import SAVE_INTERVAL, Gang, until

LONG = ("--train-iters", "100000", "--save-interval", "100000")


def stragglers(gang: Gang, node: int) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = gang.progress(node)["stragglers"]
    return found


def test_a_slow_rank_is_named_with_its_node_until_it_is_as_fast_as_the_others(gang: Gang) -> None:
    gang.start(extra=LONG)
    gang.await_iteration(SAVE_INTERVAL)
    victim = gang.ranks(1)[0].pid
    with slowed(Process(victim, start_time(victim) or 0)):
        [slow] = until("a rank to be named", lambda: stragglers(gang, 0) or None)
        until("the other pod to report it", lambda: stragglers(gang, 1) or None)
    # The launcher forks its ranks in order.
    assert (slow["rank"], slow["nodeRank"]) == (2, 1)
    assert slow["slowdown"] >= 1.5
    assert slow["ownSeconds"] > slow["peerSeconds"]
    until("the rank to be cleared", lambda: stragglers(gang, 0) == [] or None)


@pytest.mark.repeats
@pytest.mark.usefixtures("busy_machine")
def test_a_healthy_gang_on_a_busy_machine_names_nobody(gang: Gang) -> None:
    gang.start(extra=LONG)
    iteration, end = 80, time.monotonic() + 3 * SLOW_SECONDS
    while time.monotonic() < end or iteration <= 200:
        gang.await_iteration(iteration)
        assert stragglers(gang, 0) == []
        iteration += 20


@pytest.fixture
def busy_machine() -> Iterator[None]:
    """Two processes for each core that compute without end, which slows down whatever runs beside them."""
    command = [sys.executable, "-c", "while True: pass"]
    busy = [psutil.Popen(command) for _ in range(2 * (os.cpu_count() or 1))]
    yield
    for each in busy:
        each.kill()
        each.wait()


def test_megatrons_own_detector_reports_times_of_every_rank(pod: Gang) -> None:
    pod.flags[pod.flags.index("--log-interval") + 1] = "8"
    pod.flags += ["--log-straggler", "--straggler-minmax-count", "4"]
    pod.run_to_end()
    [first, *_] = [line for line in pod.log().splitlines() if "MnRtt/Rnk" in line]
    times = dict(part.split(": ") for part in first.split(" | ")[1:])
    # Of the forward pass and of reading batches, in milliseconds.
    for name in ("MnRtt/Rnk", "MxRtt/Rnk", "MxDRtt/Rnk"):
        assert float(times[name].split("ms")[0]) > 0
