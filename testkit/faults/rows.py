"""The fault table: what is done to a run, and what must be said of it afterwards."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from testkit.faults import bad_node, clock, resizes
from testkit.faults import infrastructure as at
from testkit.faults import injections as do
from testkit.faults.injections import Hit, Scene

SIGKILL = r"rank {rank} was killed by SIGKILL"


@dataclass(frozen=True)
class Row:
    """One fault. `cause` is a regular expression in which {pod}, {node} and {rank} stand for what was hit."""

    name: str
    inject: Callable[[Scene], Hit]
    kinds: frozenset[str] = frozenset()
    """Of the incidents that may be told; empty: the run goes on and nothing is told."""
    cause: str = ""
    """Of the first incident."""
    later: tuple[str, ...] | None = None
    """Causes of all that come after it, in their order; None: any may come."""
    resumes: Literal["newest", "older"] = "newest"
    """From the newest checkpoint that was finished before the fault, or from the one before it."""
    names: tuple[str, ...] = ()
    """Fields of the incident that must be what was hit: pod, node, rank."""
    strays: bool = True
    """Whether all pods are looked through for processes that outlived their rank."""
    seconds: float = 120.0
    """Within which the run must have done a new iteration."""
    fresh: bool = False
    """Wants a run of its own, with all its iterations before it."""
    disk: bool = False
    """Wants a run of its own whose checkpoints go to a disk that can be filled up."""
    spec: Mapping[str, Any] = field(default_factory=dict)
    """Wants a run of its own whose recipe says this too, and which ends when the row is over."""
    extended: bool = False
    """Only in `make faults`: it takes longer than a minute."""

    @property
    def alone(self) -> bool:
        """Whether it wants a run of its own."""
        return self.fresh or self.disk or bool(self.spec)


def told(*kinds: str) -> frozenset[str]:
    return frozenset(kinds)


RANKS = (
    Row("a rank is killed, master pod", do.kill_rank(0, 1), told("rank"), SIGKILL, names=("pod", "rank")),
    Row("a rank is killed, worker pod", do.kill_rank(1, 0), told("rank"), SIGKILL, names=("pod", "rank")),
    Row(
        "a rank is out of memory",
        do.starve_rank,
        told("rank"),
        r"rank {rank}.*out of memory",
        names=("pod", "rank"),
    ),
    Row(
        "a rank ends with exit code 0 too early",
        do.exit_rank_with_success,
        told("rank"),
        r"rank {rank}",
        names=("rank",),
    ),
    Row("a rank hangs (SIGSTOP)", do.stop_rank, told("hang"), r"rank {rank}", names=("rank",)),
    Row("a rank is slow", do.slow_rank),
)

PODS = (
    Row("a launcher is killed, worker", do.kill_launcher(1), told("pod"), r"{pod}", names=("pod", "node")),
    Row("a launcher is killed, master", do.kill_launcher(0), told("pod"), r"{pod}", names=("pod", "node")),
    Row("a worker pod is deleted by force", do.delete_pod(1), told("pod"), r"{pod}", names=("pod",)),
    Row("the master pod is deleted by force", do.delete_pod(0), told("pod"), r"{pod}", names=("pod",)),
    Row("a pod is told to stop (SIGTERM)", do.terminate_launcher, told("pod"), r"{pod}", names=("pod",)),
    Row("a pod is evicted", do.evict_pod, told("pod"), r"{pod}|told to stop", names=("pod",)),
    Row(
        "a worker pod ends with exit code 0 too early",
        do.exit_launcher_with_success(1),
        told("pod", "gang"),
        r"{pod}",
        names=("pod",),
        extended=True,
    ),
    Row(
        "the master pod ends with exit code 0 too early",
        do.exit_launcher_with_success(0),
        told("pod", "gang"),
        r"{pod}",
        extended=True,
    ),
)


def _damaged(what: str, which: Callable[..., object], resumes: Literal["newest", "older"]) -> tuple[Row, ...]:
    ways = (("torn", do.tear), ("truncated", do.truncate), ("empty", do.empty), ("missing", do.lose))
    return tuple(
        Row(
            f"the newest checkpoint's {what} is {how}",
            do.damage(which, way),  # type: ignore[arg-type]
            told("rank"),
            SIGKILL,
            resumes=resumes,
            # A shard that is torn at its full length is found by loading it: that takes a restart more.
            extended=(how in ("empty", "missing") and what != "tracker") or (how, what) == ("torn", "shard"),
        )
        for how, way in ways
    )


CHECKPOINTS = (
    *_damaged("shard", do.shard, "older"),
    *_damaged(".metadata", do.metadata, "older"),
    *_damaged("metadata.json", do.summary, "older"),
    *_damaged("tracker", do.tracker, "newest"),
    Row(
        "the checkpoint folder is read-only",
        do.make_read_only,
        told("rank", "store", "pod", "gang"),
        extended=True,
    ),
    Row(
        "the checkpoint volume is full",
        do.fill_disk,
        told("rank", "store", "pod", "gang"),
        r"a checkpoint could not be written .* 0 B free|No space left",
        disk=True,
        extended=True,
    ),
)

NODES = (
    Row(
        "a node is lost for 20 seconds",
        at.lose_node(20),
        told("node", "pod"),
        r"{node}|{pod}",
        names=("node",),
        seconds=240,
        fresh=True,
        extended=True,
    ),
    Row(
        "a node is lost for ever",
        at.lose_node(None),
        told("node"),
        r"{node}",
        names=("node",),
        seconds=240,
        fresh=True,
        extended=True,
    ),
)

CONTROL = (
    Row(
        "the API server is away for 60 seconds, a rank is killed",
        at.without("kube-apiserver", 60),
        told("rank"),
        SIGKILL,
        names=("rank",),
        fresh=True,
        extended=True,
    ),
    Row(
        "etcd is started anew, a rank is killed",
        at.without("etcd", 1),
        told("rank"),
        SIGKILL,
        names=("rank",),
    ),
    Row(
        "name service is away for 20 seconds, a pod is deleted",
        at.replace_pod_without("coredns", 20),
        told("pod"),
        r"{pod}",
        names=("pod",),
        extended=True,
    ),
    *(
        Row(
            f"the operator is killed {stage}",
            at.kill_during_recovery(at.kill_operator, reached),
            told("pod"),
            r"{pod}",
            extended=True,
        )
        for stage, reached in at.STAGES.items()
    ),
    Row(
        "the training-operator is killed when a pod is gone",
        at.kill_during_recovery(at.kill_training_operator, at.STAGES["when the pod is gone"]),
        told("pod"),
        r"{pod}",
    ),
)

TWO = (
    Row("a rank is killed and another pod deleted", at.rank_and_pod, told("rank", "pod"), r"{pod}|worker-0"),
    Row("both pods are deleted", at.both_pods, told("pod"), r"worker-0|master-0"),
    Row(
        "a node is lost and the operator killed",
        at.node_and_operator,
        told("node"),
        r"{node}",
        names=("node",),
        seconds=240,
        fresh=True,
        extended=True,
    ),
)

CLOCK = tuple(
    Row(
        f"the operator's reading of the clock jumps an hour {where} in a recovery",
        clock.jump(seconds),
        told("pod"),
        r"{pod}",
        later=(),
        names=("pod",),
        fresh=True,
        extended=True,
    )
    for where, seconds in (("ahead", clock.HOUR), ("back", -clock.HOUR))
)

LAYOUTS = (
    Row(
        "accelerator.count is edited from 4 to 2 and back",
        resizes.edit(resizes.HALF, resizes.WHOLE),
        told("resize"),
        r"accelerator\.count was edited: 4 before, 2 now",
        later=(r"accelerator\.count was edited: 2 before, 4 now",),
        fresh=True,
        extended=True,
    ),
    Row(
        "accelerator.count is edited from 4 to 2 and tensorModelParallelSize from 1 to 2, and back",
        resizes.edit(resizes.Layout(2, tensor=2), resizes.WHOLE),
        told("resize"),
        r"accelerator\.count was edited: 4 before, 2 now",
        later=(r"accelerator\.count was edited: 2 before, 4 now",),
        spec=resizes.RESHARDABLE,
        extended=True,
    ),
    Row(
        "a node is lost, an elastic run shrinks, the node is back and it grows",
        resizes.lose_the_last_place,
        told("node", "resize"),
        r"{node}",
        later=(r"2 of 4 accelerators could be had", r"4 of 4 accelerators have been free"),
        names=("node",),
        spec=resizes.ELASTIC,
        extended=True,
    ),
    Row(
        "a rank is killed twice on one node, which is avoided",
        bad_node.fail_twice_on_one_node,
        told("rank", "pod"),
        SIGKILL,
        names=("pod", "node", "rank"),
        spec=bad_node.AVOID_AFTER_TWO,
        extended=True,
    ),
)

ROWS = (*RANKS, *PODS, *CHECKPOINTS, *CONTROL, *TWO, *NODES, *CLOCK, *LAYOUTS)
