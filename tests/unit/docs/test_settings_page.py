"""Every row of docs/settings.md: accepted and rendered to an argument that Megatron reads, or refused."""

from typing import Any

import pytest
from megatron_operator import catalog
from megatron_operator.api.errors import InvalidRecipeError
from megatron_operator.api.validation import parse_spec
from megatron_operator.cli.default_platform import default_platform
from megatron_operator.planner.admission import admit
from megatron_operator.planner.checks.passthrough import megatron_flags, unread_flags

from scripts import settings_page

DATA = settings_page.load()
ROWS = {name: row for rows in DATA["sections"].values() for name, row in rows.items()}
SETTABLE = {name: row for name, row in ROWS.items() if "recipe" in row}


def added(base: dict[str, Any], more: dict[str, Any]) -> dict[str, Any]:
    both = {
        key: added(base[key], value)
        for key, value in more.items()
        if isinstance(value, dict) and isinstance(base.get(key), dict)
    }
    return base | more | both


def arguments(row: dict[str, Any], settings: dict[str, Any]) -> list[str]:
    spec = parse_spec(added(DATA["bases"][row.get("base", "dense")], settings))
    return admit("run", spec, default_platform(), catalog.load()).arguments


@pytest.mark.parametrize("row", SETTABLE.values(), ids=SETTABLE)
def test_a_setting_becomes_an_argument_of_megatron(row: dict[str, Any]) -> None:
    words = " ".join(arguments(row, row["recipe"]))
    assert f" {row['args']} " in f" {words} "


@pytest.mark.parametrize("row", SETTABLE.values(), ids=SETTABLE)
def test_the_arguments_are_flags_that_the_loop_reads(row: dict[str, Any]) -> None:
    flags = {word.removeprefix("--") for word in row["args"].split() if word.startswith("--")}
    assert flags
    assert flags <= megatron_flags().keys()
    assert not flags & unread_flags().keys()


@pytest.mark.parametrize("row", ROWS.values(), ids=ROWS)
def test_a_wrong_value_is_refused(row: dict[str, Any]) -> None:
    with pytest.raises(InvalidRecipeError) as refused:
        arguments(row, row["wrong"])
    assert str(refused.value.errors[0]).startswith(row["refusal"])


def test_the_page_has_these_rows() -> None:
    assert settings_page.PAGE.read_text() == settings_page.page(), "run make settings-page"
