"""Seconds from a fault to the first new iteration, by phase, side by side with what one could use instead.

`python -m bench.recovery` starts the local cluster, runs each system through each fault, prints the table,
and writes bench/data/recovery_phases.yaml, docs/recovery.png and the table of docs/recovery-benchmark.md.
`--trials` says how often; `--systems` and `--faults` take a part of the table; `--keep` adds what is missing
to what was measured before.

All systems are watched from outside in the same way, ten times a second:
detect    from the fault until no rank of before is alive
schedule  until all pods exist and have a node (0 where no pod is replaced)
start     until all ranks have been started anew
load      until the first step
redo      until an iteration that had not been done before
"""

import argparse
import contextlib
import signal
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from localcluster import Cluster as Machine
from rich.console import Console
from rich.text import Text

from bench.recovery_report import CAP_SECONDS, FAULTS, SYSTEM_TITLES, Measured, enough, show, write
from bench.recovery_systems import (
    CLAIM,
    TIMEOUT_MINUTES,
    ByExitCode,
    GangAnew,
    OnFailure,
    Operator,
    System,
    Torchrun,
    volume_of,
)
from bench.recovery_watch import AWAY, SETTLE_SECONDS, restart, settle, spread, watch
from demo.__main__ import connect, install
from testkit.faults.infrastructure import VICTIM_NODE
from testkit.kubectl import Cluster, CommandFailed
from testkit.watched_run import SAVE_INTERVAL, eventually

NAMESPACE = "megatron-bench"
ITERATIONS = 100_000
BASELINES: tuple[type[Torchrun | OnFailure | ByExitCode], ...] = (OnFailure, ByExitCode, Torchrun, GangAnew)

UNABLE = 2
"""Trials of a series that may fail before the fault is done; the series is left as it is then."""

console = Console(soft_wrap=True)


@dataclass
class Bench:
    """What all trials share."""

    machine: Machine
    measured: Measured
    every: bool
    """Whether series that one trial tells are run in full too."""
    broken: bool = False
    """Whether the system is stuck from its last trial."""

    def series(self, system: System, fault: str) -> None:
        """The same fault again and again, until the median is known."""
        unable = 0
        while not enough(self.measured, system.key, fault, self.every):
            try:
                self._prepare(system, fault)
                with contextlib.ExitStack() as undo:
                    cell = watch(system, inject(fault, system, self.machine, undo)).cell
            except (*AWAY, CommandFailed, RuntimeError, TimeoutError) as error:
                unable += 1
                console.print(Text(f"{system.key}, {fault}: no trial: {error}", style="red"))
                if unable == UNABLE:
                    return
                self.broken = True
                continue
            self.measured.add(system.key, fault, cell)
            write(self.measured)
            console.print(Text(f"{system.key}, {fault}: {cell}"))
            self.broken = bool(cell.stuck)

    def _prepare(self, system: System, fault: str) -> None:
        if self.broken or system.worn():
            restart(system)
        if fault == "node":
            spread(system)
        try:
            settle(system)
        except (TimeoutError, RuntimeError) as error:
            # What a stuck gang has left behind may keep the next one from starting.
            console.print(Text(f"{system.key} begins from nothing: {error}"))
            restart(system, forget=True)
            if fault == "node":
                spread(system)
            settle(system)


def inject(fault: str, system: System, machine: Machine, undo: contextlib.ExitStack) -> Callable[[], object]:
    """What does the fault when called."""
    if fault == "rank":
        return system.kill_rank
    if fault == "hang":
        rank = system.ranks(1)[1]
        return lambda: rank.signal(signal.SIGSTOP)
    if fault == "pod":
        words = ("delete", "pod", system.pod_name(1), "--force", "--grace-period=0")
        return lambda: system.cluster.kubectl(*words)
    undo.callback(machine.node_start, VICTIM_NODE)
    return lambda: machine.node_stop(VICTIM_NODE)


def prepared(operator: Operator) -> tuple[dict[str, Any], Path]:
    """Start this project's run; its pod template and its volume are what the others use."""
    restart(operator)
    template = operator.template()
    volume = eventually(
        f"the volume of {CLAIM}",
        lambda: volume_of(operator.api, operator.cluster.namespace, CLAIM),
        SETTLE_SECONDS,
    )
    return template, volume


def namespace(name: str) -> Cluster:
    """The cluster with the operator installed, and an empty namespace in it."""
    cluster = Cluster(connect(), name)
    install(cluster)
    cluster.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
    return cluster


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="bench.recovery", description=__doc__)
    parser.add_argument("--trials", type=int, default=5, help="of a series, those kept included")
    parser.add_argument("--systems", nargs="+", choices=SYSTEM_TITLES, default=list(SYSTEM_TITLES))
    parser.add_argument("--faults", nargs="+", choices=FAULTS, default=list(FAULTS))
    parser.add_argument("--keep", action="store_true", help="add to what was measured before")
    parser.add_argument("--every", action="store_true", help="all trials also where one tells")
    options = parser.parse_args(argv)
    measured = Measured.read() if options.keep else Measured()
    measured.planned = options.trials
    cluster = namespace(NAMESPACE)
    console.print(
        f"checkpoint every {SAVE_INTERVAL} iterations; stuck after {CAP_SECONDS:.0f} s; baselines' hangs end "
        f"after the collective time-out, here --distributed-timeout-minutes {TIMEOUT_MINUTES}"
    )
    operator = Operator(cluster, "bench-operator", ITERATIONS)
    template, volume = prepared(operator)
    systems: list[System] = [operator]
    systems += [made(cluster, f"bench-{made.key}", template, volume) for made in BASELINES]
    for system in systems:
        faults = [fault for fault in options.faults if fault in system.faults]
        todo = [fault for fault in faults if not enough(measured, system.key, fault, options.every)]
        wanted = system.key in options.systems and todo
        if wanted and system is not operator:
            system.start()
        bench = Bench(Machine(quiet=True), measured, options.every)
        for fault in todo if wanted else ():
            bench.series(system, fault)
        if wanted or system is operator:
            system.stop()
    show(measured, console)
    cluster.kubectl("delete", "namespace", NAMESPACE, "--timeout=180s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
