"""Errors of files that commands read."""

import shlex
from collections.abc import Callable
from pathlib import Path

import pytest
from megatron_operator.cli.documents import parse_value, read_recipes, read_yaml
from megatron_operator.cli.errors import CommandError


def test_an_invalid_override_is_named_with_its_value() -> None:
    expected = r"--set env: '\{a: 1, a: 2\}': invalid YAML in line 1: duplicate key 'a'; correct the value"
    with pytest.raises(CommandError, match=expected):
        parse_value("env", "{a: 1, a: 2}")


@pytest.mark.parametrize("text", ["**/*.txt", "*😀", "@a", "a: b: c", "it's: a: b", "*\\'\"\t"])
def test_a_text_that_yaml_does_not_take_is_printed_in_quotes(text: str) -> None:
    with pytest.raises(CommandError) as refused:
        parse_value("data.prepare.include", text)
    [error] = refused.value.errors
    assert error.field == "--set data.prepare.include"
    assert error.message.startswith(f"{text!r}: invalid YAML in line 1: ")
    option, override = shlex.split(error.fix.removeprefix("write a text in quotes: "))
    path, _, value = override.partition("=")
    assert (option, path, parse_value(path, value)) == ("--set", "data.prepare.include", text)


@pytest.mark.parametrize("read", [read_yaml, read_recipes])
def test_an_invalid_file_is_named_with_its_line(read: Callable[[Path], object], tmp_path: Path) -> None:
    path = tmp_path / "recipe.yaml"
    path.write_text("kind: MegatronRecipe\nspec: {a: 1, a: 2}\n")
    with pytest.raises(
        CommandError, match=r"recipe\.yaml: invalid YAML in line 2: duplicate key 'a'; correct"
    ):
        read(path)


@pytest.mark.parametrize("kind", ["List", "MegatronRecipeList"])
def test_the_recipes_of_a_list_are_read(kind: str, tmp_path: Path) -> None:
    """As `kubectl get megatronrecipes -o yaml` prints them."""
    path = tmp_path / "list.yaml"
    items = "".join(
        f"- {{kind: {each}, metadata: {{name: a}}}}\n" for each in ("ConfigMap", "MegatronRecipe")
    )
    path.write_text(f"apiVersion: v1\nkind: {kind}\nitems:\n{items}")
    assert read_recipes(path) == [{"kind": "MegatronRecipe", "metadata": {"name": "a"}}]


@pytest.mark.parametrize(("items", "found"), [("[]", "nothing"), ("[{kind: Pod}]", "Pod"), ("7", "List")])
def test_a_list_without_recipes_is_refused(items: str, found: str, tmp_path: Path) -> None:
    path = tmp_path / "list.yaml"
    path.write_text(f"kind: List\nitems: {items}\n")
    with pytest.raises(CommandError, match=rf"has no MegatronRecipe \(found: {found}\)"):
        read_recipes(path)


def test_a_name_that_a_list_repeats_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "list.yaml"
    path.write_text("kind: List\nitems: [&a {kind: MegatronRecipe, metadata: {name: a}}, *a]\n")
    with pytest.raises(CommandError, match="has two recipes 'a' in one namespace"):
        read_recipes(path)
