"""Reads the status of a recipe, also one that another version of the operator wrote.

The status holds the operator's whole state: a part that this version does not know must not cost the rest.
"""

import copy
from typing import Any

from pydantic import ValidationError

from megatron_operator.api.status import MegatronRecipeStatus

Location = tuple[int | str, ...]


def read_status(value: Any) -> tuple[MegatronRecipeStatus, tuple[str, ...]]:
    """The status, and the paths of the parts that were dropped because this version cannot read them.

    A part is a field or an entry of a list or map. Where one without which its section means nothing is
    missing, the section is dropped.
    """
    if not isinstance(value, dict):
        return MegatronRecipeStatus(), () if value is None else ("status",)
    kept = value
    dropped: list[str] = []
    while True:
        try:
            return MegatronRecipeStatus.model_validate(kept), tuple(dropped)
        except ValidationError as error:
            if kept is value:
                kept = copy.deepcopy(value)
            # From the end, so that the positions in a list stay what they are.
            found = [at for at in reversed(_unreadable(error)) if _drop(kept, at)]
            if not found:
                return MegatronRecipeStatus(), (*dropped, "status")
            dropped += map(_path, found)


def _unreadable(error: ValidationError) -> list[Location]:
    """Locations to remove, each once, without those inside another one."""
    found: dict[Location, None] = {}
    for problem in error.errors(include_url=False, include_context=False, include_input=False):
        location = problem["loc"]
        found[location[:-1] if problem["type"] == "missing" else location] = None
    return [at for at in found if not any(at[:length] in found for length in range(len(at)))]


def _drop(status: dict[str, Any], location: Location) -> bool:
    """Remove what is at this location; False where it is already gone, with what was around it."""
    inside: Any = status
    try:
        for part in location[:-1]:
            inside = inside[part]
        del inside[location[-1]]
    except (KeyError, IndexError, TypeError):
        return False
    return True


def _path(location: Location) -> str:
    return "status" + "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in location)
