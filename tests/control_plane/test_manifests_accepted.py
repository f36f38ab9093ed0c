"""The API server accepts all manifests, and the pods meet the Pod Security Standard `restricted`."""

from pathlib import Path
from typing import Any

import pytest
import yaml
from localcluster.trainingoperator import INIT_CONTAINER
from megatron_operator.manifests import pytorchjob

from testkit.api_server import Api, Object
from tests.control_plane.run_backend import CHOSEN, PYTORCHJOB
from tests.unit.manifests.conftest import Run
from tests.unit.manifests.test_golden import RECIPES

GOLDEN = Path(__file__).parents[1] / "golden" / "manifests"


def objects_of(recipe: str) -> list[Object]:
    """What the operator creates for a golden recipe: the golden files are those of PyTorchJobs."""
    if CHOSEN.name == PYTORCHJOB:
        return list(yaml.safe_load_all((GOLDEN / f"{recipe}.yaml").read_text()))
    run = Run(recipe)
    run.resolved = run.resolved.model_copy(update={"job_backend": CHOSEN.name})
    return run.build().all()


@pytest.fixture(scope="module")
def restricted(api: Api) -> Any:
    namespace = {
        "apiVersion": "v1",
        "kind": "Namespace",
        "metadata": {"name": "cp-restricted", "labels": {"pod-security.kubernetes.io/enforce": "restricted"}},
    }
    api.apply(namespace)
    yield "cp-restricted"
    api.delete("Namespace", None, "cp-restricted")


def pod_of(template: Object, namespace: str) -> Object:
    """A pod to create, which admission checks then, without the names of what this cluster does not have."""
    absent = ("priorityClassName", "serviceAccountName")
    spec = {k: v for k, v in template["spec"].items() if k not in absent}
    metadata = {"name": "pod", "namespace": namespace, "labels": template["metadata"]["labels"]}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize("recipe", RECIPES)
def test_every_object_of_a_golden_recipe_is_accepted_in_a_restricted_namespace(
    api: Api, restricted: str, recipe: str
) -> None:
    for body in objects_of(recipe):
        body["metadata"]["namespace"] = restricted
        body["metadata"].pop("ownerReferences", None)
        if body["kind"] != "TrainJob":  # Trainer requires that its runtime exists.
            answer = api.apply(body, dryRun="All", fieldValidation="Strict")
            assert answer["metadata"]["name"] == body["metadata"]["name"]
        of_job = body["kind"] in CHOSEN.kinds and body["kind"] not in ("Job", "TrainJob")
        templates = CHOSEN.manifests.templates(body) if of_job else []
        templates += [body["spec"]["template"]] if body["kind"] == "Job" else []
        for template in templates:
            api.create(pod_of(template, restricted), dryRun="All", fieldValidation="Strict")


@pytest.mark.job_backends("pytorchjob", reason="the training-operator alone adds an init container")
def test_a_worker_on_gpus_is_guaranteed_also_with_the_init_container(api: Api, restricted: str) -> None:
    """By the API server's own rules; the training-operator adds the init container to workers."""
    documents = yaml.safe_load_all((GOLDEN / "llama3-8b-64-gpus.yaml").read_text())
    [job] = [body for body in documents if body["kind"] == "PyTorchJob"]
    text = INIT_CONTAINER.read_text()
    for variable in ("InitContainerImage", "MaxTries", "MasterAddr"):
        text = text.replace("{{." + variable + "}}", "name")
    pod = pod_of(pytorchjob.templates(job)[-1], restricted)
    pod["spec"]["initContainers"] = yaml.safe_load(text)
    assert api.create(pod, dryRun="All")["status"]["qosClass"] == "Guaranteed"
