"""Schema errors: the field, what is wrong, what to set instead."""

from collections.abc import Iterator
from typing import Any

import pytest
from megatron_operator.api import validation
from megatron_operator.api.base import ApiModel
from megatron_operator.api.errors import InvalidRecipeError
from megatron_operator.api.platform import PlatformConfig
from megatron_operator.api.recipe import MegatronRecipeSpec
from megatron_operator.api.validation import parse, parse_recipe, parse_spec

SMALLEST: dict[str, Any] = {"recipe": "llama3-8b", "accelerator": {"count": 8}, "data": {"mockData": True}}


def messages(spec: dict[str, Any]) -> list[str]:
    with pytest.raises(InvalidRecipeError) as caught:
        parse_spec(spec)
    return [str(error) for error in caught.value.errors]


@pytest.mark.parametrize(
    ("section", "value", "path", "message"),
    [
        ("accelerator", {"count": "8"}, ".count", "'8' is not an integer; set 8, without quotes"),
        ("accelerator", {"count": True}, ".count", "true is not an integer; set an integer"),
        ("accelerator", {}, ".count", "is required; set the number of accelerators of the whole run"),
        ("training", {"trainIters": 1e6}, ".trainIters", "1000000.0 is not an integer; set 1000000"),
        ("training", {"lr": "3e-4"}, ".lr", "'3e-4' is not a number; set 0.0003, without quotes"),
        ("training", {"lr": "nan"}, ".lr", "'nan' is not a number; set a number"),
        (
            "checkpoint",
            {"volume": {"size": 400}},
            ".volume.size",
            "400 is not a string; write a quantity with its unit, for example 400Gi",
        ),
        (
            "accelerator",
            [8],
            "",
            "[8] is not an object; write an object, for example {type: h100-sxm, count: 8}",
        ),
        ("training", {"lr": 0}, ".lr", "0 is not above 0; set more than 0"),
        ("training", {"lr": "fast"}, ".lr", "'fast' is not a number; set a number"),
        ("training", {"adamBeta2": 95}, ".adamBeta2", "95 is above 1; set at most 1"),
        (
            "training",
            {"globalbatchsize": 8},
            ".globalbatchsize",
            "unknown field; did you mean `globalBatchSize`?",
        ),
        (
            "training",
            {"zzz": 8},
            ".zzz",
            "unknown field; leave it out; other Megatron flags go below spec.megatronArgs",
        ),
        (
            "model",
            {"windowSize": "128"},
            ".windowSize",
            "invalid window '128'; use the keys before and after a query, for example 128,0",
        ),
        ("model", {"swiglu": 1}, ".swiglu", "1 is not a boolean; set true or false"),
        (
            "data",
            {"blend": [{"path": "a", "wieght": 1}]},
            ".blend[0].wieght",
            "unknown field; did you mean `weight`?",
        ),
        (
            "data",
            {"prepare": {"source": ""}},
            ".prepare.source",
            "must not be empty; set a value, or leave it out",
        ),
        (
            "checkpoint",
            {"volume": {"size": "2TB"}},
            ".volume.size",
            "invalid quantity '2TB'; use for example 4Ti",
        ),
        (
            "megatronArgs",
            {"log-throughput": {}},
            ".log-throughput",
            "unsupported value of a flag; set a string, number, boolean, or list of strings and numbers",
        ),
    ],
)
def test_an_invalid_value_is_reported_with_its_fix(
    section: str, value: object, path: str, message: str
) -> None:
    assert messages(SMALLEST | {section: value}) == [f"spec.{section}{path}: {message}"]


@pytest.mark.parametrize(
    "empty",
    [
        {"checkpoint": None, "recovery": None, "scheduling": None, "suspend": None},
        {"recovery": {"loss": None, "elastic": {"minCount": 4, "shrinkAfter": None}}},
        {
            "data": {
                "volume": {"size": "1Gi"},
                "sources": [{"path": "/data/a.txt", "weight": None}],
                "prepare": {"name": None, "appendEod": None},
            }
        },
        {"envFrom": [{"secretRef": {"name": "s", "optional": None}}]},
        {"envValueFrom": {"KEY": {"secretKeyRef": {"name": "s", "key": "k", "optional": None}}}},
    ],
    ids=str,
)
def test_a_null_of_a_field_with_a_default_is_not_set_as_for_the_api_server(empty: dict[str, Any]) -> None:
    assert parse_spec(SMALLEST | empty) == parse_spec(SMALLEST | without(empty))


def without(value: Any) -> Any:
    """The value without its nulls."""
    if isinstance(value, list):
        return [without(each) for each in value]
    if isinstance(value, dict):
        return {key: without(each) for key, each in value.items() if each is not None}
    return value


