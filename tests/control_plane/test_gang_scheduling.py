"""Gangs without Kueue: scheduler-plugins with PodGroups of the training-operator, and Kubernetes' own."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

import pytest
from localcluster import Cluster

from testkit.api_server import Object
from testkit.run_state import RunState
from testkit.waiting import wait_until
from tests.control_plane.conftest import PLATFORM, PlatformWith
from tests.control_plane.nodes import Pool
from tests.control_plane.world import World

HELD_SECONDS = 2
"""How long places are held for the rest of a gang."""

of_pod_groups = pytest.mark.job_backends(
    "pytorchjob", reason="the platform refuses Coscheduling: nobody creates PodGroups for other jobs"
)
Schedule = Callable[[bool], AbstractContextManager[None]]


@pytest.fixture
def gang_scheduling(cluster: Cluster, platform_with: PlatformWith) -> Schedule:
    """Runs the scheduler, with PodGroups or without, and an operator whose platform names it."""

    @contextmanager
    def started(pod_groups: bool) -> Iterator[None]:
        with cluster.gang_scheduling(pod_groups=pod_groups) as scheduler:
            gangs = {"scheduler": scheduler, "scheduleTimeoutSeconds": HELD_SECONDS}
            with platform_with({"gangScheduling": gangs}):
                yield

    return started


@pytest.fixture
def kubernetes_gangs(cluster: Cluster, platform_with: PlatformWith) -> Iterator[None]:
    """Kubernetes' scheduler with its gates for gangs, under a name that the profile gives to the pods."""
    [(name, profile)] = PLATFORM["accelerators"].items()
    with cluster.kubernetes_gangs() as scheduler:
        accelerators = {name: profile | {"podTemplate": {"schedulerName": scheduler}}}
        options = {"accelerators": accelerators, "gangScheduling": {"scheduler": "kubernetes"}}
        with platform_with(options):
            yield


def apply_gang(world: World, name: str, pods: int, on: Pool) -> None:
    world.apply(name, accelerator={"count": 2 * pods, "perNode": 2}, scheduling={"nodeSelector": on.selector})


def bound(state: RunState) -> set[str]:
    return {name for name, pod in state.pods.items() if pod["spec"].get("nodeName")}


@of_pod_groups
def test_of_two_gangs_that_do_not_fit_together_one_runs_and_the_other_waits_whole(
    world: World, pool: Callable[[int], Pool], gang_scheduling: Schedule
) -> None:
    nodes = pool(4)
    with gang_scheduling(True):
        for name in ("one", "two"):
            apply_gang(world, name, 3, nodes)

        running, waiting = wait_until(
            "one gang to run and the other to be refused", lambda: running_and_refused(world)
        )
        state = world.wait_for(waiting, conditions={"Running": "Unschedulable"})
        assert bound(state) == set(), "it holds no node while it waits"
        group = world.api.get("PodGroup", world.namespace, waiting)
        assert group["spec"]["minMember"] == 3
        assert group["spec"]["scheduleTimeoutSeconds"] == HELD_SECONDS

        world.api.delete("MegatronRecipe", world.namespace, running)
        world.train(waiting, 10, pods=3)


def running_and_refused(world: World) -> tuple[str, str] | None:
    """The names of the gang that runs and of that which waits, once the scheduler has refused it."""
    for running, waiting in (("one", "two"), ("two", "one")):
        first, second = (world.wait_for(name) for name in (running, waiting))
        if len(first.running_pods) == len(second.pods) == 3 and all(map(refused, second.pods.values())):
            return running, waiting
    return None


def refused(pod: Object) -> bool:
    conditions = {each["type"]: each for each in pod["status"].get("conditions") or []}
    return conditions.get("PodScheduled", {}).get("reason") == "Unschedulable"


def test_without_it_a_gang_that_does_not_fit_holds_a_node(world: World, pool: Callable[[int], Pool]) -> None:
    """What the option is for: with larger gangs neither would run."""
    nodes = pool(4)
    for name in ("one", "two"):
        apply_gang(world, name, 3, nodes)

    def all_taken() -> bool:
        return sum(len(bound(world.wait_for(name))) for name in ("one", "two")) == len(nodes.nodes)

    wait_until("all nodes to be taken by gangs of which at most one is complete", all_taken)


@of_pod_groups
def test_a_replaced_pod_of_a_running_gang_is_placed_alone(
    world: World, pool: Callable[[int], Pool], gang_scheduling: Schedule
) -> None:
    nodes = pool(2)
    with gang_scheduling(True):
        apply_gang(world, "run", 2, nodes)
        before = world.train("run", 60, checkpoint=50, pods=2)
        world.terminate("run-worker-0", 138)
        after = world.wait_for("run", pods=2, without=[before.uid_of("worker-0")])
        assert after.uid_of("master-0") == before.uid_of("master-0")


@of_pod_groups
def test_pods_wait_and_report_why_where_nobody_creates_pod_groups(
    world: World, pool: Callable[[int], Pool], gang_scheduling: Schedule
) -> None:
    nodes = pool(2)
    with gang_scheduling(False):
        apply_gang(world, "run", 2, nodes)
        state = world.wait_for(
            "run",
            conditions={"Running": "Unschedulable"},
            where=lambda state: "PodGroup not found" in state.conditions["Running"]["message"],
        )
        assert bound(state) == set()


@pytest.mark.usefixtures("kubernetes_gangs")
def test_of_two_kubernetes_gangs_that_do_not_fit_together_one_runs_and_the_other_waits_whole(
    world: World, pool: Callable[[int], Pool]
) -> None:
    nodes = pool(4)
    for name in ("one", "two"):
        apply_gang(world, name, 3, nodes)
    running, waiting = wait_until(
        "one gang to run and the other to be refused", lambda: running_and_refused(world)
    )
    state = world.wait_for(waiting, conditions={"Running": "Unschedulable"})
    assert bound(state) == set(), "it holds no node while it waits"
    for pod in state.pods.values():
        assert pod["spec"]["schedulingGroup"] == {"podGroupName": waiting}
        assert not pod["spec"].get("schedulingGates")
    world.api.delete("MegatronRecipe", world.namespace, running)
    world.train(waiting, 10, pods=3)


@pytest.mark.usefixtures("kubernetes_gangs")
def test_a_kubernetes_gang_replaces_a_pod_alone_and_gets_another_pod_group_with_another_size(
    world: World, pool: Callable[[int], Pool]
) -> None:
    nodes = pool(2)
    apply_gang(world, "run", 2, nodes)
    before = world.train("run", 60, checkpoint=50)
    world.terminate("run-worker-0", 138)
    after = world.wait_for("run", pods=2, without=[before.uid_of("worker-0")])
    assert after.uid_of("master-0") == before.uid_of("master-0")

    world.train("run", 61, checkpoint=50, generation=2, resumedFrom=50)
    apply_gang(world, "run", 1, nodes)
    world.train("run", 62, checkpoint=50, pods=1, generation=1, resumedFrom=50)
