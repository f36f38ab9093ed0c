"""A recipe as a Python value: from a catalog name, a dict or a file; validated and planned offline."""

import copy
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from pydantic.alias_generators import to_camel

from megatron_operator import catalog as recipe_catalog
from megatron_operator import manifests
from megatron_operator.api import yaml_documents
from megatron_operator.api.errors import FieldError, InvalidRecipeError, shown
from megatron_operator.api.labels import API_VERSION, KIND
from megatron_operator.api.parallel_dims import ParallelDims
from megatron_operator.api.recipe import MegatronRecipeSpec
from megatron_operator.api.status import MemoryPerGpu, Plan
from megatron_operator.api.validation import parse_recipe
from megatron_operator.cli import documents
from megatron_operator.cli.errors import CommandError
from megatron_operator.cli.inputs import object_name
from megatron_operator.cli.planning import load_platform
from megatron_operator.cli.run_length import run_seconds
from megatron_operator.planner import Alternative, PlannedRun, admit, admit_and_compare

Object = dict[str, Any]


@dataclass(frozen=True, slots=True)
class RecipePlan:
    """How a recipe would run: `plan` is what the operator writes to `status.plan`."""

    name: str
    accelerator: str
    """Profile of the platform that it is planned for."""
    plan: Plan
    alternatives: tuple[Alternative, ...]
    """Layouts that were not chosen, each with the reason."""
    warnings: tuple[str, ...]
    """Notes that point at a probable mistake."""
    arguments: tuple[str, ...]
    """Megatron's command line."""

    @property
    def layout(self) -> ParallelDims:
        """Sizes of the parallel groups: `tp`, `pp`, `cp`, `dp`, `ep`, `etp`, `vp`."""
        return ParallelDims.of_plan(self.plan)

    @property
    def memory(self) -> MemoryPerGpu | None:
        """Estimated bytes on the fullest GPU; None for an engine that is not estimated."""
        return self.plan.memory_per_gpu

    @property
    def step_seconds(self) -> float | None:
        """Estimated seconds of an iteration; None where the platform has no speed for the accelerator."""
        return None if self.plan.expected is None else self.plan.expected.step_seconds

    @property
    def tokens_per_second(self) -> float | None:
        """Estimated tokens per second of the whole run."""
        expected = self.plan.expected
        return None if expected is None else expected.tokens_per_second_per_gpu * self.plan.world_size

    @property
    def run_seconds(self) -> float | None:
        """Estimated seconds of all iterations without interruptions."""
        return run_seconds(self.plan)


class Recipe:
    """A MegatronRecipe. It never changes, and keeps the schema and the rules; only its data may be missing.

    Raises InvalidRecipeError, whose `errors` each have `field`, `message` with the value, and `fix`.

        Recipe("llama3-8b", accelerator="h100-sxm", count=64, training={"globalBatchSize": 1024})
    """

    def __init__(
        self,
        recipe: str,
        *,
        accelerator: str | Mapping[str, Any] | None = None,
        count: int | None = None,
        name: str | None = None,
        namespace: str | None = None,
        **sections: Any,
    ) -> None:
        """An entry of the catalog, with sections of the spec that override it.

        `accelerator` is a profile of the platform, or the whole section; `count` is the number of
        accelerators. Names below a section are written as in YAML. The object is named after the recipe
        unless it has a `name`; without a `namespace` it is applied to that of the connection.
        """
        metadata = {"name": object_name(recipe) if name is None else name}
        if namespace is not None:
            metadata["namespace"] = namespace
        spec: Object = {"recipe": recipe, "accelerator": {}}
        resource: Object = {"apiVersion": API_VERSION, "kind": KIND, "metadata": metadata, "spec": spec}
        self._set(_with_sections(resource, _sections(accelerator, count, sections)))

    @classmethod
    def from_dict(cls, resource: Mapping[str, Any]) -> Self:
        """A MegatronRecipe object, as in YAML; `status` and what the API server sets are left out."""
        recipe = cls.__new__(cls)
        recipe._set({key: value for key, value in resource.items() if key != "status"})
        return recipe

    @classmethod
    def from_file(cls, path: str | Path, name: str | None = None) -> Self:
        """The MegatronRecipe of a YAML file; `name` chooses one of several.

        Raises InvalidRecipeError for a file that cannot be read, a recipe that is invalid, and unless exactly
        one is chosen.
        """
        try:
            found = documents.read_recipes(Path(path))
        except CommandError as error:
            raise InvalidRecipeError(error.errors) from None
        names = [str((each.get("metadata") or {}).get("name")) for each in found]
        chosen = [each for each, its in zip(found, names, strict=True) if name in (None, its)]
        if len(chosen) != 1:
            message = f"has {len(chosen)} recipes" + (f" of the name {shown(name)}" if name else "")
            fix = f"choose one by name: {', '.join(names[:8])}"
            raise InvalidRecipeError([FieldError(str(path), message, fix)])
        return cls.from_dict(chosen[0])

    def _set(self, resource: Object) -> None:
        resource = _as_json(resource)
        self._spec = _parse_for_planning(resource)
        metadata = resource.get("metadata") or {}
        if not metadata.get("name"):
            raise InvalidRecipeError([FieldError("metadata.name", "is required", "set a name")])
        kept = ("name", "namespace", "labels", "annotations")
        self._resource: Object = resource | {
            "metadata": {key: metadata[key] for key in kept if metadata.get(key)}
        }

    @property
    def name(self) -> str:
        """Name of the object."""
        return str(self._resource["metadata"]["name"])

    @property
    def namespace(self) -> str | None:
        """Namespace of the object; None for that of the connection."""
        found = self._resource["metadata"].get("namespace")
        return None if found is None else str(found)

    def replace(
        self,
        *,
        accelerator: str | Mapping[str, Any] | None = None,
        count: int | None = None,
        name: str | None = None,
        namespace: str | None = None,
        **sections: Any,
    ) -> "Recipe":
        """A recipe with other values. Maps are merged; None removes a section or field."""
        resource = _with_sections(self.to_dict(), _sections(accelerator, count, sections))
        given = {"name": name, "namespace": namespace}
        resource["metadata"] |= {key: value for key, value in given.items() if value is not None}
        return Recipe.from_dict(resource)

    def validate(self, platform: str | Path | None = None, catalog: str | Path | None = None) -> None:
        """Raise InvalidRecipeError with every error that the operator would report, as `megatron validate`.

        `platform` is a platform file or the chart's values, `catalog` a directory with more recipes.
        """
        spec = parse_recipe(self._resource)
        namespace = self.namespace or "default"
        planned = admit(self.name, spec, _platform(platform), _catalog(catalog), namespace)
        manifests.build(planned, "")

    def plan(self, platform: str | Path | None = None, catalog: str | Path | None = None) -> RecipePlan:
        """Layout, memory and speed on the platform. Raises InvalidRecipeError where nothing fits.

        A recipe without data is planned with random tokens; `validate` requires its data.
        """
        namespace = self.namespace or "default"
        planned, others = admit_and_compare(
            self.name, self._spec, _platform(platform), _catalog(catalog), namespace
        )
        return _recipe_plan(planned, others)

    def to_dict(self) -> Object:
        """The object as in YAML."""
        return copy.deepcopy(self._resource)

    def to_yaml(self) -> str:
        """The object as kubectl and `from_file` read it."""
        return yaml_documents.dump(self._resource)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Recipe) and self._resource == other._resource

    __hash__ = None  # type: ignore[assignment]  # compared by value, like a dict

    def __repr__(self) -> str:
        accelerator = self._spec.accelerator
        on = f"{accelerator.count} x {accelerator.type or 'the default accelerator'}"
        return f"<Recipe {self.name}: {self._spec.recipe or 'own model'} on {on}>"


