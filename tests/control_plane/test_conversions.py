"""Weights are imported by a Job before the training job exists, and exported by one after it has ended."""

from contextlib import AbstractContextManager
from typing import Any

import pytest

from testkit.fake_nodes import ended, pod_stage
from testkit.waiting import wait_until
from tests.control_plane.conftest import STORAGE_CLASS
from tests.control_plane.world import World

RECIPE: dict[str, Any] = {
    "recipe": "llama3.2-1b-lora",
    "image": "registry.example/megatron-trainer-bridge:1.0",
    "data": {"volume": {"claimName": "models"}, "mockData": True},
    "init": {"from": {"huggingFace": {"path": "/data/llama"}}},
    "export": {"huggingFace": {"path": "/data/out"}, "merge": True},
}


OWN_LOOP: dict[str, Any] = RECIPE | {
    "recipe": "llama3.2-1b",
    "model": {"numLayers": 2, "hiddenSize": 64, "ffnHiddenSize": 128, "vocabSize": 256},
    "training": {"trainIters": 1000, "lrWarmupIters": 100},
    "export": {"huggingFace": {"path": "/data/out"}},
}


@pytest.fixture(autouse=True)
def claim(world: World) -> None:
    """The claim with the model."""
    spec = {
        "accessModes": ["ReadWriteMany"],
        "storageClassName": STORAGE_CLASS,
        "resources": {"requests": {"storage": "1Gi"}},
    }
    metadata = {"name": "models", "namespace": world.namespace}
    body = {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": metadata, "spec": spec}
    world.api.create(body)


def converter_ends(
    world: World, name: str, role: str, code: int, message: str
) -> AbstractContextManager[None]:
    """Let KWOK end the converter of a recipe with this exit code and termination message."""
    labels = {"megatron.training/recipe": name, "megatron.training/role": role}
    return pod_stage(world.api, f"{name}-{role}-ends", labels, "Pending", ended("convert", code, message))


def end_of(world: World, name: str) -> str:
    """When a batch Job completed."""
    return str(world.api.get("Job", world.namespace, name)["status"]["completionTime"])


@pytest.mark.parametrize("recipe", [RECIPE, OWN_LOOP], ids=["bridge", "megatron"])
def test_weights_are_imported_before_the_job_and_exported_after_it(
    world: World, recipe: dict[str, Any]
) -> None:
    passed = (
        '{"reason": "Completed", "message": "audit passed", "exitCode": 0, "tensors": 21, "bytes": 42000}'
    )
    with (
        converter_ends(world, "tuned", "import", 0, passed),
        converter_ends(world, "tuned", "export", 0, passed),
    ):
        world.apply("tuned", **recipe)
        job = world.wait_for("tuned", job=True, pods=2, conditions={"Imported": "Imported"}).job
        assert job is not None
        assert end_of(world, "tuned-import") <= job["metadata"]["creationTimestamp"]
        world.train("tuned", 10)
        assert world.api.find("Job", world.namespace, "tuned-export") is None
        for place in ("tuned-worker-0", "tuned-master-0"):
            words = '{"reason": "Completed", "iteration": 1000, "checkpointIteration": 1000}'
            world.terminate(place, 0, words, "Completed")
        state = world.wait_for("tuned", phase="Succeeded", conditions={"Exported": "Exported"})
    for field, source, path, base in (
        ("imported", "/data/llama", "/data/llama-megatron", {}),
        ("exported", "/checkpoints/tuned", "/data/out", {"base": "/data/llama"}),
    ):
        audit = f"{path}/conversion-audit.json"
        expected = {"source": source, "path": path, "tensors": 21, "bytes": 42_000, "audit": audit} | base
        found = dict(state.status[field])
        compared = found.pop("model", None)
        assert found == expected
        assert (compared is not None) == (recipe is OWN_LOOP and field == "imported")
    assert end_of(world, "tuned-export") >= end_of(world, "tuned-import")
    world.wait_for_events("Imported", "Exported", "Succeeded")


def test_a_failed_import_is_reported_with_the_converters_message_and_retried_by_an_edit(world: World) -> None:
    refused = (
        '{"reason": "ConversionRefused", "message": "--from /data/llama has no config.json", "exitCode": 2}'
    )
    with converter_ends(world, "refused", "import", 2, refused):
        world.apply("refused", **RECIPE)
        state = world.wait_for("refused", phase="Failed", conditions={"Failed": "ImportFailed"})
    message = str(state.conditions["Failed"]["message"])
    assert message.startswith("import failed: ")
    assert message.endswith("--from /data/llama has no config.json (exit code 2)")
    assert not world.job_exists("refused")
    world.edit("refused", init={"from": {"huggingFace": {"path": "/data/other"}}})
    wait_until("the job", lambda: world.job_exists("refused"))
    state = world.wait_for("refused", job=True, conditions={"Imported": "Imported", "Failed": None})
    assert state.status["imported"]["path"] == "/data/other-megatron"
