"""Faults in ranks, pods and checkpoints. Each function returns what it hit, which the status must name."""

import contextlib
import json
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from localcluster import Cluster
from localcluster.faults import end_with_success, slowed

from testkit.kubectl import Kubectl
from testkit.waiting import wait_until
from testkit.watched_run import NODES, RANKS_PER_NODE, FaultTarget

TRACKER = "latest_checkpointed_iteration.txt"


@dataclass(frozen=True)
class InjectedFault:
    """What a fault hit; None where it hit nothing in particular."""

    pod: str | None = None
    """Without the run's name: `worker-0`."""
    node: str | None = None
    rank: int | None = None


@dataclass
class FaultContext[R: FaultTarget]:
    """A training run and the cluster that it runs on."""

    run: R
    cluster: Cluster
    undo: ExitStack = field(default_factory=ExitStack)
    """Closed after the fault's row of the table."""

    @property
    def kubectl(self) -> Kubectl:
        """kubectl in the run's namespace."""
        return self.run.kubectl

    def node_of(self, node_rank: int) -> str:
        """The node of a pod. Raises AssertionError when the pod does not exist."""
        pod = self.run.pod(node_rank)
        assert pod is not None, f"{self.run.place(node_rank)} of {self.run.name} does not exist"
        return str(pod["spec"]["nodeName"])

    def fault_at(self, node_rank: int, rank: int | None = None) -> InjectedFault:
        """The record of a fault in a pod that still exists, or in one of its ranks."""
        return InjectedFault(self.run.place(node_rank), self.node_of(node_rank), rank)


type AnyContext = FaultContext[Any]
"""The context of a fault that suits every target."""
type Injection = Callable[[AnyContext], InjectedFault]


# Processes of the run.


def kill_rank(node_rank: int, local_rank: int) -> Injection:
    """SIGKILL one rank."""

    def inject(context: AnyContext) -> InjectedFault:
        context.run.ranks(node_rank)[local_rank].kill()
        return context.fault_at(node_rank, node_rank * RANKS_PER_NODE + local_rank)

    return inject


def exit_rank_with_success(context: AnyContext) -> InjectedFault:
    """A rank exits with code 0 in the middle of training."""
    end_with_success(context.run.ranks(1)[0])
    return context.fault_at(1, RANKS_PER_NODE)


def kill_launcher(node_rank: int) -> Injection:
    """SIGKILL a pod's PID 1, which ends the container."""

    def inject(context: AnyContext) -> InjectedFault:
        fault = context.fault_at(node_rank)
        context.run.container(node_rank).first.kill()
        return fault

    return inject


def exit_launcher_with_success(node_rank: int) -> Injection:
    """A pod's PID 1 exits with code 0 in the middle of training: Kubernetes sees a pod that succeeded."""

    def inject(context: AnyContext) -> InjectedFault:
        fault = context.fault_at(node_rank)
        end_with_success(context.run.container(node_rank).first)
        return fault

    return inject


def terminate_launcher(context: AnyContext) -> InjectedFault:
    """SIGTERM to a pod's PID 1, as from a node that is drained."""
    fault = context.fault_at(1)
    context.run.container(1).first.signal(signal.SIGTERM)
    return fault


def starve_rank(context: AnyContext) -> InjectedFault:
    """The kernel's OOM killer ends a rank because its container reached its memory limit."""
    fault = context.fault_at(0, 1)
    with context.run.container(0).out_of_memory(context.run.ranks(0)[1]):
        pass
    return fault


def stop_rank(context: AnyContext) -> InjectedFault:
    """SIGSTOP: the rank exists and does nothing."""
    context.run.ranks(1)[1].signal(signal.SIGSTOP)
    return context.fault_at(1, RANKS_PER_NODE + 1)


def slow_rank(context: AnyContext) -> InjectedFault:
    """One rank gets a fifth of its CPU time."""
    context.undo.enter_context(slowed(context.run.ranks(1)[0]))
    return context.fault_at(1, RANKS_PER_NODE)


# Pods.


