"""The operator's stages, one after the other, as the controller runs them."""

from pathlib import Path
from typing import Any

from megatron_operator import catalog
from megatron_operator.api.platform import PlatformConfig
from megatron_operator.api.validation import parse, parse_recipe
from megatron_operator.cli import documents, generic
from megatron_operator.cli.inputs import Question
from megatron_operator.planner import Alternative, PlannedRun, admit, admit_and_compare


def run(asked: Question, resource: dict[str, Any]) -> PlannedRun:
    """From the object to its plan. Raises InvalidRecipeError with the words that the status would have."""
    spec = parse_recipe(resource)
    name, namespace = _names(resource)
    return admit(name, spec, platform_of(asked.platform), catalog.load(asked.catalog), namespace)


def run_and_compare(asked: Question, resource: dict[str, Any]) -> tuple[PlannedRun, list[Alternative]]:
    """The same, with the layouts that are not the plan."""
    spec = parse_recipe(resource)
    name, namespace = _names(resource)
    return admit_and_compare(name, spec, platform_of(asked.platform), catalog.load(asked.catalog), namespace)


def _names(resource: dict[str, Any]) -> tuple[str, str]:
    metadata = resource.get("metadata") or {}
    name = metadata.get("name") or resource["spec"].get("recipe") or "recipe"
    return str(name), str(metadata.get("namespace") or "default")


def platform_of(file: Path | None) -> PlatformConfig:
    """The platform of a file, or the generic one. Raises InvalidRecipeError."""
    if file is None:
        return generic.platform()
    return parse(PlatformConfig, documents.read(file) or {}, str(file))
