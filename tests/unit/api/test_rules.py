"""Validation rules across fields: the CEL text and its Python twin."""

from functools import cache
from typing import Any

import pytest
from megatron_operator.api.cel import Message, at_most_one, constant, field, is_false, is_set, is_true
from megatron_operator.api.crd import custom_resource_definition
from megatron_operator.api.errors import InvalidRecipeError
from megatron_operator.api.rules import RULES
from megatron_operator.api.validation import parse_spec, rule_errors

SMALLEST: dict[str, Any] = {"recipe": "llama3-8b", "accelerator": {"count": 8}, "data": {"mockData": True}}


@cache
def spec_schema() -> dict[str, Any]:
    version = custom_resource_definition()["spec"]["versions"][0]
    schema: dict[str, Any] = version["schema"]["openAPIV3Schema"]["properties"]["spec"]
    return schema


def test_the_smallest_recipe_breaks_no_rule() -> None:
    assert rule_errors(SMALLEST) == []
    assert parse_spec(SMALLEST).accelerator.count == 8


def test_a_count_of_zero_breaks_no_rule_of_a_field_that_is_not_set() -> None:
    """The API server evaluates the rules of an object that its schema refuses too."""
    assert rule_errors(SMALLEST | {"accelerator": {"count": 0}}) == []


def test_a_null_field_is_not_set_as_for_the_api_server() -> None:
    assert rule_errors(SMALLEST | {"recipe": None})[0].field == "spec.recipe"


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: f"{rule.path}: {rule.message.template}")
def test_every_rule_reports_a_field_of_the_schema(rule: Any) -> None:
    schema = spec_schema()
    for name in rule.path.split(".")[1:]:
        schema = schema["properties"][name.rstrip("{}[]")]
        if name.endswith("}"):
            schema = schema["additionalProperties"]
        elif name.endswith("]"):
            schema = schema["items"]
    assert schema["description"]


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: f"{rule.path}: {rule.message.template}")
def test_an_empty_object_breaks_only_the_rules_of_required_fields(rule: Any) -> None:
    required = {"spec.recipe", "spec.data", "spec.init.from"}
    required |= {"spec.init.from.huggingFace", "spec.envValueFrom{}", "spec.envFrom[]"}
    assert rule.holds.evaluate({}) == (rule.path not in required)


BLEND = [{"path": "/data/corpus_text_document"}]
SOURCES = [{"name": "chats", "path": "/sources/chats.jsonl", "format": "chat"}]


@pytest.mark.parametrize(
    ("data", "errors"),
    [
        ({"blend": BLEND, "mockData": True}, {"mockData": ["blend"]}),
        ({"prepare": {"source": "/text"}, "blend": BLEND}, {"prepare": ["blend"]}),
        ({"prepare": {}, "sources": SOURCES}, {}),
        ({"prepare": {}, "sources": SOURCES, "mockData": True}, {"mockData": ["prepare", "sources"]}),
        ({"datasetRoot": "/chats", "sources": SOURCES}, {"datasetRoot": ["sources"]}),
    ],
)
def test_two_sources_of_data_are_reported_as_the_recipe_sets_them(
    data: dict[str, Any], errors: dict[str, list[str]]
) -> None:
    found = rule_errors({"recipe": "llama3-8b", "data": {"volume": {"size": "1Gi"}} | data})
    assert [(error.field, error.message) for error in found] == [
        (f"spec.data.{second}", f"is set together with {first}")
        for second, each in errors.items()
        for first in each
    ]


def test_all_broken_rules_are_reported_at_once() -> None:
    broken = SMALLEST | {
        "training": {"bf16": True, "fp16": True, "lr": 1e-4, "minLr": 1e-3},
        "parallelism": {"tensorModelParallelSize": 3},
    }
    with pytest.raises(InvalidRecipeError) as caught:
        parse_spec(broken)
    assert [error.field for error in caught.value.errors] == [
        "spec.parallelism",
        "spec.training.fp16",
        "spec.training.minLr",
    ]


@pytest.mark.parametrize(
    ("expression", "fields", "value", "cel"),
    [
        (is_set("a.b"), {"a": {"b": 0}}, True, "(has(self.a) && has(self.a.b))"),
        (is_set("a.b"), {"a": None}, False, "(has(self.a) && has(self.a.b))"),
        (field("a", 7) % 4, {}, 3, "(((has(self.a)) ? self.a : 7) % 4)"),
        (is_true("a"), {"a": False}, False, "((has(self.a)) ? self.a : false)"),
        (is_false("a"), {"a": False}, True, "!((has(self.a)) ? self.a : true)"),
        (field("a", "").equals("it's"), {"a": "it's"}, True, "(((has(self.a)) ? self.a : '') == 'it\\'s')"),
        (
            at_most_one("a", "b"),
            {"a": 1, "b": 1},
            False,
            "([(has(self.a)) ? 1 : 0, (has(self.b)) ? 1 : 0].sum() <= 1)",
        ),
    ],
)
def test_an_expression_has_the_same_meaning_in_python_and_cel(
    expression: Any, fields: dict[str, Any], value: object, cel: str
) -> None:
    assert expression.evaluate(fields) == value
    assert expression.cel == cel


def test_a_message_formats_its_values_in_python_and_cel() -> None:
    message = Message("{} is 5 % of {}", (field("a", 1), constant(20)))
    assert message.format({"a": 3}) == "3 is 5 % of 20"
    assert message.cel == "'%d is 5 %% of %d'.format([((has(self.a)) ? self.a : 1), 20])"
