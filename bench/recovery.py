"""Seconds from a fault to the first new iteration, by phase, compared with the alternatives.

`python -m bench.recovery` starts the local cluster, injects each fault into each system, prints the table,
and writes bench/data/recovery_phases.yaml, docs/recovery.png and the table of docs/recovery-benchmark.md.
`--trials` sets the number of trials; `--systems` and `--faults` select a part of the table; `--keep` adds
only what earlier runs have not measured.

All systems are observed from outside in the same way, ten times a second:
detect    from the fault until all old ranks have ended
schedule  until all pods exist and are bound to a node (0 where no pod is replaced)
start     until all ranks have restarted
load      until the first iteration
redo      until the first iteration that had not been done before
"""

import argparse
import contextlib
import signal
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from localcluster import Cluster
from rich.console import Console
from rich.text import Text

from bench.recovery_report import CAP_SECONDS, FAULTS, SYSTEM_TITLES, Measured, enough, show, write
from bench.recovery_systems import (
    CLAIM,
    TIMEOUT_MINUTES,
    ByExitCode,
    ColdRestart,
    OnFailure,
    Operator,
    System,
    Torchrun,
    volume_of,
)
from bench.recovery_watch import SETTLE_SECONDS, UNAVAILABLE, restart, settle, spread, watch
from testkit.errors import TestkitError
from testkit.faults.infrastructure import VICTIM_NODE
from testkit.installation import connect, install_operator
from testkit.kubectl import Kubectl
from testkit.waiting import wait_until
from testkit.watched_run import SAVE_INTERVAL

NAMESPACE = "megatron-bench"
ITERATIONS = 100_000
BASELINES: tuple[type[Torchrun | OnFailure | ByExitCode], ...] = (
    OnFailure,
    ByExitCode,
    Torchrun,
    ColdRestart,
)

MAX_FAILED_TRIALS = 2
"""Trials that may fail before their fault is injected; then the series is abandoned."""

console = Console(soft_wrap=True)


@dataclass
class Bench:
    """State that all trials share."""

    cluster: Cluster
    measured: Measured
    every: bool
    """Whether series that one trial decides are run in full too."""
    broken: bool = False
    """Whether the last trial left the system stuck."""

    def series(self, system: System, fault: str) -> None:
        """Repeat one fault until its median is known."""
        failed = 0
        while not enough(self.measured, system.key, fault, self.every):
            try:
                self._prepare(system, fault)
                with contextlib.ExitStack() as undo:
                    cell = watch(system, inject(fault, system, self.cluster, undo)).cell
            except (*UNAVAILABLE, TestkitError, TimeoutError) as error:
                failed += 1
                console.print(Text(f"{system.key}, {fault}: trial failed: {error}", style="red"))
                if failed == MAX_FAILED_TRIALS:
                    return
                self.broken = True
                continue
            self.measured.add(system.key, fault, cell)
            write(self.measured)
            console.print(Text(f"{system.key}, {fault}: {cell}"))
            self.broken = bool(cell.stuck)

    def _prepare(self, system: System, fault: str) -> None:
        if self.broken or system.needs_restart():
            restart(system)
        if fault == "node":
            spread(system)
        try:
            settle(system)
        except (TimeoutError, TestkitError) as error:
            # The remains of a stuck gang may keep the next one from starting.
            console.print(Text(f"{system.key} restarts without checkpoints: {error}"))
            restart(system, from_scratch=True)
            if fault == "node":
                spread(system)
            settle(system)


def inject(fault: str, system: System, cluster: Cluster, undo: contextlib.ExitStack) -> Callable[[], object]:
    """A function that injects the fault."""
    if fault == "rank":
        return system.kill_rank
    if fault == "hang":
        rank = system.ranks(1)[1]
        return lambda: rank.signal(signal.SIGSTOP)
    if fault == "pod":
        arguments = ("delete", "pod", system.pod_name(1), "--force", "--grace-period=0")
        return lambda: system.kubectl.run(*arguments)
    undo.callback(cluster.node_start, VICTIM_NODE)
    return lambda: cluster.node_stop(VICTIM_NODE)


def start_operator_run(operator: Operator) -> tuple[dict[str, Any], Path]:
    """Start this project's run. Returns its pod template and its volume, which the other systems use."""
    restart(operator)
    template = operator.template()
    volume = wait_until(
        f"the volume of {CLAIM}",
        lambda: volume_of(operator.api, operator.kubectl.namespace, CLAIM),
        SETTLE_SECONDS,
    )
    return template, volume


def prepare_namespace(name: str) -> Kubectl:
    """Install the operator and create the namespace. Raises CommandFailedError."""
    kubectl = Kubectl(connect(), name)
    install_operator(kubectl)
    kubectl.create_namespace()
    return kubectl


def main(argv: list[str] | None = None) -> int:
    """The command line. Returns the exit code."""
    parser = argparse.ArgumentParser(prog="bench.recovery", description=__doc__)
    parser.add_argument("--trials", type=int, default=5, help="trials of a series, earlier ones included")
    parser.add_argument("--systems", nargs="+", choices=SYSTEM_TITLES, default=list(SYSTEM_TITLES))
    parser.add_argument("--faults", nargs="+", choices=FAULTS, default=list(FAULTS))
    parser.add_argument("--keep", action="store_true", help="keep earlier results and add to them")
    parser.add_argument("--every", action="store_true", help="run all trials even where one decides")
    options = parser.parse_args(argv)
    measured = Measured.read() if options.keep else Measured()
    measured.planned = options.trials
    kubectl = prepare_namespace(NAMESPACE)
    console.print(
        f"checkpoint every {SAVE_INTERVAL} iterations; stuck after {CAP_SECONDS:.0f} s; hangs of the "
        f"baselines end after the collective timeout, here --distributed-timeout-minutes {TIMEOUT_MINUTES}"
    )
    operator = Operator(kubectl, "bench-operator", ITERATIONS)
    template, volume = start_operator_run(operator)
    systems: list[System] = [operator]
    systems += [baseline(kubectl, f"bench-{baseline.key}", template, volume) for baseline in BASELINES]
    for system in systems:
        faults = [fault for fault in options.faults if fault in system.faults]
        todo = [fault for fault in faults if not enough(measured, system.key, fault, options.every)]
        selected = system.key in options.systems and todo
        if selected and system is not operator:
            system.start()
        bench = Bench(Cluster(quiet=True), measured, options.every)
        for fault in todo if selected else ():
            bench.series(system, fault)
        if selected or system is operator:
            system.stop()
    show(measured, console)
    kubectl.run("delete", "namespace", NAMESPACE, "--timeout=180s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
