"""What the tests of fine-tuning do to a run and read of it."""

import signal
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

import psutil
from localcluster.errors import ClusterError
from localcluster.faults import Container, Process
from localcluster.processes import wait_until as wait_for_process

from testkit.kubectl import Kubectl
from testkit.training_run import TrainingRun
from testkit.waiting import LONG_DEADLINE
from testkit.watched_run import ranks_in


def finished(run: TrainingRun) -> dict[int, set[float]]:
    """Losses by iteration of a run that succeeds; of iterations that were repeated, all."""
    status = run.wait(lambda status: status.phase in ("Succeeded", "Failed"), LONG_DEADLINE)
    assert status.phase == "Succeeded", status.message
    losses: dict[int, set[float]] = {}
    for record in run.history():
        losses.setdefault(record.iteration, set()).add(record.loss)
    return losses


def interruptions(kubectl: Kubectl, run: TrainingRun) -> list[str]:
    """Kinds of the interruptions of a run, in their order: rank, pod and others."""
    recipe = kubectl.get("megatronrecipe", run.name) or {}
    return [incident["kind"] for incident in recipe["status"]["recovery"]["history"]]


def kill_a_rank(kubectl: Kubectl, pod: str) -> None:
    """SIGKILL the first rank of a pod."""
    statuses = (kubectl.get("pod", pod) or {})["status"]["containerStatuses"]
    container = Container(next(each["containerID"] for each in statuses if each["name"] == "pytorch"))
    ranks_in(container)[0].kill()


def stop_while_it_writes_a_shard(processes: Iterable[Process]) -> Process | None:
    """SIGSTOP a process that prepares data; None if none of them has begun a shard and not ended it.

    What it has open once it stands still proves that it has not ended its work.
    """
    for process in processes:
        with suppress(ClusterError, psutil.NoSuchProcess, FileNotFoundError):
            if not _writes_a_shard(process):
                continue
            _stop(process)
            if _writes_a_shard(process):
                return process
            process.signal(signal.SIGCONT)
    return None


def _stop(process: Process) -> None:
    """SIGSTOP, and wait until no thread runs."""
    process.signal(signal.SIGSTOP)
    stopped = psutil.Process(process.pid)
    wait_for_process(lambda: stopped.status() == psutil.STATUS_STOPPED, 20, f"process {process.pid} to stop")


def _writes_a_shard(process: Process) -> bool:
    open_files = [link.readlink().name for link in Path(f"/proc/{process.pid}/fd").iterdir()]
    return any(".tokens." in name for name in open_files)
