"""Every field of a recipe, its status and the platform file, as docs/recipe.md has them."""

import difflib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

from megatron_operator.api.base import ApiModel
from megatron_operator.api.other_names import fix_for_name, plain
from megatron_operator.api.platform import PlatformConfig
from megatron_operator.api.recipe import MegatronRecipeSpec
from megatron_operator.api.reference import type_text
from megatron_operator.api.rules import RULES
from megatron_operator.api.schema import Schema, structural
from megatron_operator.api.status import MegatronRecipeStatus
from megatron_operator.cli.errors import CommandError
from megatron_operator.planner.checks.passthrough import megatron_flags, why_not_taken

_ROOTS: dict[str, type[ApiModel]] = {
    "spec": MegatronRecipeSpec,
    "status": MegatronRecipeStatus,
    "platform": PlatformConfig,
}
_LIMITS = {
    "minimum": "at least {}",
    "maximum": "at most {}",
    "minLength": "at least {} characters",
    "maxLength": "at most {} characters",
    "minItems": "at least {} items",
    "maxItems": "at most {} items",
    "maxProperties": "at most {} entries",
}
_EXCLUSIVE = {"minimum": "exclusiveMinimum", "maximum": "exclusiveMaximum"}
_FLAG_SECTIONS = ("spec.model", "spec.training", "spec.parallelism")
_MAX_MATCHES = 8
"""Fields that are printed for one name; with more, the user is asked for a longer path."""


@dataclass(frozen=True, slots=True)
class Field:
    """One field. `path` has [] after lists of objects and {} after maps to objects."""

    path: str
    kind: str
    required: bool
    default: str | None
    limits: tuple[str, ...]
    description: str
    flag: str | None
    """The flag of Megatron that it becomes, without dashes."""
    rules: tuple[str, ...]
    """Rules with other fields that the API server checks."""

    @property
    def name(self) -> str:
        """The last part of the path."""
        return self.path.rsplit(".", 1)[-1].rstrip("[]{}")


@cache
def fields() -> tuple[Field, ...]:
    """All fields, an object before those in it."""
    found: list[Field] = []
    for root, model in _ROOTS.items():
        found += _walk(root, structural(model), required=False)
    return tuple(found)


def fields_below(field: Field) -> list[Field]:
    """The fields directly in this one."""
    return [each for each in fields() if each.path.rpartition(".")[0] == field.path]


def find(name: str) -> list[Field]:
    """Fields of this path, or whose path ends with it, those of the status if nothing else has the name.

    Else the field that becomes this flag of Megatron. Raises CommandError, with the closest names.
    """
    asked = _plain(name)
    if not asked:
        raise CommandError("FIELD", "is empty", "name a field, for example spec.training")
    known = {field.path: _plain(field.path) for field in fields()}
    exact = [field for field in fields() if known[field.path] == asked]
    ends = [field for field in fields() if known[field.path].endswith(f".{asked}")]
    settable = [field for field in ends if not field.path.startswith("status.")]
    flag = name.lstrip("-").lower()
    of_flag = [field for field in fields() if field.flag == flag]
    found = exact or settable or ends or _through_a_map(asked) or of_flag
    if not found and flag in megatron_flags() and (reason := why_not_taken(flag)):
        raise CommandError(name, *reason)
    if not found:
        raise CommandError(name[:100], "unknown field of recipe, status and platform file", _advice(name))
    if len(found) > _MAX_MATCHES:
        paths = ", ".join(field.path for field in found[:_MAX_MATCHES])
        raise CommandError(
            name, f"is the name of {len(found)} fields", f"give more of the path: {paths}, ..."
        )
    return found


def _walk(path: str, schema: Schema, *, required: bool) -> Iterator[Field]:
    inner, mark = schema, ""
    if "items" in schema:
        inner, mark = schema["items"], "[]"
    elif "additionalProperties" in schema:
        inner, mark = schema["additionalProperties"], "{}"
    mark = mark if "properties" in inner else ""
    default = schema.get("default")
    yield Field(
        path=f"{path}{mark}",
        kind=type_text(schema).replace("`", ""),
        required=required,
        default=None if default in (None, {}) else str(default).lower(),
        limits=tuple(_limits(schema)),
        description=schema.get("description", ""),
        flag=_flag(path),
        rules=tuple(rule.text.template.replace("{}", "N") for rule in RULES if rule.path == path),
    )
    for name, child in inner.get("properties", {}).items():
        yield from _walk(f"{path}{mark}.{name}", child, required=name in inner.get("required", ()))


def _limits(schema: Schema) -> Iterator[str]:
    for key, text in _LIMITS.items():
        if key in schema and not schema.get(_EXCLUSIVE.get(key, "")):
            yield text.format(schema[key])
    if schema.get("exclusiveMinimum"):
        yield f"above {schema['minimum']}"
    if schema.get("exclusiveMaximum"):
        yield f"below {schema['maximum']}"


def _flag(path: str) -> str | None:
    section, _, name = path.rpartition(".")
    flag = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "-", name).lower()
    return flag if section in _FLAG_SECTIONS and flag in megatron_flags() else None


def _plain(path: str) -> str:
    """A path without indices, marks of lists and maps, and upper case."""
    return re.sub(r"\[[^\]]*\]|\{[^}]*\}", "", path.strip().strip(".")).lower()


def _through_a_map(asked: str) -> list[Field]:
    """Fields of a path that names a key of a map: `platform.accelerators.h100.shmSize`."""
    found = []
    for field in fields():
        if "{}" in field.path:
            pattern = re.escape(field.path.lower()).replace(r"\{\}", r"\.[^.]+").replace(r"\[\]", "")
            if re.fullmatch(rf"(.*\.)?{pattern}", asked) or re.fullmatch(pattern, f"spec.{asked}"):
                found.append(field)
    return found


def _advice(name: str) -> str:
    section, _, last = name.rpartition(".")
    if own := [each.path for each in fields() if section and _is_plural(each.path, section, last)]:
        return f"did you mean {own[0]}?"
    if today := fix_for_name(last):
        return today
    flag = name.lstrip("-").lower()
    if flag in megatron_flags():
        return f"set the flag of Megatron in spec.megatronArgs: {flag}"
    root = name.split(".", 1)[0].lower()
    candidates = [field for field in fields() if root not in _ROOTS or field.path.split(".")[0] == root]
    names = {field.name.lower() for field in candidates}
    asked = _plain(last)[:100]
    containing = sorted((each for each in names if asked in each), key=len) if len(asked) > 2 else []
    near = [*difflib.get_close_matches(asked, names, n=2, cutoff=0.8), *containing]
    near = near or difflib.get_close_matches(asked, names, n=2, cutoff=0.6)
    paths = [field.path for each in dict.fromkeys(near) for field in candidates if field.name.lower() == each]
    # Settings before what a status reports.
    paths = sorted(paths, key=lambda path: path.startswith("status."))[:3]
    return f"did you mean {' or '.join(paths)}?" if paths else "see megatron explain spec"


def _is_plural(path: str, section: str, name: str) -> bool:
    """Whether a path is `name` of that section but for an s at its end."""
    parent, _, last = _plain(path).rpartition(".")
    return f".{parent}".endswith(f".{_plain(section)}") and plain(last).rstrip("s") == plain(name).rstrip("s")


def other_name(name: str) -> str | None:
    """What to set in a recipe for a name that the setting has elsewhere."""
    return fix_for_name(name.rsplit(".", 1)[-1])
