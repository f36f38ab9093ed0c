"""Flags for `spec.megatronArgs`: those of the pinned Megatron, less those that its loop never reads."""

from collections.abc import Callable
from pathlib import Path

import megatron.training.training
import pytest
import reads
from megatron.core.tokenizers.utils.build_tokenizer import SUPPORTED_TOKENIZERS
from megatron_operator.planner.checks.tokenizer import OTHER_PROGRAMS, TOKENIZER_TYPES

DATA = Path(__file__).parents[2] / "operator" / "megatron_operator" / "planner" / "data"


def known() -> str:
    """One line per flag: its name and `switch`, `value` or `values`."""
    lines = []
    for action in reads.parser()._actions:
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


def value_types() -> str:
    """One line per flag with choices or a numeric type: its name, then `int`, `float` or choice|choice."""
    lines = {}
    for action in reads.parser()._actions:
        if action.nargs == 0:
            continue
        kind = {int: "int", float: "float"}.get(action.type)
        if action.choices is not None:
            kind = "|".join(str(choice) for choice in action.choices)
        for flag in action.option_strings:
            if kind is not None and flag.startswith("--"):
                lines[flag.removeprefix("--")] = kind
    return "".join(f"{flag} {kind}\n" for flag, kind in sorted(lines.items()))


def unread() -> str:
    """One line per flag that the training loop does not read, with the reason's name."""
    return "".join(f"{flag} {kind}\n" for flag, kind in sorted(reads.unread().items()))


@pytest.mark.parametrize(
    ("name", "made"), [("megatron_flags", known), ("flag_values", value_types), ("unread_flags", unread)]
)
def test_the_lists_match_the_pinned_megatron(
    request: pytest.FixtureRequest, name: str, made: Callable[[], str]
) -> None:
    file, text = DATA / f"{name}.txt", made()
    if request.config.getoption("--update-golden"):
        file.write_text(text)
    assert file.read_text() == text, "run pytest tests/megatron/test_known_flags.py --update-golden"


def test_flags_of_megatron_s_other_programs_are_listed_because_those_are_not_installed() -> None:
    assert not megatron.training.training.has_rl_utils
    # pretrain_gpt.py, which is not installed, builds packed samples and marks what the detector measures.
    text = "".join(path.read_text() for root in reads.ROOTS for path in root.rglob("*.py"))
    assert "with stimer" not in text
    assert "import SFTDataset" not in text


def test_flags_that_are_composed_at_run_time_are_read() -> None:
    unread_flags = reads.unread()
    assert not {"muon-momentum", "grad-reduce-in-bf16", "use-checkpoint-args"} & unread_flags.keys()
    assert unread_flags["fim-data"] == "loop"


def test_tokenizer_types_are_those_that_megatron_builds_from_text() -> None:
    assert {*TOKENIZER_TYPES, *OTHER_PROGRAMS} == set(SUPPORTED_TOKENIZERS)
