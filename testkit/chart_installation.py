"""Installs the chart without its Deployment: the operator runs as a process with the chart's rights."""

import subprocess
from pathlib import Path

import yaml
from localcluster import Cluster

from testkit.api_server import Api, Object
from testkit.errors import ApiError
from testkit.waiting import wait_until

CHART = Path(__file__).parents[1] / "charts" / "megatron-operator"


def install_chart(cluster: Cluster, api: Api, namespace: str, values: Object, folder: Path) -> str:
    """Apply all objects of the chart but its Deployment; `folder` receives the values.

    Returns a token of the operator's service account.
    """
    path = folder / "values.yaml"
    path.write_text(yaml.safe_dump(values))
    rendered = subprocess.run(
        [
            cluster.paths.binary("helm"), "template", "megatron-operator", CHART, "--namespace",
            namespace, "--kube-version", "1.36.3", "--values", path,
        ],
        check=True, capture_output=True, text=True,
    ).stdout  # fmt: skip
    api.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}})
    # Nothing runs these pods: neither the operator's nor that of `helm test`.
    left_out = ("Deployment", "Pod")
    objects = [item for item in yaml.safe_load_all(rendered) if item and item["kind"] not in left_out]
    for item in sorted(objects, key=lambda item: item["kind"] != "CustomResourceDefinition"):
        api.apply(item)
    wait_until("the API server to serve recipes", lambda: _serves_recipes(api, namespace))
    account = api.path("ServiceAccount", namespace, "megatron-operator") + "/token"
    request = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}}
    return str(api.request("POST", account, request)["status"]["token"])


def _serves_recipes(api: Api, namespace: str) -> bool:
    """Whether recipes can be listed: just after the CRD is created, the API server answers 404 or 429."""
    try:
        api.list("MegatronRecipe", namespace)
    except ApiError as error:
        if error.status not in (404, 429):
            raise
        return False
    return True
