"""Which variables of a pod need a Secret or ConfigMap that the kubelet does not find, from its message."""

import re
from typing import Any, Final

from megatron_contract.environment import ENV_TRACKING

from megatron_operator.api.tracking import MLFLOW_TOKEN, WANDB_KEY
from megatron_operator.manifests.convert import CONTAINER as CONVERT
from megatron_operator.manifests.prepare import CONTAINER as PREPARE

_MISSING: Final = (
    re.compile(r'^(?P<kind>secret|configmap) "(?P<name>[^"]+)" not found'),
    re.compile(r"^couldn't find key (?P<key>\S+) in (?P<kind>Secret|ConfigMap) [^/\s]+/(?P<name>\S+)"),
)
_KEY_REFERENCE: Final = {"secret": "secretKeyRef", "configmap": "configMapKeyRef"}
_OBJECT_REFERENCE: Final = {"secret": "secretRef", "configmap": "configMapRef"}
_KIND: Final = {"secret": "Secret", "configmap": "ConfigMap"}
_MOST_NAMED: Final = 3


def missing_object(pod: dict[str, Any], message: str) -> str:
    """What to add to a kubelet's message: the fields that need the object, and where to create it.

    Empty for a message about something else, or when no field of the recipe needs the object.
    """
    match = next((found for form in _MISSING if (found := form.match(message))), None)
    if match is None:
        return ""
    kind, name, key = match["kind"].lower(), match["name"], match.groupdict().get("key")
    fields = _fields(pod, kind, name, key)
    if not fields:
        return ""
    named = ", ".join(fields[:_MOST_NAMED])
    if len(fields) > _MOST_NAMED:
        named += f" and {len(fields) - _MOST_NAMED} more"
    what = f"key {key} of {_KIND[kind]} {name}" if key else f"{_KIND[kind]} {name}"
    return (
        f" (for {named}); create {what} in namespace {pod['metadata'].get('namespace')}, or correct the field"
    )


def _field(variable: str, container: dict[str, Any]) -> str:
    """The field that sets a variable from one key: a tracker's credentials may be set in two places."""
    if container.get("name") == PREPARE:
        return "spec.data.prepare.objectStorage.secretName"
    if container.get("name") == CONVERT:
        return "spec.init.from.huggingFace.secretKeyRef or platform.hub.secretKeyRef"
    field, environment = f"spec.envValueFrom.{variable}", container["env"]
    trackers = next((each.get("value") or "" for each in environment if each["name"] == ENV_TRACKING), "")
    for name, tracker in ((WANDB_KEY, "wandb"), (MLFLOW_TOKEN, "mlflow")):
        if variable == name and f'"{tracker}":{{' in trackers:
            return f"spec.tracking.{tracker}.secretKeyRef or {field}"
    return field


def _fields(pod: dict[str, Any], kind: str, name: str, key: str | None) -> list[str]:
    """Paths below `spec` of a recipe whose variables come from the object."""
    found = []
    for container in (pod.get("spec") or {}).get("containers") or []:
        for variable in container.get("env") or []:
            needed = (variable.get("valueFrom") or {}).get(_KEY_REFERENCE[kind])
            if needed and needed.get("name") == name and key in (None, needed.get("key")):
                found.append(_field(variable["name"], container))
        if key is None and any(
            (source.get(_OBJECT_REFERENCE[kind]) or {}).get("name") == name
            for source in container.get("envFrom") or []
        ):
            found.append("spec.envFrom")
    return list(dict.fromkeys(found))
