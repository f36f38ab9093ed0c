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
        ("accelerators: [", "platform.yaml: is not YAML"),
        ("acceleratorz: {}", "platform.yaml.acceleratorz: Extra inputs are not permitted"),
        (
            "accelerators: {h100: {perNode: 0}}",
            "platform.yaml.accelerators.h100.perNode: Input should be greater",
        ),
        ("- a\n- list", "platform.yaml: Input should be"),
    ],
)
def test_an_invalid_field_is_named_with_where_to_fix_it(text: str, message: str) -> None:
    with pytest.raises(InvalidRecipeError) as error:
        parse_platform(text, SOURCE)
    assert message in str(error.value)
    assert f"correct it in {SOURCE}" in str(error.value)
