"""How many devices of Dynamic Resource Allocation nodes have for the pods of a run."""

import re
from collections.abc import Iterable, Mapping
from typing import Any, Final

from megatron_operator.lifecycle.object_metadata import Object

DeviceKind = tuple[str, str]
"""Driver, and attribute `type`."""
IMPLICIT: Final = "deviceclass.resource.kubernetes.io/"
"""Prefix of the extended resource that each DeviceClass has without naming one."""
_DRIVER: Final = re.compile(r"""device\.driver\s*==\s*(["'])(?P<driver>[^"']+)\1""")
_TYPE: Final = re.compile(r"""device\.attributes\[(["'])[^"']+\1\]\.type\s*==\s*(["'])(?P<type>[^"']*)\2""")


def extended_resources(classes: Iterable[Object]) -> dict[str, tuple[str, str | None]]:
    """Extended resource -> driver and type (None: any) of the devices with which DeviceClasses back it.

    Only classes whose selectors compare the driver, and the type, with `==` and `&&`: what others select is
    not known.
    """
    found: dict[str, tuple[str, str | None]] = {}
    for each in sorted(classes, key=lambda each: str(each["metadata"]["name"])):
        spec = each.get("spec") or {}
        selected = _selected(spec.get("selectors") or ())
        if selected is None:
            continue
        found[IMPLICIT + each["metadata"]["name"]] = selected
        if name := spec.get("extendedResourceName"):
            found.setdefault(name, selected)
    return found


def _selected(selectors: Iterable[Mapping[str, Any]]) -> tuple[str, str | None] | None:
    terms = [
        term.strip().strip("()").strip()
        for each in selectors
        for term in str((each.get("cel") or {}).get("expression") or "").split("&&")
    ]
    drivers = [match["driver"] for term in terms if (match := _DRIVER.fullmatch(term))]
    types = [match["type"] for term in terms if (match := _TYPE.fullmatch(term))]
    if len(drivers) != 1 or len(types) > 1 or len(drivers) + len(types) != len(terms):
        return None
    return drivers[0], types[0] if types else None


def backed_amounts(
    usable: Mapping[DeviceKind, int], resources: Mapping[str, tuple[str, str | None]]
) -> dict[str, str]:
    """Extended resource -> number of a node's usable devices that back it, as a quantity."""
    amounts = {
        name: sum(
            count
            for (driver, kind), count in usable.items()
            if driver == wanted[0] and wanted[1] in (None, kind)
        )
        for name, wanted in resources.items()
    }
    return {name: str(count) for name, count in amounts.items() if count}


def limited(
    fits: Mapping[str, int],
    needed: Mapping[DeviceKind, int],
    usable: Mapping[str, Mapping[DeviceKind, int]],
) -> dict[str, int]:
    """The part of `fits` for which there are devices.

    Args:
        fits: Number of pods that fit on each node by its resources.
        needed: Devices that a pod claims.
        usable: Untainted devices that no others hold, by node.
    """
    result = {}
    for node, count in fits.items():
        of_node = usable.get(node, {})
        room = min(of_node.get(kind, 0) // amount for kind, amount in needed.items())
        if min(count, room) > 0:
            result[node] = min(count, room)
    return result
