"""How each fault is done to a run. Every function returns what it hit: what the status must name then."""

import contextlib
import json
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from localcluster import Cluster as Machine
from localcluster.faults import end_with_success, slowed

from testkit.kubectl import Cluster
from testkit.watched_run import NODES, RANKS_PER_NODE, Watched, eventually

TRACKER = "latest_checkpointed_iteration.txt"


@dataclass(frozen=True)
class Hit:
    """What a fault hit; None where it hit nothing in particular."""

    pod: str | None = None
    """Without the run's name: `worker-0`."""
    node: str | None = None
    rank: int | None = None


@dataclass
class Scene[R: Watched]:
    """A run under way, and the machine that it runs on."""

    run: R
    machine: Machine
    undo: ExitStack = field(default_factory=ExitStack)
    """Closed when the row is over."""

    @property
    def cluster(self) -> Cluster:
        return self.run.cluster

    def node_of(self, node_rank: int) -> str:
        pod = self.run.pod(node_rank)
        assert pod is not None, f"{self.run.pod_name(node_rank)} is gone"
        return str(pod["spec"]["nodeName"])

    def hit(self, node_rank: int, rank: int | None = None) -> Hit:
        name = self.run.pod_name(node_rank).removeprefix(f"{self.run.name}-")
        return Hit(name, self.node_of(node_rank), rank)


# Processes of the run.


def kill_rank(node_rank: int, local_rank: int) -> Callable[[Scene], Hit]:
    """SIGKILL one rank."""

    def inject(scene: Scene) -> Hit:
        scene.run.ranks(node_rank)[local_rank].kill()
        return scene.hit(node_rank, node_rank * RANKS_PER_NODE + local_rank)

    return inject


def exit_rank_with_success(scene: Scene) -> Hit:
    """A rank ends with exit code 0 in the middle."""
    end_with_success(scene.run.ranks(1)[0])
    return scene.hit(1, RANKS_PER_NODE)


def kill_launcher(node_rank: int) -> Callable[[Scene], Hit]:
    """SIGKILL a pod's PID 1, and with it the container."""

    def inject(scene: Scene) -> Hit:
        hit = scene.hit(node_rank)
        scene.run.container(node_rank).first.kill()
        return hit

    return inject


def exit_launcher_with_success(node_rank: int) -> Callable[[Scene], Hit]:
    """A pod's PID 1 ends with exit code 0 in the middle: Kubernetes sees a pod that succeeded."""

    def inject(scene: Scene) -> Hit:
        hit = scene.hit(node_rank)
        end_with_success(scene.run.container(node_rank).first)
        return hit

    return inject


def terminate_launcher(scene: Scene) -> Hit:
    """SIGTERM of a pod's PID 1, as a node that is drained sends it."""
    hit = scene.hit(1)
    scene.run.container(1).first.signal(signal.SIGTERM)
    return hit


def starve_rank(scene: Scene) -> Hit:
    """The kernel ends a rank because its container is at its memory limit."""
    hit = scene.hit(0, 1)
    with scene.run.container(0).out_of_memory(scene.run.ranks(0)[1]):
        pass
    return hit


def stop_rank(scene: Scene) -> Hit:
    """SIGSTOP: the rank is there and does nothing."""
    scene.run.ranks(1)[1].signal(signal.SIGSTOP)
    return scene.hit(1, RANKS_PER_NODE + 1)


def slow_rank(scene: Scene) -> Hit:
    """One rank gets a fifth of the time."""
    scene.undo.enter_context(slowed(scene.run.ranks(1)[0]))
    return scene.hit(1, RANKS_PER_NODE)


# Pods and nodes.


def delete_pod(node_rank: int) -> Callable[[Scene], Hit]:
    """`kubectl delete pod --force`: the object is gone at once."""

    def inject(scene: Scene) -> Hit:
        hit = scene.hit(node_rank)
        name = scene.run.pod_name(node_rank)
        scene.cluster.kubectl("delete", "pod", name, "--force", "--grace-period=0")
        return hit

    return inject


def evict_pod(scene: Scene) -> Hit:
    """The eviction API, as `kubectl drain` uses it: SIGTERM and the pod's grace period."""
    hit = scene.hit(1)
    name, namespace = scene.run.pod_name(1), scene.cluster.namespace
    target = {"name": name, "namespace": namespace}
    body = json.dumps({"apiVersion": "policy/v1", "kind": "Eviction", "metadata": target})
    path = f"/api/v1/namespaces/{namespace}/pods/{name}/eviction"
    scene.cluster.kubectl("create", "--raw", path, "-f", "-", stdin=body)
    return hit


# Checkpoints. Every damage is followed by a killed rank, so that the run must choose where to go on.


def newest(scene: Scene) -> Path:
    return scene.run.folder / f"iter_{scene.run.saved()[-1]:07d}"


def shard(checkpoint: Path) -> Path:
    return sorted(checkpoint.glob("*.distcp"))[-1]


def tear(path: Path) -> None:
    """The second half is other bytes: the length is right, the content is not."""
    content = path.read_bytes()
    half = len(content) // 2
    path.write_bytes(content[:half] + os.urandom(len(content) - half))


def truncate(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def empty(path: Path) -> None:
    os.truncate(path, 0)


def lose(path: Path) -> None:
    path.unlink()


def damage(which: Callable[[Path], Path], how: Callable[[Path], None]) -> Callable[[Scene], Hit]:
    """Damage a file of the newest checkpoint, then kill a rank."""

    def inject(scene: Scene) -> Hit:
        how(which(newest(scene)))
        return kill_rank(0, 0)(scene)

    return inject


def tracker(checkpoint: Path) -> Path:
    return checkpoint.parent / TRACKER


def metadata(checkpoint: Path) -> Path:
    return checkpoint / ".metadata"


def summary(checkpoint: Path) -> Path:
    return checkpoint / "metadata.json"


def make_read_only(scene: Scene) -> Hit:
    """Nobody but root may write into the checkpoint folder until a save has failed."""
    folder = scene.run.folder
    mode = folder.stat().st_mode
    with _until_a_rank_has_ended(scene):
        folder.chmod(0o555)
        scene.undo.callback(folder.chmod, mode)
    return Hit()


def fill_disk(scene: Scene) -> Hit:
    """Somebody else's file takes what is left of the volume until a save has failed."""
    filler = scene.run.folder.parent / "somebody-elses-file"
    with _until_a_rank_has_ended(scene):
        scene.undo.callback(filler.unlink)
        with filler.open("wb", buffering=0) as file:
            for chunk in (1 << 20, 4096):
                with contextlib.suppress(OSError):
                    while file.write(b"x" * chunk):
                        pass
    return Hit()


@contextlib.contextmanager
def _until_a_rank_has_ended(scene: Scene) -> Iterator[None]:
    """What is done inside is undone when a rank has ended of it, so that the run can go on."""
    ranks = [rank for node in range(NODES) for rank in scene.run.ranks(node)]
    yield
    try:
        eventually("a save to fail", lambda: any(not rank.alive for rank in ranks) or None, seconds=120)
    finally:
        scene.undo.close()