def _parse_for_planning(resource: Object) -> MegatronRecipeSpec:
    """The spec; one without data has random tokens, on which no layout depends."""
    spec = resource.get("spec")
    if isinstance(spec, dict) and spec.get("data") is None:
        resource = _with_sections(resource, {"data": {"mockData": True}})
    return parse_recipe(resource)


def _recipe_plan(planned: PlannedRun, others: list[Alternative]) -> RecipePlan:
    return RecipePlan(
        planned.name,
        planned.resolved.accelerator_type,
        planned.plan,
        tuple(others),
        tuple(planned.warnings),
        tuple(planned.arguments),
    )


def _sections(
    accelerator: str | Mapping[str, Any] | None, count: int | None, sections: Mapping[str, Any]
) -> Object:
    """Overrides of the spec by its field names; `image_pull_secrets` is `imagePullSecrets`."""
    found: Object = {to_camel(key): value for key, value in sections.items()}
    given: Object = {"type": accelerator} if isinstance(accelerator, str) else dict(accelerator or {})
    if count is not None:
        given["count"] = count
    return found | ({"accelerator": given} if given else {})


def _with_sections(resource: Object, sections: Mapping[str, Any]) -> Object:
    return resource | {"spec": _merged(resource["spec"], sections)}


def _merged(target: Object, changes: Mapping[str, Any]) -> Object:
    merged = dict(target)
    for key, value in changes.items():
        if value is None:
            merged.pop(key, None)
        elif isinstance(value, Mapping):
            before = merged.get(key)
            content = _merged(before if isinstance(before, dict) else {}, value)
            # A section of which only fields were to be removed is not added.
            if content or key in merged or not value:
                merged[key] = content
        else:
            merged[key] = value
    return merged


def _as_json(resource: Object) -> Object:
    """A copy in JSON's types: tuples become lists. Raises InvalidRecipeError for a value of another type."""
    for at, value in [("metadata", resource.get("metadata")), *_fields(resource.get("spec"))]:
        try:
            json.dumps(value)
        except (TypeError, ValueError) as problem:
            fix = "use strings, numbers, booleans, lists and dicts"
            raise InvalidRecipeError(
                [FieldError(at, f"{shown(value)} cannot be written as JSON: {problem}", fix)]
            ) from None
    copied: Object = json.loads(json.dumps(resource))
    return copied


def _fields(spec: object) -> list[tuple[str, object]]:
    return [(f"spec.{key}", value) for key, value in spec.items()] if isinstance(spec, Mapping) else []


def _platform(path: str | Path | None) -> Any:
    try:
        return load_platform(None if path is None else Path(path))
    except CommandError as error:
        raise InvalidRecipeError(error.errors) from None


def _catalog(directory: str | Path | None) -> recipe_catalog.Catalog:
    """The catalog with the recipes of a directory. Raises InvalidRecipeError where one cannot be read."""
    if directory is None:
        return recipe_catalog.load()
    if not Path(directory).is_dir():
        raise InvalidRecipeError([FieldError(str(directory), "is not a directory", "give one with recipes")])
    library = recipe_catalog.load(Path(directory))
    if library.problems:
        raise InvalidRecipeError(
            [
                FieldError(str(directory), problem, "correct the file")
                for problem in map(str, library.problems)
            ]
        )
    return library
