"""Every row of the fault table done to a plain PyTorchJob, and what became of it.

`python -m bench.plain_rows` starts the local cluster, does the rows to a job with policy OnFailure, then to
one with ExitCode, and writes bench/data/plain_pytorchjob.yaml and the table of docs/plain-pytorchjob.md after
each.
`--rows` takes those whose name has one of the words in it, `--keep` leaves out what was done before.
"""

import argparse
import contextlib
import re
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from localcluster import Cluster as Machine
from rich.console import Console
from rich.text import Text

from bench.plain_report import POLICIES, WELL, Outcome, Results, ended, went_on, write
from bench.recovery import ITERATIONS, namespace, prepared
from bench.recovery_report import CAP_SECONDS
from bench.recovery_systems import ByExitCode, OnFailure, Operator, PlainPyTorchJob, volume_of
from bench.recovery_watch import AWAY, SETTLE_SECONDS, restart, settle, spread, watch
from testkit.faults.injections import Scene
from testkit.faults.rows import ROWS, Row
from testkit.faults.table import QUIET_ITERATIONS
from testkit.kubectl import Cluster, CommandFailed
from testkit.training_run import Step
from testkit.watched_run import DATA_CLAIM, eventually

NAMESPACE = "megatron-plain"
JOBS: dict[str, type[PlainPyTorchJob]] = {"onfailure": OnFailure, "exitcode": ByExitCode}
CHECKPOINTS = 2
"""Before every row, so that a damaged one has one before it."""
DAMAGED = "newest checkpoint's"
LOADS = 2
"""Starts that must fail before a row that damages a checkpoint is over: the file will not heal."""
NOT_FOR_IT = {
    r"^the operator is|the operator killed": "it has no such operator",
    r"clock": "the clock is that of the operator",
    r"^accelerator\.count": "it has no such field; another count is another job with other flags",
    r"elastic run": "its count is fixed",
    r"which is avoided": "it avoids no node",
}
"""Rows that are not for a plain job, by what is in their names, and why."""

DISK_MEBIBYTES = 256
"""Room for more checkpoints than a row takes: Megatron alone deletes none."""

console = Console(soft_wrap=True)


def left_out() -> dict[str, str]:
    """The rows that are not done, and why."""
    return {row.name: why for row in ROWS for sign, why in NOT_FOR_IT.items() if re.search(sign, row.name)}


def chosen(words: list[str]) -> list[Row]:
    """The rows whose name has one of `words` in it; all without words. Raises ValueError where none has."""
    done = [row for row in ROWS if row.name not in left_out()]
    found = [row for row in done if not words or any(word in row.name for word in words)]
    if not found:
        raise ValueError(f"no row has any of {words} in its name; there are: {[row.name for row in done]}")
    return found


def outcome(job: PlainPyTorchJob, row: Row, machine: Machine) -> Outcome:
    """Do one row to a job that trains."""
    steps, saved = job.steps(), job.saved()
    known: dict[int, float] = {}
    for step in steps:
        known.setdefault(step.iteration, step.loss)
    least = saved[-1] if row.resumes == "newest" else saved[-2]
    reached = steps[-1].iteration

    def goal(anew: list[Step], before: int) -> Step | None:
        """A new iteration, or a start that makes waiting for one needless."""
        nonlocal reached
        reached = before
        return next((s for s in anew if s.iteration > before or anew[0].iteration <= least), None)

    scene = Scene(job, machine)
    with scene.undo:
        if not row.kinds:
            row.inject(scene)
            return quiet(job, reached)
        hopeless = LOADS if re.search(DAMAGED, row.name) else None
        seen = watch(job, lambda: row.inject(scene), CAP_SECONDS, goal, hopeless)
    if seen.anew:
        return went_on(seen.anew, known, reached, least, seen.cell.total)
    if seen.ended:
        return ended(seen.ended, job.steps()[-1].iteration, ITERATIONS)
    said = f"; {words}" if (words := job.last_error()) else ""
    text = (
        f"stuck: {seen.cell.stuck}, all ranks were started anew {seen.starts} times ({job.described()}{said})"
    )
    return Outcome("stuck", text)


