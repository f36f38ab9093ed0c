"""The operator's stages, one after the other, as the controller runs them."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from megatron_operator import catalog
from megatron_operator.api.platform import PlatformConfig
from megatron_operator.api.status import Plan
from megatron_operator.api.validation import parse, parse_recipe
from megatron_operator.catalog.resolved import ResolvedRecipe
from megatron_operator.cli import documents, generic
from megatron_operator.cli.inputs import Question
from megatron_operator.planner import plan


@dataclass(frozen=True, slots=True)
class Run:
    """A recipe that passed every stage."""

    name: str
    namespace: str
    resolved: ResolvedRecipe
    plan: Plan


def run(asked: Question, resource: dict[str, Any]) -> Run:
    """From the object to its plan. Raises Refused with the words that the status would have."""
    spec = parse_recipe(resource)
    metadata = resource.get("metadata") or {}
    name = str(metadata.get("name") or spec.recipe or "recipe")
    namespace = str(metadata.get("namespace") or "default")
    resolved = catalog.resolve(spec, platform_of(asked.platform), catalog.load(asked.catalog), namespace)
    return Run(name, namespace, resolved, plan(resolved))


def platform_of(file: Path | None) -> PlatformConfig:
    """The platform of a file, or the generic one. Raises Refused."""
    if file is None:
        return generic.platform()
    return parse(PlatformConfig, documents.read(file) or {}, str(file))
