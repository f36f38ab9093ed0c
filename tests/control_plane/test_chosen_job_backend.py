"""The kind of job that helm chooses for what a real cluster has."""

import json
import subprocess
from pathlib import Path

import pytest
import yaml
from localcluster import Cluster

from testkit.api_server import Api, Object
from testkit.chart_installation import CHART

RELEASE = "megatron-operator"
ANNOTATION = "megatron.training/chosen-job-backend"


@pytest.fixture
def namespace(api: Api) -> str:
    """Of a release, in which the tests put what an earlier one left."""
    name = "chosen-job-backend"
    api.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
    return name


def platform_of(cluster: Cluster, namespace: str, folder: Path, platform: Object) -> Object:
    """The platform as `helm install` would write it in this cluster.

    Other tests have applied the objects of the whole cluster without helm, which it would not take over.
    """
    values = folder / "values.yaml"
    values.write_text(yaml.safe_dump({"crd": {"install": False}, "platform": platform}))
    done = subprocess.run(
        [
            cluster.paths.binary("helm"), "install", RELEASE, CHART, "--namespace", namespace,
            "--values", values, "--kubeconfig", cluster.kubeconfig, "--dry-run=server", "-o", "json",
            "--take-ownership",
        ],
        check=False, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    objects = yaml.safe_load_all(json.loads(done.stdout)["manifest"])
    config_map = next(item for item in objects if item and item["metadata"]["name"] == "megatron-platform")
    found: Object = yaml.safe_load(config_map["data"]["platform.yaml"])
    return found


def test_a_cluster_with_the_training_operator_gets_pytorchjobs(
    cluster: Cluster, namespace: str, tmp_path: Path
) -> None:
    assert "jobBackend" not in platform_of(cluster, namespace, tmp_path, {})


def test_what_was_chosen_before_is_kept_until_the_values_name_another(
    cluster: Cluster, api: Api, namespace: str, tmp_path: Path
) -> None:
    """A training-operator that is installed later must not leave the runs with JobSets alone."""
    metadata = {
        "name": "megatron-platform",
        "namespace": namespace,
        "labels": {"app.kubernetes.io/managed-by": "Helm"},
        "annotations": {
            ANNOTATION: "jobset",
            "meta.helm.sh/release-name": RELEASE,
            "meta.helm.sh/release-namespace": namespace,
        },
    }
    api.apply({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata})
    try:
        assert platform_of(cluster, namespace, tmp_path, {})["jobBackend"] == "jobset"
        gangs = {"gangScheduling": {"scheduler": "coscheduling"}}
        kept = platform_of(cluster, namespace, tmp_path, gangs)["jobBackend"]
        assert kept == "jobset", "the operator refuses it with these gangs, as where it is named"
        named = {"jobBackend": "pytorchjob"}
        assert platform_of(cluster, namespace, tmp_path, named)["jobBackend"] == "pytorchjob"
    finally:
        api.delete("ConfigMap", namespace, "megatron-platform")
