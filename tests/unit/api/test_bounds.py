"""Every number, text, list and map of a recipe has a bound, in the CRD and offline."""

from collections.abc import Iterator
from typing import Any

import pytest
from megatron_operator import catalog
from megatron_operator.api.crd import custom_resource_definition
from megatron_operator.api.errors import InvalidRecipeError
from megatron_operator.api.validation import parse_spec

SMALLEST: dict[str, Any] = {"recipe": "llama3-8b", "accelerator": {"count": 8}, "data": {"mockData": True}}
NOT_EXPRESSIBLE = {"spec.megatronArgs{}"}
"""Values of several types, which a structural schema cannot check; offline they are bounded as well.

Beside the spec, `metadata` is bounded by the API server, and only the operator writes the status: a bound
there would turn a long value into a write that is refused again and again.
"""
ROOM = 10
"""How much larger than the catalog's largest number a bound is at least."""


def spec_schema() -> dict[str, Any]:
    versions: list[dict[str, Any]] = custom_resource_definition()["spec"]["versions"]
    schema: dict[str, Any] = versions[0]["schema"]["openAPIV3Schema"]["properties"]["spec"]
    return schema


def nodes(node: dict[str, Any], path: str = "spec") -> Iterator[tuple[str, dict[str, Any]]]:
    yield path, node
    for name, child in node.get("properties", {}).items():
        yield from nodes(child, f"{path}.{name}")
    for suffix, key in (("[]", "items"), ("{}", "additionalProperties")):
        if key in node:
            yield from nodes(node[key], path + suffix)


def missing_bound(node: dict[str, Any]) -> str | None:
    """The keyword that would bound a value, if it is missing."""
    match node.get("type"):
        case "integer" | "number":
            needed = "maximum" if "minimum" in node else "minimum"
        case "string" if "enum" not in node:
            needed = "maxLength"
        case "array":
            needed = "maxItems"
        case "object" if "properties" not in node:
            needed = "maxProperties"
        case None if "x-kubernetes-int-or-string" in node:
            needed = "maximum" if "maxLength" in node else "maxLength"
        case None:
            needed = "type"
        case _:
            return None
    return None if needed in node else needed


def test_every_value_of_the_spec_has_a_bound() -> None:
    unbounded = {path: missing for path, node in nodes(spec_schema()) if (missing := missing_bound(node))}
    assert unbounded.keys() == NOT_EXPRESSIBLE, unbounded


def numbers(value: Any, path: str) -> Iterator[tuple[str, float]]:
    if isinstance(value, dict):
        for name, inner in value.items():
            yield from numbers(inner, f"{path}.{name}")
    elif isinstance(value, int | float) and not isinstance(value, bool):
        yield path, value


def test_the_bounds_leave_room_above_the_catalog() -> None:
    bounds = {path: node["maximum"] for path, node in nodes(spec_schema()) if "maximum" in node}
    for entry in catalog.load():
        for settings in (entry, *entry.layouts, *entry.functions):
            used = settings.wire()
            for section in ("model", "training", "parallelism"):
                for path, value in numbers(used.get(section) or {}, f"spec.{section}"):
                    if path not in bounds:
                        assert (section, entry.engine) == ("model", "bridge"), path
                        continue
                    # A share has no room above 1.
                    assert value * ROOM <= bounds[path] or bounds[path] == 1, path
        for layout in entry.layouts:
            assert layout.count * ROOM <= bounds["spec.accelerator.count"]


@pytest.mark.parametrize(
    ("section", "value", "message"),
    [
        ("model", {"numLayers": 1_000_000}, ".numLayers: 1000000 is above 10000; set at most 10000"),
        ("model", {"numExperts": 40_000_000}, ".numExperts: 40000000 is above 10000; set at most 10000"),
        ("model", {"moeLayerFreq": "1" * 5000}, ".moeLayerFreq: has 5000 characters; set at most 4096"),
        ("training", {"lr": 1e300}, ".lr: 1e+300 is above 1000000; set at most 1000000"),
        (
            "model",
            {"gluLinearOffset": -1e9},
            ".gluLinearOffset: -1000000000.0 is below -1000000; set at least -1000000",
        ),
        (
            "recovery",
            {"loss": {"spikeFactor": 1e7}},
            ".loss.spikeFactor: 10000000.0 is above 1000000; set at most 1000000",
        ),
        ("scheduling", {"topology": ["a"] * 17}, ".topology: has 17 entries; set at most 16"),
        ("env", {f"A{n}": "" for n in range(257)}, ": has 257 entries; set at most 256"),
        (
            "megatronArgs",
            {"a": "x" * 5000},
            ".a: unsupported value of a flag; set at most 4096 characters or entries",
        ),
        (
            "megatronArgs",
            {"a": [1] * 5000},
            ".a: unsupported value of a flag; set at most 4096 characters or entries",
        ),
    ],
)
def test_a_value_out_of_bounds_is_reported_with_its_fix(section: str, value: Any, message: str) -> None:
    with pytest.raises(InvalidRecipeError) as caught:
        parse_spec(SMALLEST | {section: value})
    assert [str(error) for error in caught.value.errors] == [f"spec.{section}{message}"]
