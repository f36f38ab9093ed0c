"""A gang that runs pins its job to the image that it runs."""

from typing import Any

from megatron_operator.lifecycle.actions import PinImage
from megatron_operator.lifecycle.recovery import apply_decision
from megatron_operator.lifecycle.recovery_policy import Wait

OLD, NEW = "trainer@sha256:" + "a" * 64, "trainer@sha256:" + "b" * 64


def actions(run: Any) -> tuple[Any, ...]:
    return apply_decision(run.status(), run.snapshot(), Wait("the run trains")).actions


def run_image(pod: dict[str, Any], image: str) -> None:
    pod["status"]["containerStatuses"] = [{"name": "pytorch", "imageID": f"docker.io/library/{image}"}]


def test_a_replaced_pod_gets_the_image_that_the_gang_runs(run: Any) -> None:
    for pod in run.pods:
        run_image(pod, OLD)
    assert actions(run) == (PinImage(run.job, OLD),)


def test_nothing_is_pinned_while_a_pod_starts_or_the_pods_run_different_images(run: Any) -> None:
    run_image(run.pods[0], OLD)
    run_image(run.pods[1], NEW)
    assert actions(run) == ()
    run.pods[1] = run.pod("worker", "Pending")
    run_image(run.pods[1], OLD)
    assert actions(run) == ()


def test_the_containers_of_a_job_in_a_queue_stay_as_kueue_admitted_them(run: Any) -> None:
    run.job["metadata"]["labels"] = {"kueue.x-k8s.io/queue-name": "research"}
    for pod in run.pods:
        run_image(pod, OLD)
    assert actions(run) == ()


def test_a_pinned_job_is_left_alone(run: Any) -> None:
    for replica in run.job["spec"]["pytorchReplicaSpecs"].values():
        replica["template"]["spec"]["containers"][0]["image"] = OLD
    for pod in run.pods:
        run_image(pod, OLD)
    assert actions(run) == ()
