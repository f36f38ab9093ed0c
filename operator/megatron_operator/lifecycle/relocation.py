"""Runs that were given other places and are not there yet, as their status records it."""

from collections.abc import Collection, Iterable
from typing import Final

from megatron_operator.api.conditions import Phase
from megatron_operator.api.times import seconds
from megatron_operator.lifecycle.growths import LONGEST_GROWTH
from megatron_operator.lifecycle.incident_history import unrecovered
from megatron_operator.lifecycle.node_state import node_of
from megatron_operator.lifecycle.object_metadata import Object, is_deleting
from megatron_operator.lifecycle.status_builder import StatusBuilder
from megatron_operator.manifests.job_backends import backend_of, newest_by_place

_KINDS: Final = ("resize", "maintenance")
"""Kinds of incidents with which a run is given other places."""


def is_relocating(recipe: Object, now: float) -> bool:
    """Whether a run was resized, moved or sent to another topology domain, and its pods are not all there.

    A change of the domain is no incident; it is over once the run has its new job. `now` is in seconds since
    the epoch: what began LONGEST_GROWTH before is not expected to end.
    """
    if (recipe.get("status") or {}).get("phase") not in (Phase.STARTING, Phase.RECOVERING):
        return False
    status = StatusBuilder.of(dict(recipe), now)
    if status.suspended:
        return False
    open_ = unrecovered(status.recovery)
    recent = open_ is not None and now - (seconds(open_.time) or 0.0) < LONGEST_GROWTH
    moves = open_ is not None and recent and open_.kind in _KINDS
    return moves or status.recovery.outgoing_job is not None


def has_new_pods(recipe: Object, job: Object | None, trainers: Iterable[Object]) -> bool:
    """Whether a run that was given other places has all pods that will be there, bound or waiting.

    Wherever free places are counted, those that pods use or wait for are not among them.

    Args:
        recipe: The run's MegatronRecipe.
        job: The training job of its name, if there is one.
        trainers: Trainer pods of the recipe, also of an earlier job.
    """
    status = StatusBuilder.of(dict(recipe), 0.0)
    recorded, recovery = status.current.job, status.recovery
    if job is None or recorded is None or recorded.uid != job["metadata"]["uid"] or is_deleting(job):
        return False
    if recovery.outgoing_job == recorded.uid:
        return False
    backend = backend_of(job)
    newest = newest_by_place(pod for pod in trainers if backend.owns(job, pod))
    stays = [each for each in newest if not _leaves(each, recovery.nodes_avoided)]
    return len(stays) >= backend.size(job)


def _leaves(pod: Object, avoided: Collection[str | None]) -> bool:
    """Whether another pod takes this one's place in the gang; `avoided` are nodes that pods have to leave."""
    ended = (pod.get("status") or {}).get("phase") in ("Succeeded", "Failed")
    return ended or is_deleting(pod) or node_of(pod) in avoided
