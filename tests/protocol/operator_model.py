"""The operator's own writes: read, write the status, delete pods; killed or frozen between any two of them.

The decisions are those of the product: every reconcile of the model calls update_status, unfinished_actions,
decide and apply_decision with a status and a snapshot, as Supervisor.supervise does. A second operator runs
beside the first, as after a takeover from one that was only frozen.
"""

import json
from functools import cache
from typing import Any, NamedTuple

from megatron_contract.progress import ProgressReport
from megatron_operator.api.status import MegatronRecipeStatus
from megatron_operator.api.times import timestamp
from megatron_operator.lifecycle.accepted_spec import recovery_limits
from megatron_operator.lifecycle.actions import DeleteJob, DeletePods
from megatron_operator.lifecycle.observation import Capacity
from megatron_operator.lifecycle.progress_reading import ProgressReading
from megatron_operator.lifecycle.recovery import apply_decision, unfinished_actions
from megatron_operator.lifecycle.recovery_observation import observe
from megatron_operator.lifecycle.recovery_policy import decide
from megatron_operator.lifecycle.status_builder import StatusBuilder
from megatron_operator.lifecycle.status_update import update_status

from tests.protocol.search import Exploration, Transition, explore
from tests.unit.conftest import NOW, Run

STEP = 10_000.0
"""Seconds between the creation of two pods: every back-off is over, no two failures are one."""
MAX_RESTARTS = 2


class Operator(NamedTuple):
    """A process of the operator."""

    stage: int = 0
    """0 idle, 1 has read, 2 has written what it decided, 3 (a mutation) has acted before it writes."""
    seen: tuple[int, tuple[int, int], int, int] = (0, (0, 0), 0, 0)
    """Status, pods, hang and checkpoint that it read."""
    current: int = 0
    """Whether nobody has written the status since it read it."""
    deleted: int = 0
    """Pods that it has deleted for its decision."""


class World(NamedTuple):
    """The cluster and the operators."""

    status: int = 0
    """Number of the status in the API server."""
    pods: tuple[int, int] = (0, 0)
    """When Master and worker were created, in steps."""
    hang: int = 0
    """1 if the gang runs without progress, 2 if it has for longer."""
    checkpoint: int = 0
    first: Operator = Operator()
    second: Operator = Operator()
    failures: int = 0
    """Pods that were lost, and hangs."""
    restarts: int = 0
    """Gangs that the operators deleted since the newest checkpoint."""
    failed: int = 0


class Bounds(NamedTuple):
    """How much happens. False in the second part is a mutation."""

    failures: int = 3
    checkpoints: int = 1
    operators: int = 2

    status_first: bool = True
    versions: bool = True
    """A status that has changed since it was read is not overwritten."""
    remembers: bool = True
    """The status records which pods are to be deleted."""


_STATUSES: list[str] = ["{}"]
_NUMBERS: dict[str, int] = {"{}": 0}


class Decided(NamedTuple):
    """The status to write and the pods to delete; `failed` if the run fails."""

    status: int
    delete: tuple[int, ...] = ()
    failed: int = 0


@cache
def reconcile(status: int, pods: tuple[int, int], hang: int, checkpoint: int, bounds: Bounds) -> Decided:
    """Supervisor.supervise without its requests."""
    run = Run()
    run.body["spec"] = {"recovery": {"maxRestarts": MAX_RESTARTS, "nodes": {"avoidAfter": 0}}}
    run.body["status"] = json.loads(_STATUSES[status])
    run.now = NOW + STEP * max(pods) + STEP / 4 * (hang + 1)
    run.pods = [_pod(run, kind, created) for kind, created in zip(("master", "worker"), pods, strict=True)]
    iteration = _iteration(pods, checkpoint)
    fields = {"schema": 1, "phase": "training", "generation": 1, "trainIters": 10_000, "stepSeconds": 1.0}
    saved = {"checkpointIteration": 100 * checkpoint} if checkpoint else {}
    report = ProgressReport.parse({**fields, **saved, "iteration": iteration})
    run.reading = ProgressReading(report, run.now - 1, unmoved=STEP / 4 * hang)
    builder, snapshot = run.status(), run.snapshot()
    if builder.ended:
        return Decided(status)
    update_status(builder, snapshot)
    result = unfinished_actions(builder, snapshot)
    if result is None:
        limits = recovery_limits(builder)
        result = apply_decision(builder, snapshot, decide(observe(builder, snapshot, limits, Capacity())))
    if not bounds.remembers:
        builder.set_recovery(restart_before=None)
    delete: tuple[int, ...] = ()
    failed = 0
    for action in result.actions:
        match action:
            case DeletePods(gone):
                delete = tuple(run.pods.index(pod) for pod in gone)
            case DeleteJob():
                failed = 1
    return Decided(_number(builder), delete, failed)


def _iteration(pods: tuple[int, int], checkpoint: int) -> int:
    """The iteration that the gang has reached."""
    return 100 * checkpoint + 10 * max(pods) + 1


@cache
def _seen(status: int) -> int | None:
    """The last iteration that an operator has seen."""
    progress = MegatronRecipeStatus.model_validate(json.loads(_STATUSES[status])).progress
    return None if progress is None else progress.iteration


def _pod(run: Run, kind: str, created: int) -> dict[str, Any]:
    pod = run.pod(kind, created=NOW + STEP * created)
    pod["metadata"]["uid"] = f"{kind}-{created}"
    pod["spec"] = {"nodeName": kind}
    pod["status"]["conditions"] = [
        {"type": "PodScheduled", "status": "True", "lastTransitionTime": timestamp(NOW + STEP * created)}
    ]
    return pod


