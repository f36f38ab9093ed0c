"""The known flags for `spec.megatronArgs` are those of the pinned Megatron."""

import argparse
from pathlib import Path

import pytest
from megatron.training.arguments import add_megatron_arguments

KNOWN = (
    Path(__file__).parents[2] / "operator" / "megatron_operator" / "planner" / "data" / "megatron_flags.txt"
)


def written() -> str:
    """One line per flag: its name and `switch`, `value` or `values`."""
    parser = add_megatron_arguments(argparse.ArgumentParser(allow_abbrev=False))
    lines = []
    for action in parser._actions:
        if action.nargs == 0:
            kind = "switch"
        elif action.nargs in ("+", "*") or isinstance(action.nargs, int):
            kind = "values"
        else:
            kind = "value"
        lines += [
            f"{flag.removeprefix('--')} {kind}" for flag in action.option_strings if flag.startswith("--")
        ]
    return "\n".join(sorted(set(lines) - {"help switch"})) + "\n"


def test_the_list_matches_the_pinned_megatron(request: pytest.FixtureRequest) -> None:
    if request.config.getoption("--update-golden"):
        KNOWN.write_text(written())
    assert KNOWN.read_text() == written(), "run pytest tests/megatron/test_known_flags.py --update-golden"
