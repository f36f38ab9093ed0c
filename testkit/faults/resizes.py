"""Faults that leave a run with another layout: fewer accelerators, another split, and back again."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from localcluster.addresses import NODES as CLUSTER_NODES
from localcluster.faults import slowed
from localcluster.node import PAUSE_IMAGE

from testkit.faults.infrastructure import VICTIM_NODE, lose_node
from testkit.faults.injections import Hit, Scene
from testkit.watched_run import RANKS_PER_NODE, Before, WatchedRun, eventually

GPUS = 8
"""Simulated ones, of each node."""
RESIZE_PAUSE = 300.0
"""Seconds that the operator leaves between two resizes of its own."""
ELASTIC = {"recovery": {"elastic": {"minCount": 2, "shrinkAfter": 5, "growAfter": 5}}}
RESHARDABLE = {"recovery": {"elastic": {"minCount": 2}}}
"""Checkpoints that load at another tensor-parallel size; nothing makes the run shrink by itself."""


@dataclass(frozen=True)
class Layout:
    """Accelerators of a run, and ranks that share a layer."""

    count: int
    tensor: int = 1

    @property
    def pods(self) -> int:
        return self.count // RANKS_PER_NODE


WHOLE = Layout(4)
HALF = Layout(2)


def edit(*layouts: Layout) -> Callable[[Scene[WatchedRun]], Hit]:
    """Edit the recipe while it trains, each time that it trains on past a checkpoint of the layout before."""

    def inject(scene: Scene[WatchedRun]) -> Hit:
        for layout in layouts:
            before = scene.run.settled()
            scene.run.change(
                {
                    "accelerator": {"count": layout.count},
                    "parallelism": {"tensorModelParallelSize": layout.tensor},
                }
            )
            scene.run.apply()
            _arrive(scene.run, before, layout)
        return Hit()

    return inject


def lose_the_last_place(scene: Scene[WatchedRun]) -> Hit:
    """A node is lost and the other is full, for as long as the run needs to shrink; then the node is back.

    The run must still train when it may grow, minutes later: a rank gets a twentieth of its time until then.
    """
    run = scene.run
    before = run.settled()
    _fill_up(scene, next(node.name for node in CLUSTER_NODES if node.name != VICTIM_NODE))
    hit = lose_node(None)(scene)
    shrunk = _arrive(run, before, HALF, seconds=300)
    with slowed(run.ranks(0)[0], running=0.02, stopped=0.4):
        scene.machine.node_start(VICTIM_NODE)
        _arrive(run, shrunk, WHOLE, seconds=RESIZE_PAUSE + 180)
    return hit


def _arrive(run: WatchedRun, before: Before, layout: Layout, seconds: float = 180.0) -> Before:
    """Wait until the run trains on in `layout`, from no older checkpoint than it had, with the same batch."""
    run.lie_on(layout.pods, exact_through=before.generation)

    def anew() -> int | None:
        run.require_alive()
        return before.resumed_from(run.steps())

    resumed = eventually(f"{run.name} to train on {layout.count} accelerators", anew, seconds)
    assert resumed >= before.saved[-1], f"went on from {resumed}, checkpoint {before.saved[-1]} was whole"
    after = run.settled()
    plan, training = run.plan(), run.manifest["spec"]["training"]
    wanted = (layout.count, layout.tensor, layout.count // layout.tensor, training["globalBatchSize"])
    sizes = ("worldSize", "tensorModelParallelSize", "dataParallelSize", "globalBatchSize")
    assert tuple(plan[size] for size in sizes) == wanted, f"laid out otherwise than asked for: {plan}"
    return after


def _fill_up(scene: Scene[WatchedRun], node: str) -> None:
    """Somebody else's pod takes what simulated GPUs a node has beyond one pod of the run."""
    name, namespace = f"{scene.run.name}-neighbour", scene.cluster.namespace
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
    scene.run.api.create(pod)
    scene.undo.callback(scene.run.api.delete, "Pod", namespace, name)

    def there() -> bool | None:
        return scene.run.api.get("Pod", namespace, name)["status"]["phase"] == "Running" or None

    eventually(f"{node} to be full", there)
