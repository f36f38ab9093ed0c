"""Phases that come from what pods report: Checking, of a preparation, and Evaluating."""

from contextlib import AbstractContextManager
from typing import Any

from testkit.fake_nodes import pod_stage
from testkit.waiting import wait_until
from tests.control_plane.test_flows import PREPARED
from tests.control_plane.world import World

LONGEST_DELAY = 3_600_000
"""Milliseconds."""


def preparation_goes_on(world: World, name: str) -> AbstractContextManager[None]:
    """Let KWOK complete the pods that prepare the data of a recipe only afterwards."""
    labels = {"megatron.training/recipe": name, "megatron.training/role": "prepare"}
    delay = {"durationMilliseconds": LONGEST_DELAY}
    return pod_stage(world.api, f"{name}-goes-on", labels, "Running", "phase: Running\n", delay=delay)


def running_pod(world: World, prefix: str) -> str | None:
    pods = world.api.list("Pod", world.namespace)
    return next(
        (
            str(pod["metadata"]["name"])
            for pod in pods
            if pod["metadata"]["name"].startswith(prefix) and pod["status"].get("phase") == "Running"
        ),
        None,
    )


def test_a_preparation_that_checks_its_data_is_checking(world: World) -> None:
    with preparation_goes_on(world, "checked"):
        world.apply("checked", data=PREPARED)
        pod = wait_until("the pod that prepares", lambda: running_pod(world, "checked-prepare"))

        def report(step: str) -> None:
            preparation: dict[str, Any] = {"documents": 7, "bytesDone": 90, "bytesTotal": 90, "step": step}
            world.trainers.set_report(world.namespace, pod, phase="preparing", preparation=preparation)

        report("build")
        prepared = {"preparation": {"documents": 7}}
        world.wait_for("checked", phase="Preparing", status=prepared, job=False)
        report("check")
        world.wait_for(
            "checked", phase="Checking", conditions={"Prepared": "Checking", "Ready": "Checking"}, job=False
        )
        report("build")
        world.wait_for("checked", phase="Preparing", conditions={"Prepared": "Preparing"}, job=False)
        world.api.patch("Pod", world.namespace, pod, {"status": {"phase": "Succeeded"}}, "status")
    state = world.train("checked", 10)
    assert state.conditions["Prepared"]["status"] == "True"


def test_suspending_ends_a_preparation_and_resuming_begins_it_again(world: World) -> None:
    with preparation_goes_on(world, "run"):
        world.apply("run", data=PREPARED)
        pod = wait_until("the pod that prepares", lambda: running_pod(world, "run-prepare"))
        world.edit("run", suspend=True)
        state = world.wait_for(
            "run",
            phase="Suspended",
            conditions={"Prepared": "Suspended"},
            where=lambda state: "are ending: 1" in state.conditions["Running"]["message"],
        )
        assert "the preparation job is deleted" in state.conditions["Prepared"]["message"]
        # As a kubelet does: KWOK's stage for pods that go on is before its stage for those that are deleted.
        world.api.delete("Pod", world.namespace, pod, gracePeriodSeconds=0)
        world.wait_for("run", where=lambda state: state.conditions["Running"]["message"] == "no pod is left")
        world.wait_for_only("Job")
        world.edit("run", suspend=False)
        wait_until("the pod that prepares again", lambda: running_pod(world, "run-prepare"))
        world.wait_for("run", phase="Preparing", conditions={"Prepared": "Preparing"})


def test_a_long_evaluation_is_evaluating_and_its_losses_are_kept(world: World) -> None:
    world.apply("run")
    world.train("run", 10)
    known = {
        "iteration": 10,
        "validationIteration": 5,
        "validationLoss": 2.5,
        "evaluations": [{"iteration": 5, "loss": 2.5}],
    }
    world.report("run", phase="evaluating", **known)
    state = world.wait_for(
        "run",
        phase="Evaluating",
        conditions={"Running": "Training", "Ready": "Training"},
        status={
            "progress": {"iteration": 10},
            "validation": {"evaluations": [{"iteration": 5, "loss": 2.5}]},
        },
    )
    assert state.conditions["Ready"]["status"] == "True"
    assert [mark["category"] for mark in state.status["ledger"]["marks"]][-1] == "train"
    known["evaluations"] = [{"iteration": 5, "loss": 2.5}, {"iteration": 10, "loss": 2.25}]
    world.report("run", phase="training", **known | {"validationIteration": 10, "validationLoss": 2.25})
    world.wait_for(
        "run", phase="Training", status={"validation": {"iteration": 10, "evaluations": known["evaluations"]}}
    )
