"""Every row of the fault table on a plain PyTorchJob.

`python -m bench.plain_rows` starts the local cluster, injects the faults into a job with policy OnFailure,
then into one with ExitCode, and after each writes bench/data/plain_pytorchjob.yaml and the table of
docs/plain-pytorchjob.md. `--rows` selects rows by words in their names; `--keep` skips rows that have a
result.
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

from localcluster import Cluster
from rich.console import Console
from rich.text import Text

from bench.plain_report import POLICIES, SURVIVED, Outcome, Results, ended, resumed, write
from bench.recovery import ITERATIONS, prepare_namespace, start_operator_run
from bench.recovery_report import CAP_SECONDS
from bench.recovery_systems import ByExitCode, OnFailure, Operator, PlainPyTorchJob, volume_of
from bench.recovery_watch import SETTLE_SECONDS, UNAVAILABLE, restart, settle, spread, watch
from testkit.errors import TestkitError
from testkit.faults.bridge_rows import BRIDGE_ROWS
from testkit.faults.injections import FaultContext
from testkit.faults.rows import ROWS, Row
from testkit.faults.table import QUIET_ITERATIONS
from testkit.installation import DATA_CLAIM
from testkit.kubectl import Kubectl
from testkit.training_run import IterationRecord
from testkit.waiting import wait_until

NAMESPACE = "megatron-plain"
JOBS: dict[str, type[PlainPyTorchJob]] = {"onfailure": OnFailure, "exitcode": ByExitCode}
CHECKPOINTS = 2
"""Before every row, so that a damaged checkpoint has a predecessor."""
DAMAGED = "newest checkpoint's"
LOADS = 2
"""Failed starts after which a row that damages a checkpoint is over: the file stays damaged."""
WHOLE_TABLE = (*ROWS, *BRIDGE_ROWS)
NOT_APPLICABLE = {
    r"^the operator is|the operator killed": "a plain job has no such operator",
    r"clock": "it is the operator's clock",
    r"^accelerator\.count": "a plain job has no such field; another count needs another job with other flags",
    r"elastic run": "its number of pods is fixed",
    r"which is avoided": "a plain job avoids no node",
    r"announces its maintenance": "a plain job moves once its pods are evicted",
    r"^Megatron-Bridge": "the plain job runs Megatron's own loop",
}
"""Rows that do not apply to a plain job: a regular expression for their names, and the reason."""

DISK_MEBIBYTES = 256
"""Space for more checkpoints than a row needs: Megatron alone deletes none."""

console = Console(soft_wrap=True)


def left_out() -> dict[str, str]:
    """Names of the rows that are left out, with the reason."""
    return {
        row.name: why
        for row in WHOLE_TABLE
        for sign, why in NOT_APPLICABLE.items()
        if re.search(sign, row.name)
    }


def select_rows(words: list[str]) -> list[Row]:
    """The rows whose name contains one of `words`; all rows without words. Raises ValueError where none
    does."""
    applicable = [row for row in WHOLE_TABLE if row.name not in left_out()]
    found = [row for row in applicable if not words or any(word in row.name for word in words)]
    if not found:
        raise ValueError(
            f"no row has any of {words} in its name; the rows are: {[row.name for row in applicable]}"
        )
    return found


def run_row(job: PlainPyTorchJob, row: Row, cluster: Cluster) -> Outcome:
    """Inject the fault of one row into a job that trains."""
    records, saved = job.records(), job.saved()
    known: dict[int, float] = {}
    for record in records:
        known.setdefault(record.iteration, record.loss)
    least = saved[-1] if row.resumes == "newest" else saved[-2]
    reached = records[-1].iteration

    def goal(new: list[IterationRecord], before: int) -> IterationRecord | None:
        """A new iteration, or a start from so old a checkpoint that the outcome is known."""
        nonlocal reached
        reached = before
        return next((r for r in new if r.iteration > before or new[0].iteration <= least), None)

    context = FaultContext(job, cluster)
    with context.undo:
        if not row.incident_kinds:
            row.inject(context)
            return await_uninterrupted(job, reached)
        give_up_after = LOADS if re.search(DAMAGED, row.name) else None
        seen = watch(job, lambda: row.inject(context), CAP_SECONDS, goal, give_up_after)
    if seen.new_records:
        return resumed(seen.new_records, known, reached, least, seen.cell.total)
    if seen.final_state:
        return ended(seen.final_state, job.records()[-1].iteration, ITERATIONS)
    error = f"; {line}" if (line := job.last_error()) else ""
    pods = job.describe_pods()
    text = f"stuck: {seen.cell.stuck}, all ranks restarted {seen.starts} times ({pods}{error})"
    return Outcome("stuck", text)


def await_uninterrupted(job: PlainPyTorchJob, reached: int) -> Outcome:
    """The outcome of a fault that ends no rank."""
    began = time.monotonic()

    def trained() -> bool:
        return job.records()[-1].iteration >= reached + QUIET_ITERATIONS

    try:
        wait_until("the job to keep training", trained, CAP_SECONDS)
    except TimeoutError:
        return Outcome("stuck", f"no {QUIET_ITERATIONS} iterations in {CAP_SECONDS:.0f} s")
    text = f"keeps training: {QUIET_ITERATIONS} iterations in {time.monotonic() - began:.0f} s"
    return Outcome("uninterrupted", text)


@dataclass
class PlainJobs:
    """Jobs of one restart policy, one after the other."""

    kubectl: Kubectl
    cluster: Cluster
    policy: str
    template: dict[str, Any]
    volume: Path

    def __post_init__(self) -> None:
        self._usual = JOBS[self.policy](self.kubectl, f"plain-{self.policy}", self.template, self.volume)
        self._runs = False

    def run(self, row: Row) -> Outcome:
        """The row's outcome. A job that did not survive is replaced by a new one without checkpoints.

        Raises TestkitError or TimeoutError when no job gets to train.
        """
        if row.small_disk:
            self.stop()
            with self._small_disk() as job:
                return self._run(job, row)
        self._ensure_training(row)
        found = self._run(self._usual, row)
        if found.kind not in SURVIVED:
            self.stop()
        return found

    def stop(self) -> None:
        """Delete the job and its checkpoints."""
        if self._runs:
            self._usual.stop()
            self._usual.delete_checkpoints()
            self._runs = False

    def _ensure_training(self, row: Row) -> None:
        if self._runs and self._usual.needs_restart():
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
            except (*UNAVAILABLE, TestkitError, TimeoutError) as error:
                if last:
                    raise
                console.print(Text(f"{self._usual.name} restarts without checkpoints: {error}"))
                self.stop()

    def _run(self, job: PlainPyTorchJob, row: Row) -> Outcome:
        try:
            return run_row(job, row, self.cluster)
        except (*UNAVAILABLE, AssertionError, TimeoutError, TestkitError) as error:
            return Outcome("not done", f"not done: {error}")

    @contextlib.contextmanager
    def _small_disk(self) -> Iterator[PlainPyTorchJob]:
        """A job that trains, with its checkpoints on a separate disk that can be filled."""
        claim = f"small-disk-{self.policy}"
        self.kubectl.apply({**DATA_CLAIM, "metadata": {"name": claim}})

        def bound() -> Path | None:
            return volume_of(self._usual.api, self.kubectl.namespace, claim)

        folder = wait_until(f"the volume of {claim}", bound, SETTLE_SECONDS)
        job = JOBS[self.policy](self.kubectl, claim, self.template, folder, claim)
        with self.cluster.small_disk(folder, DISK_MEBIBYTES):
            job.start()
            try:
                settle(job, CHECKPOINTS)
                yield job
            finally:
                job.stop()


def main(argv: list[str] | None = None) -> int:
    """The command line. Returns 1 when a row could not be run."""
    parser = argparse.ArgumentParser(prog="bench.plain_rows", description=__doc__)
    parser.add_argument("--policy", nargs="+", choices=list(POLICIES), default=list(POLICIES))
    parser.add_argument("--rows", nargs="+", default=[], metavar="WORDS", help="words in the names of rows")
    parser.add_argument("--keep", action="store_true", help="keep earlier results and add to them")
    options = parser.parse_args(argv)
    try:
        rows = select_rows(options.rows)
    except ValueError as error:
        parser.error(str(error))
    results = Results.read() if options.keep else Results()
    kubectl = prepare_namespace(NAMESPACE)
    operator = Operator(kubectl, "plain-template", ITERATIONS)
    template, volume = start_operator_run(operator)
    operator.stop()
    not_run = 0
    for policy in options.policy:
        jobs = PlainJobs(kubectl, Cluster(quiet=True), policy, template, volume)
        for row in rows:
            if results.has(row.name, policy):
                continue
            try:
                found = jobs.run(row)
            except (*UNAVAILABLE, TestkitError, TimeoutError) as error:
                not_run += 1
                console.print(Text(f"{POLICIES[policy]}, {row.name}: {error}", style="red"))
                jobs.stop()
                continue
            results.add(row.name, policy, found)
            write(results, WHOLE_TABLE, left_out())
            console.print(Text(f"{POLICIES[policy]}, {row.name}: {found.text}"))
        jobs.stop()
    kubectl.run("delete", "namespace", NAMESPACE, "--timeout=180s")
    return 1 if not_run else 0


if __name__ == "__main__":
    sys.exit(main())
