"""The API server accepts all manifests, and the pods meet the Pod Security Standard `restricted`."""

from pathlib import Path
from typing import Any

import pytest
import yaml
from megatron_operator.manifests import pytorchjob

from testkit.api_server import Api

GOLDEN = Path(__file__).parents[1] / "golden" / "manifests"
FILES = sorted(path.name for path in GOLDEN.glob("*.yaml"))


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


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize("file", FILES)
def test_every_golden_object_is_accepted_in_a_restricted_namespace(
    api: Api, restricted: str, file: str
) -> None:
    for body in yaml.safe_load_all((GOLDEN / file).read_text()):
        body["metadata"]["namespace"] = restricted
        body["metadata"].pop("ownerReferences", None)
        answer = api.apply(body, dryRun="All", fieldValidation="Strict")
        assert answer["metadata"]["name"] == body["metadata"]["name"]
        templates = pytorchjob.templates(body) if body["kind"] == "PyTorchJob" else []
        templates += [body["spec"]["template"]] if body["kind"] == "Job" else []
        for template in templates:
            # Admission checks a pod when it is created; what these name does not exist in this cluster.
            absent = ("priorityClassName", "serviceAccountName")
            spec = {k: v for k, v in template["spec"].items() if k not in absent}
            metadata = {"name": "pod", "namespace": restricted, "labels": template["metadata"]["labels"]}
            pod = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}
            api.create(pod, dryRun="All", fieldValidation="Strict")