def _number(builder: StatusBuilder) -> int:
    text = json.dumps(builder.current.wire(), sort_keys=True)
    if text not in _NUMBERS:
        _NUMBERS[text] = len(_STATUSES)
        _STATUSES.append(text)
    return _NUMBERS[text]


def recovery_of(world: World) -> Any:
    """`status.recovery` in the API server."""
    return _recovery(world.status)


@cache
def _recovery(status: int) -> Any:
    return MegatronRecipeStatus.model_validate(json.loads(_STATUSES[status])).recovery


OPERATORS = ("first", "second")


def read(bounds: Bounds, world: World, name: str) -> tuple[World, ...]:
    """SnapshotReader.read and StatusBuilder.of."""
    if getattr(world, name).stage or world.failed:
        return ()
    seen = (world.status, world.pods, world.hang, world.checkpoint)
    return (world._replace(**{name: Operator(1, seen, 1)}),)


def write(bounds: Bounds, world: World, name: str) -> tuple[World, ...]:
    """Reconciler._write: the status applies only to the version that was read."""
    operator: Operator = getattr(world, name)
    if operator.stage not in (1, 3):
        return ()
    decided = reconcile(*operator.seen, bounds)
    if operator.stage == 1 and not bounds.status_first and decided.delete:
        return ()
    changed = decided.status != operator.seen[0]
    if changed and bounds.versions and not operator.current:
        return (world._replace(**{name: Operator()}),)
    other = "second" if name == "first" else "first"
    following = world._replace(**{name: Operator() if operator.stage == 3 else operator._replace(stage=2)})
    if changed:
        stale = getattr(world, other)._replace(current=0)
        following = following._replace(status=decided.status, **{other: stale})
    return (following,)


def act(bounds: Bounds, world: World, name: str) -> tuple[World, ...]:
    """action_runner.execute, one request at a time: ApiClient.delete has the pod's UID as precondition."""
    operator: Operator = getattr(world, name)
    first = operator.stage == 1 and not bounds.status_first
    if operator.stage != 2 and not first:
        return ()
    decided = reconcile(*operator.seen, bounds)
    if first and not decided.delete:
        return ()
    if decided.failed:
        return (world._replace(failed=1, **{name: Operator()}),)
    if operator.deleted == len(decided.delete):
        return (world._replace(**{name: Operator(3, *operator[1:3]) if first else Operator()}),)
    index = decided.delete[operator.deleted]
    following = world._replace(**{name: operator._replace(deleted=operator.deleted + 1)})
    if world.pods[index] == operator.seen[1][index]:
        following = _replaced(following, index)
    return (following,)


def _replaced(world: World, index: int) -> World:
    """The training-operator replaces a pod. The hang is over once the Master, the first to go, is new."""
    created = max(world.pods) + (1 if world.pods[index] == max(world.pods) else 0)
    pods = (created, world.pods[1]) if index == 0 else (world.pods[0], created)
    restarts = world.restarts + int(world.hang > 0 and index == 0)
    return world._replace(pods=pods, hang=world.hang if index else 0, restarts=restarts)


def kill_operator(bounds: Bounds, world: World, name: str) -> tuple[World, ...]:
    """The operator is killed, and starts again with nothing but what the API server has."""
    return (world._replace(**{name: Operator()}),) if getattr(world, name).stage else ()


def hang(bounds: Bounds, world: World, name: str) -> tuple[World, ...]:
    """The gang stops making progress. All that happened before is known."""
    if world.hang or world.failures == bounds.failures or world.pods[0] != world.pods[1] or world.failed:
        return ()
    return (world._replace(hang=1, failures=world.failures + 1),)


def wait(bounds: Bounds, world: World, name: str) -> tuple[World, ...]:
    """Time passes: a hang is found later than an operator has seen the last iteration."""
    if world.hang != 1 or _seen(world.status) != _iteration(world.pods, world.checkpoint):
        return ()
    return (world._replace(hang=2),)


def save(bounds: Bounds, world: World, name: str) -> tuple[World, ...]:
    """The gang saves a checkpoint."""
    if world.hang or world.checkpoint == bounds.checkpoints:
        return ()
    return (world._replace(checkpoint=world.checkpoint + 1, restarts=0),)


def violation(world: World) -> str | None:
    """The invariant that this state violates."""
    recovery = recovery_of(world)
    if recovery is not None and recovery.restarts > world.failures:
        return "a failure is charged twice"
    if world.restarts > MAX_RESTARTS:
        return "the budget is exceeded"
    return None


def goal(world: World) -> bool:
    """The run has failed with a reason, or trains with its whole gang and nothing left to delete."""
    return bool(world.failed) or (world.pods[0] == world.pods[1] and not world.hang)


def explore_operators(bounds: Bounds, **options: Any) -> Exploration:
    """Explore two operators and one gang within these bounds."""
    names = OPERATORS[: bounds.operators]
    steps = [(function, name) for function in (read, write, act, kill_operator) for name in names]
    transitions = [
        Transition(f"{function.__name__}({name})", _bound(function, bounds, name), function is kill_operator)
        for function, name in steps
    ]
    transitions += [
        Transition(each.__name__, _bound(each, bounds, ""), each is not wait) for each in (hang, wait, save)
    ]
    return explore(World(), transitions, violation, goal, go_on=True, **options)


def _bound(function: Any, bounds: Bounds, name: str) -> Any:
    return lambda world: function(bounds, world, name)
