"""What a row of docs/settings.md means and where it works, as the API and the catalog have it."""

from collections.abc import Iterator
from typing import Any, Final

from megatron_operator import catalog
from megatron_operator.api.errors import FieldError, InvalidRecipeError
from megatron_operator.api.validation import parse_spec
from megatron_operator.cli.default_platform import default_platform
from megatron_operator.cli.field_reference import find
from megatron_operator.planner.admission import admit
from pydantic.alias_generators import to_camel

_FOR_GPUS: Final = ("is not supported on platform cpu", "needs a GPU")
_GENERATIONS: Final = {"a100-80": "GPUs from Ada and Hopper on", "h100-sxm": "GPUs from Blackwell on"}
"""Hardware that lacks something -> the hardware that has it."""


def added(base: dict[str, Any], more: dict[str, Any]) -> dict[str, Any]:
    """`base` with the settings of `more`."""
    both = {
        key: added(base[key], value)
        for key, value in more.items()
        if isinstance(value, dict) and isinstance(base.get(key), dict)
    }
    return base | more | both


def field(name: str, row: dict[str, Any]) -> str:
    """Path below `spec` of what a row sets; empty if nothing does.

    Raises ValueError where the row has to name it.
    """
    if "field" in row or not row.get("recipe"):
        return str(row.get("field", ""))
    leaves = list(_leaves(row["recipe"]))
    named = [each for each in leaves if each.rpartition(".")[2] == to_camel(name)]
    if len(found := named or leaves) != 1:
        raise ValueError(f"{name}: set `field` to one of {', '.join(leaves)}")
    return found[0]


def _leaves(settings: dict[str, Any], above: str = "") -> Iterator[str]:
    for key, value in settings.items():
        if isinstance(value, dict):
            yield from _leaves(value, f"{above}{key}.")
        else:
            yield f"{above}{key}"


def meaning(name: str, row: dict[str, Any]) -> str:
    """What the setting does: the description of its field, unless the row has its own."""
    own = row.get("meaning")
    if own is None:
        (found,) = find(f"spec.{field(name, row)}")
        own = found.description
    return str(own)


def works_in(name: str, row: dict[str, Any], data: dict[str, Any]) -> str:
    """The loops that take the setting, and the hardware that it needs."""
    if "where" in row:
        return str(row["where"])
    path, settings, elsewhere = field(name, row), row["recipe"], data["elsewhere"]
    loops = ["Megatron's loop"]
    for kind in ("fine-tuning", "pretraining"):
        if not _refusals(added(elsewhere[kind], settings), [path]):
            loops.append(f"Bridge's {kind}")
    where = "both engines" if len(loops) == 3 else ", ".join(loops)
    return f"{where}; {hardware}" if (hardware := _hardware(settings, row, data)) else where


def _hardware(settings: dict[str, Any], row: dict[str, Any], data: dict[str, Any]) -> str:
    """The hardware that a row's settings need; empty for any."""
    paths = list(_leaves(settings))
    on_cpu = _refusals(added(data["elsewhere"]["cpu"], settings), paths)
    if not any(text in error.message for error in on_cpu for text in _FOR_GPUS):
        return ""
    lacking = ""
    for accelerator in data["elsewhere"]["gpus"]:
        base = added(data["bases"][row.get("base", "dense")], {"accelerator": {"type": accelerator}})
        recipe = added(base, settings)
        if any("does not support" in error.message for error in _refusals(recipe, paths, planned=True)):
            lacking = accelerator
    return _GENERATIONS.get(lacking, "GPUs")


def _refusals(recipe: dict[str, Any], paths: list[str], *, planned: bool = False) -> list[FieldError]:
    """The errors of a recipe at these fields, at what is above them and at what is below them.

    `planned`: also those of the planner, which knows the hardware.
    """
    try:
        if planned:
            admit("run", parse_spec(recipe), default_platform(), catalog.load())
        else:
            catalog.resolve(parse_spec(recipe), default_platform(), catalog.load())
    except InvalidRecipeError as invalid:
        return [error for error in invalid.errors if any(_concerns(error.field, path) for path in paths)]
    return []


def _concerns(reported: str, path: str) -> bool:
    at = f"spec.{path}"
    return at == reported or at.startswith(f"{reported}.") or reported.startswith((f"{at}.", f"{at}["))
