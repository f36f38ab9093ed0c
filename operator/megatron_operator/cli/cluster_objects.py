"""What `megatron cluster check` reads of a cluster, and what a check finds."""

from dataclasses import dataclass, field
from typing import Any, Literal

Object = dict[str, Any]
State = Literal["ok", "missing", "warning", "unknown"]


@dataclass(frozen=True, slots=True)
class ClusterObjects:
    """What was read. None: it could not be read, and `refused` has the message under the same name."""

    namespace: str
    version: Object
    crds: list[Object] | None = None
    deployments: list[Object] | None = None
    storage_classes: list[Object] | None = None
    nodes: list[Object] | None = None
    namespaces: list[Object] | None = None
    refused: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Finding:
    """The answer of one check. Only something that every run needs is `missing`."""

    check: str
    state: State
    message: str
    fix: str = ""


def crd_names(objects: ClusterObjects) -> set[str]:
    """The CustomResourceDefinitions that exist; none where they could not be read."""
    return {each["metadata"]["name"] for each in objects.crds or ()}


def unreadable(objects: ClusterObjects, check: str, name: str) -> Finding:
    """The finding of a check whose objects could not be read."""
    message = objects.refused.get(name, "was not read")
    return Finding(check, "unknown", message, "ask somebody who may read it to run this command")
