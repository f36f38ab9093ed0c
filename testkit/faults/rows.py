"""The rows of the fault table: each fault, and what the run's status must report afterwards."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from testkit.faults import clock, node_conditions, resizes
from testkit.faults import infrastructure as infra
from testkit.faults import injections as inject
from testkit.faults.injections import Injection

SIGKILL = r"rank {rank} was killed by SIGKILL"


@dataclass(frozen=True)
class Row:
    """One fault. `cause` is a regular expression in which {pod}, {node} and {rank} stand for what was hit."""

    name: str
    inject: Injection
    incident_kinds: frozenset[str] = frozenset()
    """Kinds of incidents that may be reported; empty: the run is not interrupted, nothing is reported."""
    cause: str = ""
    """Of the first incident."""
    later_causes: tuple[str, ...] | None = None
    """Of all later incidents, in order; None: any later incidents are allowed."""
    resumes: Literal["newest", "older"] = "newest"
    """From the newest checkpoint that was complete before the fault, or from its predecessor."""
    reported: tuple[str, ...] = ()
    """Fields of the first incident that must name what was hit: pod, node, rank."""
    check_strays: bool = True
    """Whether all pods are searched for processes that outlived their rank."""
    recover_within: float = 120.0
    """Seconds until a new iteration, on an idle machine."""
    fresh_run: bool = False
    """Needs a run of its own, with all its iterations ahead."""
    small_disk: bool = False
    """Needs a run of its own with checkpoints on a disk that can be filled."""
    spec: Mapping[str, Any] = field(default_factory=dict)
    """Needs a run of its own with these fields in its recipe; the run ends with the row."""
    extended: bool = False
    """Only in `make faults`: takes longer than a minute, or repeats much of what a quick row shows."""

    @property
    def needs_own_run(self) -> bool:
        """Whether it cannot share a run with the rows before it."""
        return self.fresh_run or self.small_disk or bool(self.spec)


def kinds(*names: str) -> frozenset[str]:
    """Kinds of incidents."""
    return frozenset(names)


RANKS = (
    Row(
        "a rank is killed, master pod",
        inject.kill_rank(0, 1),
        kinds("rank"),
        SIGKILL,
        reported=("pod", "rank"),
        extended=True,
    ),
    Row(
        "a rank is killed, worker pod",
        inject.kill_rank(1, 0),
        kinds("rank"),
        SIGKILL,
        reported=("pod", "rank"),
    ),
    Row(
        "a rank runs out of memory",
        inject.starve_rank,
        kinds("rank"),
        r"rank {rank}.*out of memory",
        reported=("pod", "rank"),
    ),
    Row(
        "a rank exits early with code 0",
        inject.exit_rank_with_success,
        kinds("rank"),
        r"rank {rank}",
        reported=("rank",),
    ),
    Row("a rank hangs (SIGSTOP)", inject.stop_rank, kinds("hang"), r"rank {rank}", reported=("rank",)),
    Row("a rank is slow", inject.slow_rank),
)

PODS = (
    Row(
        "a launcher is killed, worker",
        inject.kill_launcher(1),
        kinds("pod"),
        r"{pod}",
        reported=("pod", "node"),
    ),
    Row(
        "a launcher is killed, master",
        inject.kill_launcher(0),
        kinds("pod"),
        r"{pod}",
        reported=("pod", "node"),
        extended=True,
    ),
    Row(
        "a worker pod is force-deleted",
        inject.delete_pod(1),
        kinds("pod"),
        r"{pod}",
        reported=("pod",),
    ),
    Row(
        "the master pod is force-deleted",
        inject.delete_pod(0),
        kinds("pod"),
        r"{pod}",
        reported=("pod",),
    ),
    Row(
        "a pod receives SIGTERM",
        inject.terminate_launcher,
        kinds("pod"),
        r"{pod}",
        reported=("pod",),
        extended=True,
    ),
    Row("a pod is evicted", inject.evict_pod, kinds("pod"), r"{pod}|received SIGTERM", reported=("pod",)),
    Row(
        "a worker pod exits early with code 0",
        inject.exit_launcher_with_success(1),
        kinds("pod", "gang"),
        r"{pod}",
        reported=("pod",),
        extended=True,
    ),
    Row(
        "the master pod exits early with code 0",
        inject.exit_launcher_with_success(0),
        kinds("pod", "gang"),
        r"{pod}",
        extended=True,
    ),
)


_QUICK_DAMAGES = (("shard", "truncated"), ("tracker", "missing"))


def _damaged(
    what: str, select: Callable[[Path], Path], resumes: Literal["newest", "older"]
) -> tuple[Row, ...]:
    ways = (
        ("torn", inject.tear),
        ("truncated", inject.truncate),
        ("empty", inject.empty),
        ("missing", inject.remove),
    )
    return tuple(
        Row(
            f"the newest checkpoint's {what} is {how}",
            inject.damage(select, way),
            kinds("rank"),
            SIGKILL,
            resumes=resumes,
            # The trainer's tests damage each file in each way, with real ranks and without pods.
            extended=(what, how) not in _QUICK_DAMAGES,
        )
        for how, way in ways
    )


CHECKPOINTS = (
    *_damaged("shard", inject.shard_file, "older"),
    *_damaged(".metadata", inject.metadata_file, "older"),
    *_damaged("metadata.json", inject.metadata_json_file, "older"),
    *_damaged("tracker", inject.tracker_file, "newest"),
    Row(
        "the checkpoint folder is read-only",
        inject.make_read_only,
        kinds("rank", "store", "pod", "gang"),
        extended=True,
    ),
    Row(
        "the checkpoint volume is full",
        inject.fill_disk,
        kinds("rank", "store", "pod", "gang"),
        r"a checkpoint could not be written .* 0 B free|No space left",
        small_disk=True,
        extended=True,
    ),
)

NODES = (
    Row(
        "a node is lost for 20 seconds",
        infra.lose_node(20),
        kinds("node", "pod"),
        r"{node}|{pod}",
        reported=("node",),
        recover_within=240,
        fresh_run=True,
        extended=True,
    ),
    Row(
        "a node is lost permanently",
        infra.lose_node(None),
        kinds("node"),
        r"{node}",
        reported=("node",),
        recover_within=240,
        fresh_run=True,
        extended=True,
    ),
)

CONTROL = (
    Row(
        "the API server is down for 60 seconds, a rank is killed",
        infra.kill_rank_without("kube-apiserver", 60),
        kinds("rank"),
        SIGKILL,
        reported=("rank",),
        fresh_run=True,
        extended=True,
    ),
    Row(
        "etcd restarts, a rank is killed",
        infra.kill_rank_without("etcd", 1),
        kinds("rank"),
        SIGKILL,
        reported=("rank",),
    ),
    Row(
        "name service is down for 20 seconds, a pod is deleted",
        infra.replace_pod_without("coredns", 20),
        kinds("pod"),
        r"{pod}",
        reported=("pod",),
        extended=True,
    ),
    *(
        Row(
            f"the operator is killed {stage}",
            infra.kill_during_recovery(infra.kill_operator, reached),
            kinds("pod"),
            r"{pod}",
            extended=True,
        )
        for stage, reached in infra.STAGES.items()
    ),
    Row(
        "the training-operator is killed when a pod is gone",
        infra.kill_during_recovery(infra.kill_training_operator, infra.STAGES["when the pod is gone"]),
        kinds("pod"),
        r"{pod}",
    ),
)

TWO = (
    Row(
        "a rank is killed and another pod deleted",
        infra.rank_and_pod,
        kinds("rank", "pod"),
        rf"{SIGKILL}|worker-0",
    ),
    Row("both pods are deleted", infra.both_pods, kinds("pod"), r"worker-0|master-0"),
    Row(
        "a node is lost and the operator killed",
        infra.node_and_operator,
        kinds("node"),
        r"{node}",
        reported=("node",),
        recover_within=240,
        fresh_run=True,
        extended=True,
    ),
)

CLOCK = tuple(
    Row(
        f"the operator's clock jumps an hour {where} during a recovery",
        clock.jump(seconds),
        kinds("pod"),
        r"{pod}",
        later_causes=(),
        reported=("pod",),
        fresh_run=True,
        extended=True,
    )
    for where, seconds in (("ahead", clock.HOUR), ("back", -clock.HOUR))
)

LAYOUTS = (
    Row(
        "accelerator.count is edited from 4 to 2 and back",
        resizes.edit(resizes.HALF, resizes.WHOLE),
        kinds("resize"),
        r"accelerator\.count was edited: 4 before, 2 now",
        later_causes=(r"accelerator\.count was edited: 2 before, 4 now",),
        fresh_run=True,
        extended=True,
    ),
    Row(
        "accelerator.count is edited from 4 to 2 and tensorModelParallelSize from 1 to 2, and back",
        resizes.edit(resizes.RunSize(2, tensor=2), resizes.WHOLE),
        kinds("resize"),
        r"accelerator\.count was edited: 4 before, 2 now",
        later_causes=(r"accelerator\.count was edited: 2 before, 4 now",),
        spec=resizes.RESHARDABLE,
        extended=True,
    ),
    Row(
        "a node is lost and an elastic run shrinks, the node returns and the run grows",
        resizes.shrink_and_grow,
        kinds("node", "resize"),
        r"{node}",
        later_causes=(r"2 of 4 accelerators have been available", r"4 of 4 accelerators have been free"),
        reported=("node",),
        spec=resizes.ELASTIC,
        extended=True,
    ),
    Row(
        "a rank is killed on a node that reports a fault of its GPUs, which is avoided",
        node_conditions.kill_rank_on_faulty_node,
        kinds("rank", "pod"),
        SIGKILL,
        reported=("pod", "node", "rank"),
        spec=node_conditions.AVOIDING,
        extended=True,
    ),
    Row(
        "a node announces its maintenance, and the run moves before it goes",
        node_conditions.announce_maintenance,
        kinds("maintenance"),
        r"maintenance of {node} \(node condition VMEventScheduled=True\)",
        later_causes=(),
        reported=("pod", "node"),
        spec=node_conditions.AVOIDING,
        extended=True,
    ),
)

ROWS = (*RANKS, *PODS, *CHECKPOINTS, *CONTROL, *TWO, *NODES, *CLOCK, *LAYOUTS)
