"""Faults after which a run has another layout: fewer accelerators, another split, and back again."""

from dataclasses import dataclass
from typing import Any

from localcluster.addresses import NODES as CLUSTER_NODES
from localcluster.faults import slowed
from localcluster.node import PAUSE_IMAGE

from testkit.faults.infrastructure import VICTIM_NODE, lose_node
from testkit.faults.injections import FaultContext, InjectedFault, Injection
from testkit.waiting import DEADLINE, LONG_DEADLINE, wait_until
from testkit.watched_run import RANKS_PER_NODE, StateBeforeFault, WatchedRun

GPUS = 8
"""Simulated GPUs of each node."""
RESIZE_PAUSE = 300.0
"""Seconds that the operator leaves between two resizes of its own."""
ELASTIC = {"recovery": {"elastic": {"minCount": 2, "shrinkAfter": 5, "growAfter": 5}}}
RESHARDABLE = {"recovery": {"elastic": {"minCount": 2}}}
"""Checkpoints load at another tensor-parallel size; nothing shrinks the run automatically."""


@dataclass(frozen=True)
class RunSize:
    """Accelerators of a run, and its tensor-parallel size."""

    count: int
    tensor: int = 1

    @property
    def pods(self) -> int:
        """Pods that hold so many accelerators."""
        return self.count // RANKS_PER_NODE


WHOLE = RunSize(4)
HALF = RunSize(2)


def edit(*sizes: RunSize) -> Injection:
    """Edit the recipe during training, each time after a checkpoint of the previous size."""

    def inject(context: FaultContext[WatchedRun]) -> InjectedFault:
        for size in sizes:
            before = context.run.settled()
            context.run.change(
                {
                    "accelerator": {"count": size.count},
                    "parallelism": {"tensorModelParallelSize": size.tensor},
                }
            )
            context.run.apply()
            _await_resize(context.run, before, size)
        return InjectedFault()

    return inject


def shrink_and_grow(context: FaultContext[WatchedRun]) -> InjectedFault:
    """A node is lost and the other one is full, so the run shrinks; then the node returns and it grows.

    The run must still be training when it may grow, minutes later: a rank is slowed to a twentieth until
    then.
    """
    run = context.run
    before = run.settled()
    _fill_up(context, next(node.name for node in CLUSTER_NODES if node.name != VICTIM_NODE))
    fault = lose_node(None)(context)
    shrunk = _await_resize(run, before, HALF, seconds=LONG_DEADLINE)
    with slowed(run.ranks(0)[0], running=0.02, stopped=0.4):
        context.cluster.node_start(VICTIM_NODE)
        _await_resize(run, shrunk, WHOLE, seconds=RESIZE_PAUSE + DEADLINE)
    return fault


def _await_resize(
    run: WatchedRun, before: StateBeforeFault, size: RunSize, seconds: float = DEADLINE
) -> StateBeforeFault:
    """Wait until the run trains in `size`, from no older checkpoint than it had, with the same batch."""
    run.set_layout(size.pods, exact_through=before.generation)

    def resumed_from() -> int | None:
        run.require_alive()
        return before.resumed_from(run.records())

    resumed = wait_until(f"{run.name} to train on {size.count} accelerators", resumed_from, seconds)
    assert resumed >= before.saved[-1], (
        f"resumed from {resumed} although checkpoint {before.saved[-1]} is intact"
    )
    after = run.settled()
    plan, training = run.plan(), run.manifest["spec"]["training"]
    expected = (size.count, size.tensor, size.count // size.tensor, training["globalBatchSize"])
    fields = ("worldSize", "tensorModelParallelSize", "dataParallelSize", "globalBatchSize")
    assert tuple(plan[name] for name in fields) == expected, f"the plan is not the requested one: {plan}"
    return after


def _fill_up(context: FaultContext[WatchedRun], node: str) -> None:
    """A foreign pod takes all simulated GPUs of a node beyond those for one pod of the run."""
    name, namespace = f"{context.run.name}-neighbour", context.kubectl.namespace
    amount = {"nvidia.com/gpu": str(GPUS - RANKS_PER_NODE)}
    pod: dict[str, Any] = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {
            "nodeSelector": {"kubernetes.io/hostname": node},
            "terminationGracePeriodSeconds": 0,
            "containers": [{"name": "pause", "image": PAUSE_IMAGE, "resources": {"limits": amount}}],
        },
    }
    context.run.api.create(pod)
    context.undo.callback(context.run.api.delete, "Pod", namespace, name)

    def runs() -> bool:
        return bool(context.run.api.get("Pod", namespace, name)["status"]["phase"] == "Running")

    wait_until(f"{node} to be full", runs)
