"""Generated documentation: `python -m megatron_operator.api.reference RECIPE_PAGE OPERATIONS_PAGE`.

The recipe reference is written as a whole; in the operations page only the tables of reasons are.
"""

import sys
from collections.abc import Iterator
from pathlib import Path

from megatron_operator.api.pod_warnings import PodWarning
from megatron_operator.api.reasons import Reason
from megatron_operator.api.recipe import MegatronRecipeSpec
from megatron_operator.api.rules import RULES
from megatron_operator.api.schema import Schema, structural
from megatron_operator.api.status import MegatronRecipeStatus

_INTRODUCTION = """\
# Recipe reference

Every field of a MegatronRecipe, generated from the models by `make crds`.
`kubectl explain megatronrecipe.spec` prints the same.

A field of `model`, `training` and `parallelism` is Megatron's flag in camelCase: `tensorModelParallelSize` is
`--tensor-model-parallel-size`, so Megatron's documentation applies. A field that a recipe does not set comes
from the catalog entry, then from the platform, then from the planner; `megatron plan` and `status.plan.notes`
show which.
"""


def render() -> str:
    """The recipe reference as Markdown."""
    parts = [_INTRODUCTION]
    for title, schema in (
        ("spec", structural(MegatronRecipeSpec)),
        ("status", structural(MegatronRecipeStatus)),
    ):
        for path, description, rows in _sections(title, schema):
            parts.append(f"## {path}\n\n{description}\n")
            if title == "spec":
                parts.append("| Field | Type | Default | Meaning |\n|---|---|---|---|\n" + "".join(rows))
            else:
                parts.append("| Field | Type | Meaning |\n|---|---|---|\n" + "".join(rows))
    return "\n".join([*parts, _rules()])


_INNER = {"items": "[]", "additionalProperties": "{}"}
"""Where a schema has that of its items or values -> how a path names them."""


def _sections(path: str, schema: Schema) -> Iterator[tuple[str, str, list[str]]]:
    """Path, description and table rows of an object, then those of the objects in it."""
    with_default = path.startswith("spec")
    rows, deeper = [], []
    for name, field in schema["properties"].items():
        key = next((key for key in _INNER if key in field), None)
        inner = field if key is None else field[key]
        required = " (required)" if with_default and name in schema.get("required", ()) else ""
        cells = [f"`{name}`{required}", type_text(field)]
        if with_default:
            default = field.get("default")
            cells.append("" if default in (None, {}) else f"`{str(default).lower()}`")
        cells.append(field.get("description", "").replace("|", "\\|"))
        rows.append(f"| {' | '.join(cells)} |\n")
        if "properties" in inner:
            deeper.append((f"{path}.{name}{'' if key is None else _INNER[key]}", inner))
    yield path, schema.get("description", ""), rows
    for each, inner in deeper:
        yield from _sections(each, inner)


def type_text(field: Schema) -> str:
    """The type of a field as Markdown: choices are code."""
    if "enum" in field:
        return ", ".join(f"`{choice}`" for choice in field["enum"])
    if field.get("x-kubernetes-int-or-string"):
        return "duration"
    match field.get("type"):
        case "array":
            return f"list of {type_text(field['items'])}"
        case "object" if "additionalProperties" in field:
            return f"map to {type_text(field['additionalProperties'])}"
        case "object":
            return "object"
        case "string":
            return "string"
        case "integer":
            return "integer"
        case "boolean":
            return "boolean"
        case "number":
            return "number"
        case _:
            return "any"


def _rules() -> str:
    lines = [
        "## Validation rules across fields\n",
        "The API server rejects an object that breaks one of these rules, and `megatron validate` prints the",
        "same message. `N` stands for a number.\n",
        "| Field | Message | Fix |",
        "|---|---|---|",
    ]
    for rule in RULES:
        lines.append(f"| `{rule.path}` | {rule.message.template.replace('{}', 'N')} | {rule.fix} |")
    return "\n".join(lines) + "\n"


_BEGIN = "<!-- reasons: generated from megatron_operator.api.reasons by `make crds` -->\n"
_END = "<!-- end of reasons -->\n"


def with_reasons(page: str) -> str:
    """`page` with the tables of reasons between its two markers. Raises ValueError without the markers."""
    head, rest = page.split(_BEGIN)
    _, tail = rest.split(_END)
    return head + _BEGIN + _reasons() + _END + tail


def _reasons() -> str:
    lines = ["| reason | reported as | meaning | what to do |", "|---|---|---|---|"]
    lines += [f"| `{each}` | {each.reported} | {each.meaning} | {each.action} |" for each in Reason]
    lines += ["", "Warnings of pods are Events too, and are listed in `status.warnings` while they last:", ""]
    lines += ["| warning | meaning | what to do |", "|---|---|---|"]
    lines += [f"| `{each}` | {each.meaning} | {each.action} |" for each in PodWarning]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    recipe, operations = map(Path, sys.argv[1:])
    recipe.write_text(render())
    operations.write_text(with_reasons(operations.read_text()))
