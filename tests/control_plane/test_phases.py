"""Phases that come from what pods report: Checking, of a preparation, and Evaluating."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from testkit.waiting import wait_until
from tests.control_plane.test_flows import PREPARED
from tests.control_plane.world import World

LONGEST_DELAY = 3_600_000
"""Milliseconds."""


@contextmanager
def preparation_goes_on(world: World, name: str) -> Iterator[None]:
    """Let KWOK complete the pods that prepare the data of a recipe only afterwards."""
    stage = f"{name}-goes-on"
    labels = {"megatron.training/recipe": name, "megatron.training/role": "prepare"}
    running = [{"key": ".status.phase", "operator": "In", "values": ["Running"]}]
    world.api.apply(
        {
            "apiVersion": "kwok.x-k8s.io/v1alpha1",
            "kind": "Stage",
            "metadata": {"name": stage},
            "spec": {
                "resourceRef": {"apiGroup": "v1", "kind": "Pod"},
                "selector": {"matchLabels": labels, "matchExpressions": running},
                "weight": 1_000_000,
                "delay": {"durationMilliseconds": LONGEST_DELAY},
                "next": {"statusTemplate": "phase: Running\n"},
            },
        }
    )
    try:
        yield
    finally:
        world.api.delete("Stage", None, stage)


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
