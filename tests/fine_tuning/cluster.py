"""What the tests of fine-tuning do to a run and read of it."""

from localcluster.faults import Container

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
