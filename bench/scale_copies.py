"""Copies of a run that trains, as objects of the API server: thousands of them in minutes.

Started one by one, most of the time of 2,000 runs is Kubernetes' own, which binds their volumes and pods.
"""

import itertools
import json
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from megatron_operator.api.labels import FIELD_MANAGER, LABEL_RECIPE

from bench.scale_cluster import CLIENTS, NAMESPACE, Bench
from testkit.api_server import Object

SET_BY_THE_SERVER: Final = ("uid", "resourceVersion", "creationTimestamp", "generation", "managedFields")
RUNS_PER_NODE: Final = 2


def copy_run(bench: Bench, original: str, names: Iterable[str]) -> None:
    """Create recipe, training job and pods of a run again under each of these names.

    The training-operator must not run, which would create pods of its own. Claims and Secrets are not copied:
    nothing reads them of a run that trains, and KWOK's kubelets mount no volumes.
    """
    copies = _Copies(bench, original)
    with ThreadPoolExecutor(CLIENTS) as pool:
        for _ in pool.map(copies.create, itertools.count(), names):
            pass


class _Copies:
    def __init__(self, bench: Bench, original: str) -> None:
        self._api = bench.api
        self._original = original
        self._recipe = bench.api.get("MegatronRecipe", NAMESPACE, original)
        self._job = bench.api.get("PyTorchJob", NAMESPACE, original)
        pods = bench.api.list("Pod", NAMESPACE, labelSelector=f"{LABEL_RECIPE}={original}")
        self._pods = [{"apiVersion": "v1", "kind": "Pod", **pod} for pod in pods]

    def create(self, number: int, name: str) -> None:
        """Create the copy with this name; its pods are on a node that only two copies use."""
        changes = {self._original: name}
        recipe = self._api.create(_changed(_without_status(self._recipe), changes))
        changes[self._recipe["metadata"]["uid"]] = recipe["metadata"]["uid"]
        job = self._api.create(_changed(_without_status(self._job), changes))
        changes[self._job["metadata"]["uid"]] = job["metadata"]["uid"]
        pods = [_changed(_without_status(pod), changes) for pod in self._pods]
        for pod in pods:
            pod["spec"]["nodeName"] = f"node-{number // RUNS_PER_NODE}"
        created = [self._api.create(pod) for pod in pods]
        # The status has up to which pod replacements were counted.
        changes[_last_creation(self._pods)] = _last_creation(created)
        status = _changed({"status": self._job["status"]}, changes)
        self._api.patch("PyTorchJob", NAMESPACE, name, status, "status")
        self._api.request(
            "PATCH",
            f"{self._api.path('MegatronRecipe', NAMESPACE, name)}/status",
            {key: recipe[key] for key in ("apiVersion", "kind")}
            | {"metadata": {"name": name, "namespace": NAMESPACE}}
            | _changed({"status": self._recipe["status"]}, changes),
            "application/apply-patch+yaml",
            fieldManager=FIELD_MANAGER,
            force="true",
        )


def _last_creation(pods: Iterable[Object]) -> str:
    return max(str(pod["metadata"]["creationTimestamp"]) for pod in pods)


def _without_status(obj: Object) -> Object:
    metadata = {key: value for key, value in obj["metadata"].items() if key not in SET_BY_THE_SERVER}
    return {key: value for key, value in obj.items() if key != "status"} | {"metadata": metadata}


def _changed(obj: Object, changes: Mapping[str, str]) -> Object:
    """The object with other names and UIDs."""
    text = json.dumps(obj)
    for old, new in changes.items():
        text = text.replace(old, new)
    return dict(json.loads(text))
