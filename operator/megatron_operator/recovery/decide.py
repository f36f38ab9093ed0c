"""The one decision: wait, start the gang anew, or give up."""

from dataclasses import dataclass

from megatron_operator.recovery.backoff import backoff
from megatron_operator.recovery.hang import stall
from megatron_operator.recovery.observation import Observation, PodPhase


@dataclass(frozen=True, slots=True)
class Wait:
    """Nothing is to be done."""

    why: str
    seconds: float | None = None
    """Look again after that long; None: when something changes."""


@dataclass(frozen=True, slots=True)
class RestartGang:
    """Delete all pods of the gang; the job makes them anew and they go on from the checkpoint."""

    cause: str


@dataclass(frozen=True, slots=True)
class Fail:
    """The budget is spent: release the accelerators."""

    cause: str


Decision = Wait | RestartGang | Fail


def decide(observation: Observation) -> Decision:
    """Cheapest first: ranks are restarted by the trainer, lost pods replaced by the training-operator.

    Only a gang that is all there and yet makes no progress is started anew. Total: every observation has a
    decision, and none of them acts while pods are being deleted.
    """
    history, limits = observation.history, observation.limits
    if observation.ended:
        return Wait("the job has ended")
    if any(pod.deleting for pod in observation.pods):
        return Wait("pods are being deleted")
    if history.restarts_since_checkpoint > limits.max_restarts:
        return Fail(_spent(history.restarts_since_checkpoint, limits.max_restarts, history.last_cause))
    if len(observation.pods) < observation.size:
        return Wait("pods are being made")
    if any(pod.phase is not PodPhase.RUNNING or pod.started is None for pod in observation.pods):
        return Wait("not all pods run")
    together = max(pod.started or 0.0 for pod in observation.pods)
    cause = stall(observation, together)
    if cause is None:
        return Wait("training goes on")
    if history.restarts_since_checkpoint >= limits.max_restarts:
        return Fail(_spent(history.restarts_since_checkpoint, limits.max_restarts, cause))
    pause = backoff(history.run_id, history.restarts_since_checkpoint)
    left = (history.last_restart or 0.0) + pause - observation.now
    if left > 0:
        return Wait(f"back-off of {pause:.0f} s before the next restart", left)
    return RestartGang(cause)


def _spent(restarts: int, allowed: int, cause: str | None) -> str:
    why = f"; last cause: {cause}" if cause else ""
    return f"{restarts} restarts brought no new checkpoint and recovery.maxRestarts is {allowed}{why}"
