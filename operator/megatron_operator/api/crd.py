"""The CustomResourceDefinition, generated from the models: `python -m megatron_operator.api.crd FILE`."""

import sys
from pathlib import Path
from typing import Any, Final

import yaml

from megatron_operator.api import labels
from megatron_operator.api.recipe import MegatronRecipeSpec
from megatron_operator.api.rules import RULES
from megatron_operator.api.schema import Schema, structural
from megatron_operator.api.status import MegatronRecipeStatus

_COLUMNS = (
    ("Recipe", "string", ".spec.recipe", 0),
    ("Accelerators", "integer", ".spec.accelerator.count", 0),
    ("Phase", "string", ".status.phase", 0),
    ("Iteration", "string", ".status.progress.display", 0),
    ("Loss", "number", ".status.progress.lmLoss", 0),
    ("Restarts", "integer", ".status.recovery.restarts", 0),
    ("Age", "date", ".metadata.creationTimestamp", 0),
    ("Checkpoint", "integer", ".status.checkpoint.iteration", 1),
    ("Goodput", "number", ".status.recovery.goodput", 1),
    ("Tokens/s", "number", ".status.progress.tokensPerSecond", 1),
    ("End", "string", ".status.progress.eta", 1),
    ("Cause", "string", ".status.recovery.lastCause", 1),
)
"""Name, type, path and priority: `kubectl get` shows those of priority 0, and all with `-o wide`."""
SELECTABLE_FIELDS: Final = (".spec.recipe", ".spec.accelerator.type", ".spec.suspend", ".status.phase")
"""Fields by which the API server selects, from Kubernetes 1.31 on: `kubectl get --field-selector`."""


def custom_resource_definition() -> dict[str, Any]:
    """The whole CRD as plain values."""
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{labels.PLURAL}.{labels.GROUP}"},
        "spec": {
            "group": labels.GROUP,
            "scope": "Namespaced",
            "names": {
                "kind": labels.KIND,
                "listKind": f"{labels.KIND}List",
                "plural": labels.PLURAL,
                "singular": labels.SINGULAR,
                "shortNames": [labels.SHORT_NAME],
                "categories": ["all"],
            },
            # The versions differ in their names only, so the API server converts without a webhook.
            "conversion": {"strategy": "None"},
            "versions": [
                _version(labels.VERSION),
                _version(labels.STORED_VERSION)
                | {
                    "storage": True,
                    "deprecated": True,
                    "deprecationWarning": f"{labels.STORED_API_VERSION} {labels.KIND} is deprecated; "
                    f"write apiVersion: {labels.API_VERSION}, with the same fields",
                },
            ],
        },
    }


def _version(name: str) -> dict[str, Any]:
    return {
        "name": name,
        "served": True,
        "storage": False,
        "subresources": {"status": {}},
        "additionalPrinterColumns": [
            {"name": name, "type": kind, "jsonPath": path} | ({"priority": priority} if priority else {})
            for name, kind, path, priority in _COLUMNS
        ],
        "selectableFields": [{"jsonPath": path} for path in SELECTABLE_FIELDS],
        "schema": {"openAPIV3Schema": _schema()},
    }


def _schema() -> Schema:
    spec, status = structural(MegatronRecipeSpec), structural(MegatronRecipeStatus)
    _relax(status)
    # So that tools that compare it with the generation do not call a recipe current that nobody has read yet.
    status["default"] = {"observedGeneration": -1}
    status["properties"]["conditions"] |= {
        "x-kubernetes-list-type": "map",
        "x-kubernetes-list-map-keys": ["type"],
    }
    status["properties"]["conditions"]["items"]["required"] = ["type"]
    for rule in RULES:
        target = spec
        for name in rule.at.split(".")[1:]:
            target = target["properties"][name.rstrip("{}[]")]
            if name.endswith("{}"):
                target = target["additionalProperties"]
            elif name.endswith("[]"):
                target = target["items"]
        validation = {"rule": rule.holds.cel}
        if rule.field:
            validation["fieldPath"] = f".{rule.field}"
        if rule.message.values:
            validation["messageExpression"] = rule.text.cel
        else:
            validation["message"] = rule.text.template
        target.setdefault("x-kubernetes-validations", []).append(validation)
    return {
        "type": "object",
        "description": "One training run of Megatron Core.",
        "required": ["spec"],
        "properties": {
            "apiVersion": {"type": "string"},
            "kind": {"type": "string"},
            "metadata": {"type": "object"},
            "spec": spec,
            "status": status,
        },
    }


def _relax(schema: Schema) -> None:
    """Drop `required` and defaults: only the operator writes the status, and a default would change it."""
    schema.pop("required", None)
    schema.pop("default", None)
    for child in schema.get("properties", {}).values():
        _relax(child)
    for key in ("items", "additionalProperties"):
        if key in schema:
            _relax(schema[key])


_HEADER = "# Generated from megatron_operator.api by `make crds`. Do not edit.\n"


def render() -> str:
    """The text of the file in crds/."""
    text = yaml.safe_dump(custom_resource_definition(), sort_keys=False, width=110, allow_unicode=True)
    return _HEADER + text


if __name__ == "__main__":
    target = Path(sys.argv[1])
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(render())
