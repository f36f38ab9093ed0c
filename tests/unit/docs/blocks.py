"""Code blocks of the pages: where they stand, their commands, and which of them no test runs."""

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[3]
PAGES = sorted(
    [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "charts").rglob("*.md")],
)

NOT_COMMANDS = {
    "    4. Train, and kill a pod on the way": "output of `make demo`, which needs root and minutes",
    "megatron-train (launcher) ": "a drawing of processes",
    "- name: init-pytorch": "a Go template, which only the training-operator renders",
    "apiVersion: networking.k8s.io/v1": "a policy of a namespace, which is no object of this project",
}
"""Start of the first line of a block that is neither YAML of ours nor commands -> what it is."""

NEEDS = {
    "docker": "needs docker and an image registry",
    "helm": "needs a cluster; the chart and values are rendered by these tests",
    "kubectl": "needs a cluster",
    ".cluster/bin/kubectl": "needs the local cluster",
    "megatron-prepare": "runs in the trainer's image, with torch",
    "megatron-train": "runs in the trainer's image, with torch",
}
"""Programs of commands that are parsed but not run -> the reason."""


@dataclass(frozen=True, slots=True)
class Block:
    """A fenced or an indented block of a page."""

    page: Path
    language: str
    text: str

    @property
    def title(self) -> str:
        """Page and first line."""
        return f"{self.page.relative_to(ROOT)}: {self.text.splitlines()[0].strip():.50}"


@dataclass(frozen=True, slots=True)
class Command:
    """A command of a block; `output` is None where the page shows none."""

    block: Block
    line: str
    output: str | None = None

    @property
    def words(self) -> list[str]:
        """The words as a shell splits them, `kubectl megatron` as `megatron`."""
        words = shlex.split(self.line, comments=True)
        return words[1:] if words[:2] == ["kubectl", "megatron"] else words


def blocks() -> Iterator[Block]:
    """Every block of every page; drawings in mermaid are none."""
    for page in PAGES:
        text = page.read_text()
        for language, content in re.findall(r"^ *```(\w*)\n(.*?)^ *```", text, re.MULTILINE | re.DOTALL):
            if language != "mermaid":
                yield Block(page, language, content)
        prose = re.sub(r"^ *```.*?^ *```", "", text, flags=re.MULTILINE | re.DOTALL)
        for content in re.findall(r"(?:^\n)((?:^ {4}.*\n)+)", prose, re.MULTILINE):
            yield Block(page, "", content)


def is_prose(block: Block) -> bool:
    """Whether the block is listed as no commands, or lists folders."""
    return block.text.startswith(tuple(NOT_COMMANDS)) or is_tree(block)


def is_tree(block: Block) -> bool:
    """Whether the block lists the repository's folders."""
    return bool(re.match(r" {4}contract/", block.text))


def commands(block: Block) -> Iterator[Command]:
    """The commands of a block, with continued lines and loops in one; `$ ` marks commands with output."""
    text = re.sub(r"\\\n\s*", " ", block.text)
    if re.search(r"^\$ ", text, re.MULTILINE):
        for each in re.split(r"^\$ ", text, flags=re.MULTILINE)[1:]:
            line, _, output = each.partition("\n")
            yield Command(block, line, output or None)
        return
    open_lines: list[str] = []
    for line in re.sub(r"; do\n(.*?)\ndone", r"; do \1; done", text, flags=re.DOTALL).splitlines():
        open_lines.append(line)
        command = "\n".join(open_lines).strip()
        if _is_complete(command):
            open_lines = []
            if command:
                yield Command(block, command)
    if open_lines:
        raise ValueError(f"{block.title}: a quote is not closed")


def _is_complete(command: str) -> bool:
    """Whether all quotes are closed; a quoted word may have several lines."""
    try:
        shlex.split(command, comments=True)
    except ValueError:
        return False
    return True


def spans() -> Iterator[tuple[Path, str]]:
    """Commands of the CLI within sentences and tables."""
    for page in PAGES:
        prose = re.sub(r"^ *```.*?^ *```", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
        for text in re.findall(r"`((?:kubectl )?megatron [a-z][^`]*)`", prose):
            yield page, text
