"""The cluster's own kubectl with the cluster's own kubeconfig."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import yaml

from localcluster.commands import run
from localcluster.paths import Paths

# libyaml's parser where PyYAML has it: the training-operator's manifests are 3.7 MB.
LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
Object = dict[str, Any]
FIELD_MANAGER = "local-cluster"


class Kubectl:
    """kubectl of one profile. Every method raises ClusterError with kubectl's output when it fails."""

    def __init__(self, paths: Paths) -> None:
        self.paths = paths

    def run(self, *args: str | Path, stdin: str | None = None) -> str:
        """Standard output of kubectl."""
        # The machine's proxy must not be used for the cluster's addresses.
        environment = {"KUBECONFIG": str(self.paths.kubeconfig), "NO_PROXY": "*", "no_proxy": "*"}
        return run([self.paths.binary("kubectl"), *args], stdin=stdin, environment=environment)

    def apply(self, objects: Iterable[Object]) -> None:
        """Server-side apply: the training-operator's CRDs are too big for the last-applied annotation."""
        text = json.dumps({"apiVersion": "v1", "kind": "List", "items": list(objects)})
        self.run(
            "apply",
            "--server-side",
            "--force-conflicts",
            f"--field-manager={FIELD_MANAGER}",
            "-f",
            "-",
            stdin=text,
        )

    def get(self, *args: str) -> Mapping[str, Any]:
        """The object that `kubectl get` returns."""
        result: Mapping[str, Any] = json.loads(self.run("get", *args, "-o", "json"))
        return result

    def exists(self, *args: str) -> bool:
        """Whether `kubectl get` finds the object."""
        return bool(self.run("get", *args, "--ignore-not-found", "-o", "name").strip())

    def kustomize(self, directory: Path) -> list[Object]:
        """The objects that a kustomization renders."""
        text = self.run("kustomize", "--load-restrictor=LoadRestrictionsNone", directory)
        return [document for document in yaml.load_all(text, Loader=LOADER) if document]
