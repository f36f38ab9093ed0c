"""Schema errors in our own words: the field, what is wrong, what to write instead."""

from typing import Any

import pytest
from megatron_operator.api.errors import InvalidRecipeError
from megatron_operator.api.platform import PlatformConfig
from megatron_operator.api.validation import parse, parse_spec

SMALLEST: dict[str, Any] = {"recipe": "llama3-8b", "accelerator": {"count": 8}, "data": {"mockData": True}}


def words(spec: dict[str, Any]) -> list[str]:
    with pytest.raises(InvalidRecipeError) as refused:
        parse_spec(spec)
    return [str(error) for error in refused.value.errors]


@pytest.mark.parametrize(
    ("section", "value", "path", "said"),
    [
        ("accelerator", {"count": "8"}, ".count", "'8' is not a whole number; write a whole number"),
        ("accelerator", {"count": True}, ".count", "True is not a whole number; write a whole number"),
        ("accelerator", {}, ".count", "is missing; set it"),
        ("accelerator", [8], "", "[8] is not a mapping; write a mapping"),
        ("training", {"lr": 0}, ".lr", "0 is not above 0; set more than 0"),
        ("training", {"lr": "fast"}, ".lr", "'fast' is not a number; write a number"),
        ("training", {"adamBeta2": 95}, ".adamBeta2", "95 is above 1; set at most 1"),
        (
            "training",
            {"globalbatchsize": 8},
            ".globalbatchsize",
            "is no field of the resource; set globalBatchSize",
        ),
        (
            "training",
            {"zzz": 8},
            ".zzz",
            "is no field of the resource; leave it out; other Megatron flags go below spec.megatronArgs",
        ),
        ("model", {"swiglu": 1}, ".swiglu", "1 is not true or false; write true or false"),
        (
            "data",
            {"blend": [{"path": "a", "wieght": 1}]},
            ".blend[0].wieght",
            "is no field of the resource; set weight",
        ),
        ("data", {"prepare": {"source": ""}}, ".prepare.source", "is empty; give a value, or leave it out"),
        (
            "checkpoint",
            {"volume": {"size": "2TB"}},
            ".volume.size",
            "'2TB' is not written as it must be; write a Kubernetes quantity, as in 2Ti",
        ),
        (
            "megatronArgs",
            {"log-throughput": {}},
            ".log-throughput",
            "is no value of a flag; write text, a number, true, or a list of these",
        ),
    ],
)
def test_a_wrong_value_is_named_with_its_mend(section: str, value: object, path: str, said: str) -> None:
    assert words(SMALLEST | {section: value}) == [f"spec.{section}{path}: {said}"]


def test_all_schema_errors_are_reported_at_once() -> None:
    assert len(words({"recipe": 1, "accelerator": {"count": 0}, "trainning": {}})) == 3


def test_a_whole_number_is_a_number() -> None:
    parsed = parse_spec(SMALLEST | {"training": {"weightDecay": 0, "clipGrad": 1}})
    assert parsed.training is not None
    assert parsed.training.clip_grad == 1.0


def test_python_names_are_not_taken_for_the_resources() -> None:
    assert words(SMALLEST | {"megatron_args": {}}) == [
        "spec.megatron_args: is no field of the resource; set megatronArgs"
    ]


def test_a_platform_file_is_told_in_the_same_words() -> None:
    with pytest.raises(InvalidRecipeError) as refused:
        parse(PlatformConfig, {"accelerators": {"h100": {"pernode": 8}}}, "platform.yaml")
    assert [str(error) for error in refused.value.errors] == [
        "platform.yaml.accelerators.h100.pernode: is no field of the resource; set perNode"
    ]
