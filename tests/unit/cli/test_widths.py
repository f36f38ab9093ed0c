"""What commands print fits 80 and 120 columns; a pipe has whole lines; colours can be off."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner
from megatron_operator.cli.main import cli

MEGATRON = Path(sys.executable).parent / "megatron"
COMMANDS = [
    "plan --recipe llama3-70b --gpus 64 --accelerator h100-sxm --price 2.5",
    "plan --recipe llama3-8b --gpus 2048",
    "plan --recipe mixtral-8x7b --gpus 24",
    "recommend --model llama3 --gpus 64",
    "recommend --model qwen3-32b --gpus 2 --mode sft",
    "diff --recipe qwen3_235b_a22b_pretrain_256gpu_gb200_fp8mx_config --gpus 256 --accelerator gb200",
]


def printed(command: str, **environment: str) -> list[str]:
    """Lines on standard output, which is no terminal."""
    unset = dict.fromkeys(("COLUMNS", "NO_COLOR", "TERM"))
    done = CliRunner().invoke(cli, command.split(), env=unset | environment, catch_exceptions=False)
    assert done.exit_code in (0, 1, 2), done.stderr
    return done.stdout.splitlines()


@pytest.mark.parametrize("width", [80, 120])
@pytest.mark.parametrize("command", COMMANDS)
def test_no_line_is_longer_than_the_terminal(command: str, width: int) -> None:
    lines = printed(command, COLUMNS=str(width))
    # A command line is printed in one piece, to be copied.
    assert [line for line in lines if len(line) > width and not line.startswith("Next: ")] == []


@pytest.mark.parametrize("command", COMMANDS)
def test_a_pipe_has_one_line_for_each_statement_and_no_colour(command: str) -> None:
    lines = printed(command)
    assert "\x1b" not in "".join(lines)
    assert max(map(len, lines)) > 80
    assert printed(command, COLUMNS="1000") == lines


def test_the_command_prints_the_same_into_a_pipe() -> None:
    plain = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "NO_COLOR", "TERM")}
    command = [MEGATRON, *COMMANDS[0].split()]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=plain)
    assert done.stdout.splitlines() == printed(COMMANDS[0])


@pytest.mark.parametrize("environment", [{"NO_COLOR": "1", "TERM": "xterm"}, {"TERM": "dumb"}])
def test_a_terminal_without_colours_gets_none(environment: dict[str, str]) -> None:
    """`script` gives the command a terminal."""
    command = f"{MEGATRON} {COMMANDS[0]}"
    plain = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "NO_COLOR", "TERM")}

    def run(more: dict[str, str]) -> str:
        return subprocess.run(
            ["script", "-qec", command, "/dev/null"],
            capture_output=True, text=True, check=True, stdin=subprocess.DEVNULL, env=plain | more,
        ).stdout  # fmt: skip

    assert "\x1b[" in run({"TERM": "xterm"})
    assert "\x1b[" not in run(environment)
