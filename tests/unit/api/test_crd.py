"""The generated CRD: up to date, structural, small enough, with columns and descriptions."""

import json
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import yaml
from megatron_operator.api import reference
from megatron_operator.api.crd import custom_resource_definition, render

ROOT = Path(__file__).parents[3]


@cache
def version() -> dict[str, Any]:
    found: dict[str, Any] = custom_resource_definition()["spec"]["versions"][0]
    return found


def schema() -> dict[str, Any]:
    found: dict[str, Any] = version()["schema"]["openAPIV3Schema"]
    return found


def nodes(node: dict[str, Any], path: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    yield path, node
    for name, child in node.get("properties", {}).items():
        yield from nodes(child, f"{path}.{name}")
    for key in ("items", "additionalProperties"):
        if key in node:
            yield from nodes(node[key], f"{path}[]")


def test_the_file_is_up_to_date() -> None:
    assert (ROOT / "crds" / "megatronrecipes.yaml").read_text() == render(), "run `make crds`"


def test_the_file_parses_to_the_definition() -> None:
    assert yaml.safe_load(render()) == custom_resource_definition()


def test_it_fits_into_the_annotation_of_client_side_apply() -> None:
    assert len(json.dumps(custom_resource_definition())) < 256 * 1024


def test_the_versions_are_served_with_the_same_fields_and_the_oldest_is_stored() -> None:
    """So that the API server converts by the name alone, and a release without v1beta1 reads all objects."""
    beta, alpha = custom_resource_definition()["spec"]["versions"]
    assert (beta["name"], beta["served"], beta["storage"]) == ("v1beta1", True, False)
    assert (alpha["name"], alpha["served"], alpha["storage"]) == ("v1alpha1", True, True)
    assert alpha["deprecated"]
    assert "apiVersion: megatron.training/v1beta1" in alpha["deprecationWarning"]
    own = {"name", "storage", "deprecated", "deprecationWarning"}
    assert {k: v for k, v in beta.items() if k not in own} == {k: v for k, v in alpha.items() if k not in own}
    assert custom_resource_definition()["spec"]["conversion"] == {"strategy": "None"}


def test_every_node_has_a_type_or_is_a_duration_or_preserves_unknown_fields() -> None:
    for path, node in nodes(schema()):
        typed = "type" in node or node.get("x-kubernetes-int-or-string") is True
        assert typed or node.get("x-kubernetes-preserve-unknown-fields") is True, path
        assert not node.keys() & {"$ref", "anyOf", "allOf", "title", "const"}, path


def test_every_field_of_the_spec_is_described() -> None:
    undescribed = [
        path
        for path, node in nodes(schema()["properties"]["spec"])
        if "description" not in node and "[]" not in path
    ]
    assert undescribed == []


def test_every_field_of_the_plan_is_described() -> None:
    plan = schema()["properties"]["status"]["properties"]["plan"]
    undescribed = [path for path, node in nodes(plan) if "description" not in node and "[]" not in path]
    assert undescribed == []


def test_a_status_that_nobody_has_written_is_of_no_generation() -> None:
    """So that kstatus calls a recipe current only after the operator has read it."""
    assert schema()["properties"]["status"]["default"] == {"observedGeneration": -1}


def test_no_field_of_the_status_is_required_or_has_a_default() -> None:
    status = {key: value for key, value in schema()["properties"]["status"].items() if key != "default"}
    for path, node in nodes(status):
        assert "default" not in node, path
        if not path.startswith(".conditions"):
            assert "required" not in node, path


def test_a_stored_blend_gets_no_field_that_version_0_2_0_does_not_know() -> None:
    """After a rollback with this CRD 0.2.0 reads it, and refuses unknown fields."""
    spec = schema()["properties"]["spec"]
    entry = spec["properties"]["data"]["properties"]["blend"]["items"]["properties"]
    assert {name for name, node in entry.items() if "default" in node} <= {"weight"}


def test_defaults_are_set_on_the_stored_object() -> None:
    recovery = schema()["properties"]["spec"]["properties"]["recovery"]
    assert recovery["default"] == {}
    assert recovery["properties"]["maxRestarts"]["default"] == 10
    assert recovery["properties"]["hangTimeout"]["default"] == "auto"


def test_an_exclusive_minimum_is_written_as_in_openapi_3_0() -> None:
    lr = schema()["properties"]["spec"]["properties"]["training"]["properties"]["lr"]
    assert (lr["minimum"], lr["exclusiveMinimum"]) == (0, True)


def test_an_exclusive_maximum_is_written_as_in_openapi_3_0() -> None:
    dropout = schema()["properties"]["spec"]["properties"]["model"]["properties"]["hiddenDropout"]
    assert (dropout["maximum"], dropout["exclusiveMaximum"]) == (1, True)


def test_megatron_args_accept_values_of_any_type() -> None:
    values = schema()["properties"]["spec"]["properties"]["megatronArgs"]["additionalProperties"]
    assert values == {"x-kubernetes-preserve-unknown-fields": True}


def test_kubectl_get_prints_progress() -> None:
    columns = version()["additionalPrinterColumns"]
    assert [(each["name"], each["jsonPath"]) for each in columns if "priority" not in each] == [
        ("Recipe", ".spec.recipe"),
        ("Accelerators", ".spec.accelerator.count"),
        ("Phase", ".status.phase"),
        ("Iteration", ".status.progress.display"),
        ("Loss", ".status.progress.lmLoss"),
        ("Restarts", ".status.recovery.restarts"),
        ("Age", ".metadata.creationTimestamp"),
    ]
    wide = {each["name"] for each in columns if each.get("priority") == 1}
    assert wide == {"Checkpoint", "Goodput", "Tokens/s", "End", "Cause"}
    assert all(
        _at(each["jsonPath"])["type"] == _SCHEMA_TYPES[each["type"]] for each in columns[:6] + columns[7:]
    )
    names = custom_resource_definition()["spec"]["names"]
    assert (names["shortNames"], names["categories"]) == (["mr"], ["all"])


def test_selectable_fields_are_scalars_of_the_schema() -> None:
    """The API server refuses a CRD that selects by anything else, or by more than 8 fields."""
    paths = [each["jsonPath"] for each in version()["selectableFields"]]
    assert 0 < len(paths) <= 8
    assert all(_at(path)["type"] in ("string", "boolean", "integer") for path in paths)


_SCHEMA_TYPES = {"string": "string", "integer": "integer", "number": "number"}


def _at(path: str) -> Any:
    found = schema()
    for name in path.strip(".").split("."):
        found = found["properties"][name]
    return found


def test_the_recipe_reference_is_up_to_date() -> None:
    assert (ROOT / "docs" / "recipe.md").read_text() == reference.render(), "run `make crds`"
