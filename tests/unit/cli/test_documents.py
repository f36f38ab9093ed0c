"""Errors of files that commands read."""

from collections.abc import Callable
from pathlib import Path

import pytest
from megatron_operator.cli.documents import parse_value, read_recipes, read_yaml
from megatron_operator.cli.errors import CommandError


def test_an_invalid_override_names_the_option() -> None:
    with pytest.raises(CommandError, match="--set: invalid YAML in line 1: duplicate key 'a'; correct"):
        parse_value("{a: 1, a: 2}")


@pytest.mark.parametrize("read", [read_yaml, read_recipes])
def test_an_invalid_file_is_named_with_its_line(read: Callable[[Path], object], tmp_path: Path) -> None:
    path = tmp_path / "recipe.yaml"
    path.write_text("kind: MegatronRecipe\nspec: {a: 1, a: 2}\n")
    with pytest.raises(
        CommandError, match=r"recipe\.yaml: invalid YAML in line 2: duplicate key 'a'; correct"
    ):
        read(path)
