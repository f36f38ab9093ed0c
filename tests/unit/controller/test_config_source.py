"""The platform file: every invalid field is named, with where to fix it."""

import pytest
from megatron_operator.api.errors import InvalidRecipeError
from megatron_operator.controller.config_source import parse_platform

SOURCE = "ConfigMap megatron-system/megatron-platform"


def test_an_empty_file_is_an_empty_platform() -> None:
    assert parse_platform("", SOURCE).accelerators == {}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("accelerators: [", "platform.yaml: invalid YAML in line 2"),
        ("acceleratorz: {}", "platform.yaml.acceleratorz: unknown field; did you mean `accelerators`?"),
        ("accelerators: {h100: {perNode: 0}}", "platform.yaml.accelerators.h100.perNode: 0 is below 1"),
        ("queue: a\nqueue: b", "platform.yaml: invalid YAML in line 2: duplicate key 'queue'"),
        ("[" * 100_000, "platform.yaml: invalid YAML in line 1: more than"),
        ("false", "platform.yaml: False is not an object"),
        ("- a\n- list", "platform.yaml: ['a', 'list'] is not an object"),
    ],
)
def test_an_invalid_field_is_named_with_where_to_fix_it(text: str, message: str) -> None:
    with pytest.raises(InvalidRecipeError) as error:
        parse_platform(text, SOURCE)
    assert message in str(error.value)
    assert f"correct it in {SOURCE}" in str(error.value)
