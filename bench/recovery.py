"""Seconds from a fault to the first new iteration, by phase, side by side with what one could use instead.

`python -m bench.recovery` starts the local cluster, runs each system through each fault, prints the table,
and writes bench/data/recovery_phases.yaml, docs/recovery.png and the table of docs/recovery-benchmark.md.
`--trials` says how often; `--systems` and `--faults` take a part of the table.

All systems are watched from outside in the same way, ten times a second:
detect    from the fault until no rank of before is alive
schedule  until all pods exist and have a node (0 where no pod is replaced)
start     until all ranks have been started anew
load      until the first step
redo      until an iteration that had not been done before
"""

import argparse
import contextlib
import itertools
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from localcluster import Cluster as Machine
from rich.console import Console

from bench.recovery_report import FAULTS, PHASES, SYSTEM_TITLES, Cell, Measured, show, write
from bench.recovery_systems import TIMEOUT_MINUTES, ByExitCode, OnFailure, Operator, System, Torchrun
from demo.__main__ import connect, install
from demo.kubectl import Cluster
from tests.faults.machine import VICTIM_NODE
from tests.faults.watched import NODES, RANKS_PER_NODE, SAVE_INTERVAL, eventually

NAMESPACE = "megatron-bench"
ITERATIONS = 100_000
CAP_SECONDS = 180.0
"""A run that does no new iteration for so long is said to be stuck."""

console = Console(soft_wrap=True)


@dataclass
class Bench:
    """What all trials share."""

    cluster: Cluster
    machine: Machine
    measured: Measured = field(default_factory=Measured)

    def series(self, system: System, fault: str, trials: int) -> None:
        """`trials` times the same fault, one after the other; a stuck system is started anew."""
        for number in range(trials):
            if not self._ready(system, fault):
                return
            with contextlib.ExitStack() as undo:
                cell = measure(system, inject(fault, system, self.machine, undo))
            self.measured.add(system.key, fault, cell)
            console.print(f"{system.key}, {fault} {number + 1}/{trials}: {cell}", highlight=False)
            if cell.stuck:
                restart(system)

    def _ready(self, system: System, fault: str) -> bool:
        try:
            settle(system)
            if fault == "node":
                self._spread(system)
        except (TimeoutError, RuntimeError) as error:
            self.measured.add(system.key, fault, Cell(stuck=f"did not start: {error}"))
            return False
        return True

    def _spread(self, system: System) -> None:
        """A pod on the node that will be lost; after the loss of it, all are on the other."""
        for _ in range(4):
            pods = [system.pod(node) or {} for node in range(NODES)]
            if any(pod.get("spec", {}).get("nodeName") == VICTIM_NODE for pod in pods):
                return
            restart(system)
            settle(system)
        raise RuntimeError(f"the scheduler put no pod on {VICTIM_NODE} in 4 starts")


def restart(system: System) -> None:
    """Begin again, from the newest checkpoint."""
    system.stop()
    system.start()


def settle(system: System) -> None:
    """Wait until it trains and has a checkpoint since its last start. Raises RuntimeError when it fails."""

    def ready() -> bool | None:
        if why := system.failed():
            raise RuntimeError(why)
        steps = system.steps()
        if len(system.all_ranks()) != NODES * RANKS_PER_NODE or not steps:
            return None
        # An iteration done again marks the last start.
        again = max(
            (i for i in range(1, len(steps)) if steps[i].iteration <= steps[i - 1].iteration), default=0
        )
        return (steps[again].iteration < system.saved() <= steps[-1].iteration - 2) or None

    eventually(f"{system.key} to train past a checkpoint of its own", ready, CAP_SECONDS)


def inject(fault: str, system: System, machine: Machine, undo: contextlib.ExitStack) -> Callable[[], None]:
    """What does the fault when called."""
    rank = system.ranks(1)[1]
    if fault == "rank":
        return rank.kill
    if fault == "hang":
        return lambda: rank.signal(signal.SIGSTOP)
    if fault == "pod":
        words = ("delete", "pod", system.pod_name(1), "--force", "--grace-period=0")
        return lambda: void(system.cluster.kubectl(*words))
    undo.callback(machine.node_start, VICTIM_NODE)
    return lambda: machine.node_stop(VICTIM_NODE)


def void(_: object) -> None: ...


def measure(system: System, fault: Callable[[], None]) -> Cell:
    """Do the fault and watch until a new iteration, or until nothing has come for CAP_SECONDS."""
    old = system.all_ranks()
    began = time.time()
    fault()
    gone: float | None = None
    bound_since: float | None = None
    ranks: set[object] = set()
    started = 0.0
    while True:
        now = time.time()
        if gone is None and not any(rank.alive for rank in old):
            gone = now
        if not system.bound():
            bound_since = None
        elif bound_since is None:
            bound_since = now
        current = system.all_ranks() - old
        if current != ranks:
            ranks = set(current)
            if len(current) == NODES * RANKS_PER_NODE:
                started = now
        if gone is not None and started:
            steps = system.steps()
            reached = max((s.iteration for s in steps if s.time <= gone), default=0)
            anew = [s for s in steps if s.time > started]
            new = [s for s in anew if s.iteration > reached]
            if new:
                marks = [began, gone, max(gone, bound_since or gone), started, anew[0].time, new[0].time]
                for index in range(1, len(marks)):
                    marks[index] = max(marks[index], marks[index - 1])
                spans = [after - before for before, after in itertools.pairwise(marks)]
                return Cell(dict(zip(PHASES, spans, strict=True)))
        if why := system.failed():
            return Cell(stuck=f"after {now - began:.0f} s: {why}")
        if now - began > CAP_SECONDS:
            return Cell(stuck=f"no new iteration in {CAP_SECONDS:.0f} s")
        time.sleep(0.1)


def systems(cluster: Cluster, wanted: list[str]) -> list[System]:
    """Those wanted, the operator first: its pod template and its volume are what the others use."""
    operator = Operator(cluster, "bench-operator", ITERATIONS)
    restart(operator)
    settle(operator)
    template, volume = operator.template(), operator.folder.parent
    others: dict[str, System] = {
        "onfailure": OnFailure(cluster, "bench-onfailure", template, volume),
        "exitcode": ByExitCode(cluster, "bench-exitcode", template, volume),
        "torchrun": Torchrun(cluster, "bench-torchrun", template, volume),
    }
    return [operator, *(others[name] for name in wanted if name != "operator")]


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="bench.recovery", description=__doc__)
    parser.add_argument("--trials", type=int, default=5)
    parser.add_argument("--systems", nargs="+", choices=SYSTEM_TITLES, default=list(SYSTEM_TITLES))
    parser.add_argument("--faults", nargs="+", choices=FAULTS, default=list(FAULTS))
    parser.add_argument("--keep", action="store_true", help="add to what was measured before")
    options = parser.parse_args(argv)
    cluster = Cluster(connect(), NAMESPACE)
    install(cluster)
    cluster.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}})
    bench = Bench(cluster, Machine(quiet=True), Measured.read() if options.keep else Measured())
    console.print(
        f"checkpoint every {SAVE_INTERVAL} iterations; baselines' hangs end after the collective time-out, "
        f"here --distributed-timeout-minutes {TIMEOUT_MINUTES}"
    )
    for system in systems(cluster, options.systems):
        if not isinstance(system, Operator):
            restart(system)
        for fault in options.faults if system.key != Operator.key or "operator" in options.systems else ():
            bench.series(system, fault, options.trials)
            write(bench.measured)
        system.stop()
    show(bench.measured, console)
    cluster.kubectl("delete", "namespace", NAMESPACE, "--timeout=180s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
