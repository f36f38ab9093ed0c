"""`megatron recipes list`: filters, the error without a match, and its width on terminals and pipes."""

import fcntl
import json
import os
import pty
import struct
import subprocess
import sys
import termios

import pytest
from click.testing import CliRunner, Result
from megatron_operator import catalog
from megatron_operator.cli.main import cli
from megatron_operator.cli.tables import Column, format_table

LIST = [sys.executable, "-c", "from megatron_operator.cli.main import main; main()", "recipes", "list"]
BASE = {key: value for key, value in os.environ.items() if key not in ("COLUMNS", "NO_COLOR", "TERM")}


def recipes(*words: str, columns: int | None = None) -> Result:
    env = {"COLUMNS": None if columns is None else str(columns)}
    return CliRunner().invoke(cli, ["recipes", "list", *words], env=env, catch_exceptions=False)


def names(*words: str) -> list[str]:
    result = recipes(*words, "-o", "json")
    assert result.exit_code == 0, result.output
    return [entry["name"] for entry in json.loads(result.stdout)]


def on_terminal(columns: int, **variables: str) -> str:
    """What `recipes list --family llama3` prints on a terminal of this width."""
    leader, follower = pty.openpty()
    fcntl.ioctl(follower, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    with subprocess.Popen(
        [*LIST, "--family", "llama3"], stdout=follower, stderr=follower, env=BASE | variables
    ) as process:
        os.close(follower)
        printed = b""
        try:
            while block := os.read(leader, 4096):
                printed += block
        except OSError:  # the other end is closed
            pass
        assert process.wait() == 0
    os.close(leader)
    return printed.decode().replace("\r\n", "\n")


@pytest.mark.parametrize("columns", [80, 120])
def test_no_line_is_wider_than_asked_and_every_recipe_and_description_is_there(columns: int) -> None:
    lines = recipes(columns=columns).stdout.splitlines()
    assert max(map(len, lines)) <= columns
    everything = catalog.load()
    assert [line.split()[0] for line in lines[1:] if not line.startswith(" ")] == everything.names()
    text = "".join(line[lines[0].index("DESCRIPTION") :] for line in lines).replace(" ", "")
    assert all(each.description.replace(" ", "") in text for each in everything)


@pytest.mark.parametrize("columns", [80, 120])
def test_a_terminal_of_this_width_gets_lines_that_fit(columns: int) -> None:
    printed = on_terminal(columns, TERM="dumb")
    assert "llama3-8b" in printed
    assert max(map(len, printed.splitlines())) <= columns


def test_colors_are_for_terminals_without_no_color_and_dumb() -> None:
    assert "\x1b[1mNAME" in on_terminal(120, TERM="xterm")
    assert "\x1b" not in on_terminal(120, TERM="xterm", NO_COLOR="1")
    assert "\x1b" not in on_terminal(120, TERM="dumb")


def test_a_pipe_gets_one_line_per_recipe_with_all_columns() -> None:
    done = subprocess.run(LIST, capture_output=True, text=True, check=True, env=BASE | {"TERM": "xterm"})
    header, *lines = done.stdout.splitlines()
    assert header.split() == ["NAME", "FAMILY", "ENGINE", "MODES", "PUBLISHED", "LAYOUT", "DESCRIPTION"]
    assert len(lines) == len(catalog.load())
    assert "\x1b" not in done.stdout


def test_narrow_terminals_lose_optional_columns_before_the_description() -> None:
    columns = (Column("name"), Column("family", optional=True), Column("description"))
    rows = [("a", "b" * 30, "one two three four five six seven eight nine")]
    assert format_table(columns, rows, None)[1].endswith("eight nine")
    assert format_table(columns, rows, 40) == [
        "NAME  DESCRIPTION",
        "a     one two three four five six seven",
        "      eight nine",
    ]


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("--family", "mixtral"), lambda e: e.family == "mixtral"),
        (("--mode", "lora"), lambda e: "lora" in e.modes),
        (("--engine", "megatron"), lambda e: e.engine == "megatron"),
        (("--gpus", "64"), lambda e: any(x.count == 64 for x in e.layouts)),
        (("--accelerator", "H100"), lambda e: any("h100-sxm" in x.accelerators for x in e.layouts)),
        (
            ("--gpus", "64", "--accelerator", "b200"),
            lambda e: any(x.count == 64 and "b200" in x.accelerators for x in e.layouts),
        ),
        (("--search", "70B llama"), lambda e: "70b" in e.name and "llama" in e.name),
    ],
)  # fmt: skip
def test_a_filter_keeps_what_it_names(words: tuple[str, ...], expected: object) -> None:
    assert callable(expected)
    wanted = [entry.name for entry in catalog.load() if expected(entry)]
    found = names(*words)
    assert wanted
    assert set(wanted) <= set(found) if words[0] == "--search" else wanted == found
    assert len(found) < len(catalog.load())


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--family", "lama3"), "no recipe matches; drop --family lama3, which no recipe has; near: llama3"),
        (("--gpus", "7"), "drop --gpus 7, which no recipe has; near: 8"),
        (("--family", "mixtral", "--gpus", "1024"), "(5 recipes without it) or --gpus 1024 ("),
        (("--search", "no such words"), "drop --search no such words, which no recipe has"),
        (("--accelerator", "a100-40"), "drop --accelerator a100-40, which no recipe has; near: a100-80"),
    ],
)  # fmt: skip
def test_no_match_is_an_error_that_names_the_filter_to_drop(words: tuple[str, ...], message: str) -> None:
    refused = recipes(*words)
    assert (refused.exit_code, refused.stdout) == (2, "")
    assert message in refused.stderr


def test_of_several_filters_those_are_named_without_which_something_matches() -> None:
    refused = recipes("--family", "llama3", "--gpus", "48", "--mode", "pretrain")
    left = len(names("--family", "llama3", "--mode", "pretrain"))
    assert f"; drop --gpus 48 ({left} recipes without it)" in refused.stderr
    assert "--mode pretrain (" not in refused.stderr.split(";")[1]


def test_a_layout_of_a_function_that_starts_no_recipe_is_not_offered() -> None:
    assert names("--family", "step", "--gpus", "64") == ["step3.7-flash-sft"]
    refused = recipes("--family", "step", "--gpus", "4")
    assert refused.exit_code != 0
    (sft,) = json.loads(recipes("--search", "step3.7-flash-sft", "-o", "json").stdout)
    assert {layout["count"] for layout in sft["layouts"]} == {64}
    assert {layout.count for layout in catalog.load().get("step3.7-flash-sft").layouts} == {4, 64}