def quiet(job: PlainPyTorchJob, reached: int) -> Outcome:
    """Of a fault that ends no rank."""
    began = time.monotonic()

    def trained() -> bool | None:
        return job.steps()[-1].iteration >= reached + QUIET_ITERATIONS or None

    try:
        eventually("it to train on", trained, CAP_SECONDS)
    except TimeoutError:
        return Outcome("stuck", f"no {QUIET_ITERATIONS} iterations in {CAP_SECONDS:.0f} s")
    return Outcome(
        "trained on", f"trains on: {QUIET_ITERATIONS} iterations in {time.monotonic() - began:.0f} s"
    )


@dataclass
class Plain:
    """Jobs of one policy, one after the other."""

    cluster: Cluster
    machine: Machine
    policy: str
    template: dict[str, Any]
    volume: Path

    def __post_init__(self) -> None:
        self._usual = JOBS[self.policy](self.cluster, f"plain-{self.policy}", self.template, self.volume)
        self._runs = False

    def do(self, row: Row) -> Outcome:
        """The row's outcome. A job that did not come through well is made anew from nothing for the next.

        Raises RuntimeError or TimeoutError when no job can be brought to train.
        """
        if row.disk:
            self.stop()
            with self._small_disk() as job:
                return self._done(job, row)
        self._begin(row)
        found = self._done(self._usual, row)
        if found.kind not in WELL:
            self.stop()
        return found

    def stop(self) -> None:
        if self._runs:
            self._usual.stop()
            self._usual.forget()
            self._runs = False

    def _begin(self, row: Row) -> None:
        if self._runs and self._usual.worn():
            restart(self._usual)
        for last in (False, True):
            if not self._runs:
                self._usual.start()
                self._runs = True
            try:
                if "node" in row.name:
                    spread(self._usual)
                settle(self._usual, CHECKPOINTS)
                return
            except (*AWAY, CommandFailed, RuntimeError, TimeoutError) as error:
                if last:
                    raise
                console.print(Text(f"{self._usual.name} begins from nothing: {error}"))
                self.stop()

    def _done(self, job: PlainPyTorchJob, row: Row) -> Outcome:
        try:
            return outcome(job, row, self.machine)
        except (*AWAY, AssertionError, TimeoutError, CommandFailed) as error:
            return Outcome("not done", f"not done: {error}")

    @contextlib.contextmanager
    def _small_disk(self) -> Iterator[PlainPyTorchJob]:
        """A job that trains, with its checkpoints on a disk of its own that can be filled up."""
        claim = f"small-disk-{self.policy}"
        self.cluster.apply({**DATA_CLAIM, "metadata": {"name": claim}})

        def bound() -> Path | None:
            return volume_of(self._usual.api, self.cluster.namespace, claim)

        folder = eventually(f"the volume of {claim}", bound, SETTLE_SECONDS)
        job = JOBS[self.policy](self.cluster, claim, self.template, folder, claim)
        with self.machine.small_disk(folder, DISK_MEBIBYTES):
            job.start()
            try:
                settle(job, CHECKPOINTS)
                yield job
            finally:
                job.stop()


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="bench.plain_rows", description=__doc__)
    parser.add_argument("--policy", nargs="+", choices=list(POLICIES), default=list(POLICIES))
    parser.add_argument("--rows", nargs="+", default=[], metavar="WORDS", help="a part of their names")
    parser.add_argument("--keep", action="store_true", help="add what is missing to what was done before")
    options = parser.parse_args(argv)
    try:
        rows = chosen(options.rows)
    except ValueError as error:
        parser.error(str(error))
    results = Results.read() if options.keep else Results()
    cluster = namespace(NAMESPACE)
    operator = Operator(cluster, "plain-template", ITERATIONS)
    template, volume = prepared(operator)
    operator.stop()
    unable = 0
    for policy in options.policy:
        jobs = Plain(cluster, Machine(quiet=True), policy, template, volume)
        for row in rows:
            if results.has(row.name, policy):
                continue
            try:
                found = jobs.do(row)
            except (*AWAY, CommandFailed, RuntimeError, TimeoutError) as error:
                unable += 1
                console.print(Text(f"{POLICIES[policy]}, {row.name}: {error}", style="red"))
                jobs.stop()
                continue
            results.add(row.name, policy, found)
            write(results, ROWS, left_out())
            console.print(Text(f"{POLICIES[policy]}, {row.name}: {found.told}"))
        jobs.stop()
    cluster.kubectl("delete", "namespace", NAMESPACE, "--timeout=180s")
    return 1 if unable else 0


if __name__ == "__main__":
    sys.exit(main())
