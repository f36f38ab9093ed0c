"""Installs the chart without its Deployment: the operator runs as a process with the chart's rights."""

import subprocess
from pathlib import Path
from typing import Final

import yaml
from localcluster import Cluster

from testkit.api_server import Api, Object
from testkit.errors import ApiError
from testkit.waiting import wait_until

CHART = Path(__file__).parents[1] / "charts" / "megatron-operator"


def chart_objects(
    cluster: Cluster, namespace: str, values: Object, folder: Path, chart: Path = CHART
) -> list[Object]:
    """All objects of the chart but those with pods, which nothing runs; `folder` receives the values."""
    path = folder / "values.yaml"
    path.write_text(yaml.safe_dump(values))
    rendered = subprocess.run(
        [
            cluster.paths.binary("helm"), "template", "megatron-operator", chart, "--namespace",
            namespace, "--kube-version", "1.36.3", "--values", path,
        ],
        check=True, capture_output=True, text=True,
    ).stdout  # fmt: skip
    # The pods of the operator and of `helm test`.
    left_out = ("Deployment", "Pod")
    return [item for item in yaml.safe_load_all(rendered) if item and item["kind"] not in left_out]


TOKEN_SECONDS: Final = 86_400
"""How long the operator's token is valid; by default it is an hour, as long as a bench takes."""


def install_chart(
    cluster: Cluster, api: Api, namespace: str, values: Object, folder: Path, chart: Path = CHART
) -> str:
    """Apply the objects of `chart_objects`. Returns a token of the operator's service account."""
    objects = chart_objects(cluster, namespace, values, folder, chart)
    api.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}})
    for item in sorted(objects, key=lambda item: item["kind"] != "CustomResourceDefinition"):
        api.apply(item)
    wait_until("the API server to serve recipes", lambda: _serves_recipes(api, namespace))
    bound = next(item for item in objects if _is_binding_of_operator(item))
    path = api.path("ServiceAccount", namespace, bound["subjects"][0]["name"]) + "/token"
    spec = {"expirationSeconds": TOKEN_SECONDS}
    request = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": spec}
    return str(api.request("POST", path, request)["status"]["token"])


def _serves_recipes(api: Api, namespace: str) -> bool:
    """Whether recipes can be listed: just after the CRD is created, the API server answers 404 or 429."""
    try:
        api.list("MegatronRecipe", namespace)
    except ApiError as error:
        if error.status not in (404, 429):
            raise
        return False
    return True


def _is_binding_of_operator(item: Object) -> bool:
    return bool(item["kind"] == "RoleBinding" and item["metadata"]["name"] == "megatron-operator-platform")