def delete_pod(node_rank: int) -> Injection:
    """`kubectl delete pod --force`: the object is gone at once."""

    def inject(context: AnyContext) -> InjectedFault:
        fault = context.fault_at(node_rank)
        name = context.run.pod_name(node_rank)
        context.kubectl.run("delete", "pod", name, "--force", "--grace-period=0")
        return fault

    return inject


def evict_pod(context: AnyContext) -> InjectedFault:
    """The eviction API, as `kubectl drain` uses it: SIGTERM and the pod's grace period."""
    fault = context.fault_at(1)
    name, namespace = context.run.pod_name(1), context.kubectl.namespace
    target = {"name": name, "namespace": namespace}
    body = json.dumps({"apiVersion": "policy/v1", "kind": "Eviction", "metadata": target})
    path = f"/api/v1/namespaces/{namespace}/pods/{name}/eviction"
    context.kubectl.run("create", "--raw", path, "-f", "-", stdin=body)
    return fault


# Checkpoints. Every damage is followed by a killed rank, so that the run must select a checkpoint.


def newest_checkpoint(context: AnyContext) -> Path:
    """Folder of the newest complete checkpoint."""
    run: FaultTarget = context.run
    return run.folder / f"iter_{run.saved()[-1]:07d}"


def shard_file(checkpoint: Path) -> Path:
    """The last shard of a checkpoint."""
    return sorted(checkpoint.glob("*.distcp"))[-1]


def tracker_file(checkpoint: Path) -> Path:
    """The file that names the newest checkpoint."""
    return checkpoint.parent / TRACKER


def metadata_file(checkpoint: Path) -> Path:
    """torch.distributed.checkpoint's index of the shards."""
    return checkpoint / ".metadata"


def metadata_json_file(checkpoint: Path) -> Path:
    """Megatron's own metadata, the file written last."""
    return checkpoint / "metadata.json"


def train_state_file(checkpoint: Path) -> Path:
    """Megatron-Bridge's own state: the iteration and the samples that were read."""
    return checkpoint / "train_state.pt"


def run_config_file(checkpoint: Path) -> Path:
    """Megatron-Bridge's configuration, the file that it writes last."""
    return checkpoint / "run_config.yaml"


def tear(path: Path) -> None:
    """Replace the second half with random bytes: the length stays."""
    content = path.read_bytes()
    half = len(content) // 2
    path.write_bytes(content[:half] + os.urandom(len(content) - half))


def truncate(path: Path) -> None:
    """Cut off the second half."""
    os.truncate(path, path.stat().st_size // 2)


def empty(path: Path) -> None:
    """Cut off everything."""
    os.truncate(path, 0)


def remove(path: Path) -> None:
    """Delete the file."""
    path.unlink()


def damage(select: Callable[[Path], Path], how: Callable[[Path], None]) -> Injection:
    """Damage a file of the newest checkpoint, then kill a rank."""

    def inject(context: AnyContext) -> InjectedFault:
        how(select(newest_checkpoint(context)))
        return kill_rank(0, 0)(context)

    return inject


def make_read_only(context: AnyContext) -> InjectedFault:
    """Only root may write to the checkpoint folder until a save has failed."""
    folder = context.run.folder
    mode = folder.stat().st_mode
    with _until_a_rank_ends(context):
        folder.chmod(0o555)
        context.undo.callback(folder.chmod, mode)
    return InjectedFault()


def fill_disk(context: AnyContext) -> InjectedFault:
    """A foreign file takes the free space of the volume until a save has failed."""
    filler = context.run.folder.parent / "foreign-file"
    with _until_a_rank_ends(context):
        context.undo.callback(filler.unlink)
        with filler.open("wb", buffering=0) as file:
            for chunk in (1 << 20, 4096):
                with contextlib.suppress(OSError):
                    while file.write(b"x" * chunk):
                        pass
    return InjectedFault()


@contextlib.contextmanager
def _until_a_rank_ends(context: AnyContext) -> Iterator[None]:
    """Undo what the block did as soon as it has ended a rank, so that the run can recover."""
    ranks = [rank for node in range(NODES) for rank in context.run.ranks(node)]
    yield
    try:
        wait_until("a save to fail", lambda: any(not rank.alive for rank in ranks))
    finally:
        context.undo.close()
