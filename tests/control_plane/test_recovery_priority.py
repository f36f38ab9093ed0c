"""A run that lacks one pod gets the next free node before runs that wait for all of theirs."""

from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Final

import pytest

from testkit.api_server import Api, Object
from testkit.run_state import RunState
from testkit.waiting import wait_until
from tests.control_plane.conftest import PlatformWith
from tests.control_plane.nodes import Pool
from tests.control_plane.world import World

NAME: Final = "recovery-of-tests"
BACK_OFF: Final = 10.0
"""Seconds for which kube-scheduler keeps a pod back after an attempt, at most (`podMaxBackoffSeconds`)."""


@pytest.fixture
def priority_class(api: Api) -> Iterator[Callable[[], None]]:
    """Creates the class; it is deleted at the end."""

    def create() -> None:
        api.create(
            {
                "apiVersion": "scheduling.k8s.io/v1",
                "kind": "PriorityClass",
                "metadata": {"name": NAME},
                "value": 1,
                "preemptionPolicy": "Never",
            }
        )

    yield create
    if api.find("PriorityClass", None, NAME) is not None:
        api.delete("PriorityClass", None, NAME)


def apply(world: World, name: str, on: Pool, count: int = 4) -> None:
    world.apply(name, accelerator={"count": count, "perNode": 2}, scheduling={"nodeSelector": on.selector})


def was_refused(pod: Object) -> bool:
    """Whether the scheduler has found no node for a pod, and tries it again with the others."""
    conditions = {each["type"]: each for each in pod["status"].get("conditions") or []}
    refused = conditions.get("PodScheduled", {})
    if refused.get("reason") != "Unschedulable":
        return False
    since = datetime.fromisoformat(refused["lastTransitionTime"])
    # Times have seconds only.
    return (datetime.now(UTC) - since).total_seconds() > BACK_OFF + 1


@pytest.mark.job_backends(
    "pytorchjob", reason="of other jobs only a job that is created again has the class: templates stay"
)
def test_the_pod_that_a_run_lacks_is_placed_before_older_pods_of_a_run_that_waits(
    world: World,
    pool: Callable[[int], Pool],
    platform_with: PlatformWith,
    priority_class: Callable[[], None],
) -> None:
    nodes = pool(3)
    priority_class()
    with platform_with({"recoveryPriorityClassName": NAME}):
        apply(world, "leaving", nodes, count=2)
        free = world.train("leaving", 10, pods=1).node_of("master-0")
        apply(world, "first", nodes)
        before = world.train("first", 60, checkpoint=50)
        assert classes(before) == {None}
        wait_until("new pods to get the class", lambda: in_templates(world, "first") == {NAME})
        apply(world, "second", nodes)
        world.wait_for("second", where=lambda state: len(list(filter(was_refused, state.pods.values()))) == 2)

        # The end of a pod is one event; a node that is uncordoned would be two, and pods be tried in between.
        nodes.cordon(before.node_of("worker-0"))
        world.terminate("first-worker-0", 138)
        world.wait_for(
            "first",
            without=[before.uid_of("worker-0")],
            where=lambda state: "worker-0" in state.pods and was_refused(state.pods["worker-0"]),
        )
        world.api.delete("MegatronRecipe", world.namespace, "leaving")

        after = world.train("first", 61, checkpoint=50, generation=2, resumedFrom=50)
        assert after.node_of("worker-0") == free
        assert after.uid_of("master-0") == before.uid_of("master-0")
        assert classes(after) == {None, NAME}
        assert not any(pod["spec"].get("nodeName") for pod in world.wait_for("second").pods.values())


def test_a_class_that_does_not_exist_is_refused_until_it_is_created(
    world: World, platform_with: PlatformWith, priority_class: Callable[[], None]
) -> None:
    with platform_with({"recoveryPriorityClassName": NAME}):
        world.apply("run")
        message = f"platform.yaml.recoveryPriorityClassName: there is no PriorityClass {NAME}"
        world.wait_for(
            "run", where=lambda state: message in state.conditions.get("Planned", {}).get("message", "")
        )
        assert not world.job_exists("run")
        priority_class()
        world.train("run", 10)


def classes(state: RunState) -> set[str | None]:
    return {pod["spec"].get("priorityClassName") for pod in state.pods.values()}


def in_templates(world: World, name: str) -> set[str | None]:
    return {each.get("priorityClassName") for each in world.wait_for(name, job=True).pod_specs}
