"""docs/troubleshooting.md quotes messages that the sources have, and names conditions that exist."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from megatron_operator.api.pod_warnings import PodWarning
from megatron_operator.api.reasons import Reason

ROOT = Path(__file__).parents[3]
PAGE = ROOT / "docs" / "troubleshooting.md"
VALUE = "\N{HORIZONTAL ELLIPSIS}"
SOURCES = (ROOT / "operator" / "megatron_operator", ROOT / "trainer-image" / "megatron_trainer")


def messages() -> list[str]:
    """The second cells of the page's tables of symptoms."""
    rows = [line.split(" | ") for line in PAGE.read_text().splitlines() if line.startswith("|")]
    return [row[1] for row in rows if len(row) == 4 and row[1] not in ("message", "---")]


def quoted() -> list[str]:
    cells = [re.sub(r"(condition|warning) `\w+`( or `\w+`)?", "", cell) for cell in messages()]
    return [text for cell in cells for text in re.findall(r"`([^`]+)`", cell) if "=" not in text]


def literals() -> Iterator[str]:
    """Every string of the sources; values of f-strings are the ellipsis."""
    for path in (path for folder in SOURCES for path in folder.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.JoinedStr):
                yield "".join(str(p.value) if isinstance(p, ast.Constant) else VALUE for p in node.values)
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                yield node.value


@pytest.fixture(scope="module")
def known() -> list[str]:
    return list(literals())


def test_the_page_quotes_messages() -> None:
    assert len(quoted()) >= 12


@pytest.mark.parametrize("message", quoted())
def test_a_quoted_message_is_one_of_the_product(message: str, known: list[str]) -> None:
    parts = [re.escape(part.strip()) for part in message.split(VALUE) if part.strip(" .,:()")]
    assert parts
    pattern = re.compile(".*".join(parts), re.DOTALL)
    assert any(pattern.search(text) for text in known), message


def test_conditions_and_warnings_of_the_page_exist() -> None:
    named = re.findall(r"(?:condition|warning) `(\w+)`(?: or `(\w+)`)?", " ".join(messages()))
    names = {name for pair in named for name in pair if name}
    assert len(names) >= 10
    assert names <= {*map(str, Reason), *map(str, PodWarning)}