@pytest.mark.parametrize(
    ("section", "path", "message"),
    [
        ({"accelerator": None}, "accelerator", "null is not an object"),
        (
            {"profile": {"start": 10, "end": 12, "ranks": None}},
            "profile.ranks",
            "null is not a list; set a list",
        ),
        (
            {"checkpoint": {"local": {"sizeLimit": None, "saveInterval": 5}}},
            "checkpoint.local.sizeLimit",
            "null",
        ),
    ],
)
def test_a_null_that_has_no_default_is_refused(section: dict[str, Any], path: str, message: str) -> None:
    (found,) = messages(SMALLEST | section)
    assert found.startswith(f"spec.{path}: {message}")


def test_all_schema_errors_are_reported_at_once() -> None:
    assert len(messages({"recipe": 1, "accelerator": {"count": 0}, "trainning": {}})) == 3


def test_an_integer_is_a_number() -> None:
    parsed = parse_spec(SMALLEST | {"training": {"weightDecay": 0, "clipGrad": 1}})
    assert parsed.training is not None
    assert parsed.training.clip_grad == 1.0


def test_python_field_names_are_unknown_fields() -> None:
    assert messages(SMALLEST | {"megatron_args": {}}) == [
        "spec.megatron_args: unknown field; did you mean `megatronArgs`?"
    ]


def patterns(schema: Any) -> Iterator[str]:
    """Every `pattern` of a JSON schema."""
    if isinstance(schema, dict):
        if isinstance(pattern := schema.get("pattern"), str):
            yield pattern
        schema = list(schema.values())
    if isinstance(schema, list):
        for part in schema:
            yield from patterns(part)


@pytest.mark.parametrize("model", [MegatronRecipeSpec, PlatformConfig])
def test_every_pattern_has_words_for_what_it_accepts(model: type[ApiModel]) -> None:
    found = set(patterns(model.model_json_schema()))
    assert found
    assert found <= validation._PATTERNS.keys()


def test_errors_of_the_platform_file_have_the_same_form() -> None:
    with pytest.raises(InvalidRecipeError) as caught:
        parse(PlatformConfig, {"accelerators": {"h100": {"pernode": 8}}}, "platform.yaml")
    assert [str(error) for error in caught.value.errors] == [
        "platform.yaml.accelerators.h100.pernode: unknown field; did you mean `perNode`?"
    ]


RESOURCE: dict[str, Any] = {
    "apiVersion": "megatron.training/v1beta1",
    "kind": "MegatronRecipe",
    "metadata": {"name": "mine"},
    "spec": SMALLEST,
}


@pytest.mark.parametrize(
    ("part", "message"),
    [
        ({"training": {"lr": 1e-4}}, "training: unknown field beside spec; indent it: set spec.training"),
        ({"foo": 1}, "foo: unknown field beside spec; leave it out"),
        (
            {"metadata": {"name": "mine", "lables": {}}},
            "metadata.lables: unknown field; did you mean `labels`?",
        ),
        (
            {"metadata": {"name": "mine", "labels": {"team": 7}}},
            "metadata.labels.team: 7 is not a string; write it in quotes",
        ),
        (
            {"metadata": {"name": "mine", "labels": {"team": "a b"}}},
            "metadata.labels.team: invalid label value 'a b'; use at most 63 letters, digits, -, _ and .",
        ),
        (
            {"metadata": {"name": "mine", "annotations": {"a b": "x"}}},
            "metadata.annotations['a b']: invalid key 'a b'; use for example example.com/zone",
        ),
        (
            {"metadata": {"name": "mine", "annotations": ["x"]}},
            "metadata.annotations: ['x'] is not an object; set an object of strings",
        ),
        ({"spec": [1]}, "spec: [1] is not an object; describe the run below it"),
        ({"spec": None}, "spec: is required; describe the run below it"),
    ],
)
def test_what_kubectl_refuses_beside_the_spec_is_refused(part: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidRecipeError) as caught:
        parse_recipe(RESOURCE | part)
    assert [str(error) for error in caught.value.errors] == [message]


def test_metadata_that_the_api_server_returns_is_accepted() -> None:
    metadata = {
        "name": "mine",
        "namespace": "research",
        "uid": "1",
        "generation": 2,
        "resourceVersion": "17",
        "creationTimestamp": "2026-01-01T00:00:00Z",
        "labels": {"example.com/team": "", "a": "1"},
        "annotations": {"kubectl.kubernetes.io/last-applied-configuration": "{}\n"},
        "finalizers": ["x"],
        "managedFields": [{"manager": "kubectl"}],
    }
    assert parse_recipe(RESOURCE | {"metadata": metadata, "status": {}}).recipe == "llama3-8b"
