"""Rules between fields: the Python twin holds, and the CEL text is what the CRD carries."""

from typing import Any

import pytest
from megatron_operator.api.cel import Text, at_most_one, constant, field, off, on, said
from megatron_operator.api.crd import custom_resource_definition
from megatron_operator.api.errors import InvalidRecipeError
from megatron_operator.api.rules import RULES
from megatron_operator.api.validation import parse_spec, rule_errors

SMALLEST: dict[str, Any] = {"recipe": "llama3-8b", "accelerator": {"count": 8}, "data": {"mockData": True}}


def spec_schema() -> dict[str, Any]:
    version = custom_resource_definition()["spec"]["versions"][0]
    schema: dict[str, Any] = version["schema"]["openAPIV3Schema"]["properties"]["spec"]
    return schema


def test_the_smallest_recipe_breaks_no_rule() -> None:
    assert rule_errors(SMALLEST) == []
    assert parse_spec(SMALLEST).accelerator.count == 8


def test_a_null_counts_as_not_said_as_for_the_api_server() -> None:
    assert rule_errors(SMALLEST | {"recipe": None})[0].field == "spec.recipe"


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: f"{rule.path}: {rule.message.words}")
def test_every_rule_reports_a_field_that_the_schema_has(rule: Any) -> None:
    schema = spec_schema()
    for name in rule.path.split(".")[1:]:
        schema = schema["properties"][name]
    assert schema["description"]


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: f"{rule.path}: {rule.message.words}")
def test_every_rule_holds_for_an_empty_object_but_those_that_ask_for_something(rule: Any) -> None:
    required = {"spec.recipe", "spec.data"}
    assert rule.holds.of({}) == (rule.path not in required)


def test_all_broken_rules_are_reported_at_once() -> None:
    broken = SMALLEST | {
        "training": {"bf16": True, "fp16": True, "lr": 1e-4, "minLr": 1e-3},
        "parallelism": {"tensorModelParallelSize": 3},
    }
    with pytest.raises(InvalidRecipeError) as refused:
        parse_spec(broken)
    assert [error.field for error in refused.value.errors] == [
        "spec.parallelism",
        "spec.training.fp16",
        "spec.training.minLr",
    ]


@pytest.mark.parametrize(
    ("expression", "fields", "value", "cel"),
    [
        (said("a.b"), {"a": {"b": 0}}, True, "(has(self.a) && has(self.a.b))"),
        (said("a.b"), {"a": None}, False, "(has(self.a) && has(self.a.b))"),
        (field("a", 7) % 4, {}, 3, "(((has(self.a)) ? self.a : 7) % 4)"),
        (on("a"), {"a": False}, False, "((has(self.a)) ? self.a : false)"),
        (off("a"), {"a": False}, True, "!((has(self.a)) ? self.a : true)"),
        (field("a", "").equals("it's"), {"a": "it's"}, True, "(((has(self.a)) ? self.a : '') == 'it\\'s')"),
        (
            at_most_one("a", "b"),
            {"a": 1, "b": 1},
            False,
            "([(has(self.a)) ? 1 : 0, (has(self.b)) ? 1 : 0].sum() <= 1)",
        ),
    ],
)
def test_an_expression_is_the_same_in_python_and_cel(
    expression: Any, fields: dict[str, Any], value: object, cel: str
) -> None:
    assert expression.of(fields) == value
    assert expression.cel == cel


def test_a_text_puts_numbers_in_both_ways() -> None:
    text = Text("{} is 5 % of {}", (field("a", 1), constant(20)))
    assert text.of({"a": 3}) == "3 is 5 % of 20"
    assert text.cel == "'%d is 5 %% of %d'.format([((has(self.a)) ? self.a : 1), 20])"
