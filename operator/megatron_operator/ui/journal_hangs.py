"""The stacks of hangs that the trainer leaves in a checkpoint directory: the main threads of the ranks."""

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from megatron_contract.environment import HANGS_FOLDER
from megatron_contract.limits import Text

from megatron_operator.ui.journal_files import MAX_FILE, open_regular, shown, unreadable

MAX_HANGS: Final = 3
"""Hangs that are shown, the newest; the trainer keeps as many."""
MAX_PODS: Final = 2
"""Pods of each: that of the rank for which the others waited, and the first of the others."""
MAX_TEXT: Final = 32 << 10
"""Characters of a pod."""
_NAME: Final = re.compile(r"(\d{8}T\d{6}Z)-generation-(\d{1,9})")
_FILE: Final = re.compile(r"node-(\d{1,6})\.txt")
_RANK: Final = re.compile(r"rank \d+ \(pid \d+\): ")
_MAX_ENTRIES: Final = 10_000


@dataclass(frozen=True, slots=True)
class PodStacks:
    """The main threads of one pod's ranks."""

    node_rank: int
    text: str
    problem: str | None = None
    """Why there are none."""


@dataclass(frozen=True, slots=True)
class HangStacks:
    """One hang."""

    time: str
    """When the stacks were requested, as people read it."""
    path: str
    """The folder with all of them."""
    pods: tuple[PodStacks, ...]
    total: int
    """Pods that have left theirs."""


def find_hangs(directory: Path, stalled: Mapping[int, int]) -> tuple[HangStacks, ...]:
    """The newest hangs of a checkpoint directory, newest first; none where it has none or cannot be read.

    `stalled`: number of the generation that a hang ended -> node rank of the rank that was waited for.
    """
    try:
        names = _names(directory / HANGS_FOLDER, _NAME)
    except OSError:
        return ()
    found = []
    for name in sorted(names, reverse=True)[:MAX_HANGS]:
        match = _NAME.fullmatch(name)
        assert match is not None
        found.append(_hang(directory / HANGS_FOLDER / name, match[1], stalled.get(int(match[2]))))
    return tuple(found)


def _names(folder: Path, form: re.Pattern[str]) -> list[str]:
    with os.scandir(folder) as entries:
        some = [each.name for _, each in zip(range(_MAX_ENTRIES), entries, strict=False)]
    return [name for name in some if form.fullmatch(name)]


def _hang(folder: Path, stamp: str, stalled: int | None) -> HangStacks:
    try:
        time = f"{datetime.strptime(stamp, '%Y%m%dT%H%M%SZ').replace(tzinfo=UTC):%Y-%m-%d %H:%M:%S} UTC"
    except ValueError:
        time = stamp
    try:
        names = _names(folder, _FILE)
    except OSError as error:
        return HangStacks(time, shown(folder), (PodStacks(0, "", str(unreadable(folder, error))),), 0)
    nodes = {int(match[1]): name for name in names if (match := _FILE.fullmatch(name))}
    ordered = sorted(nodes, key=lambda node: (node != stalled, node))
    pods = tuple(_pod(node, folder / nodes[node]) for node in ordered[:MAX_PODS])
    return HangStacks(time, shown(folder), pods, len(nodes))


def _pod(node: int, path: Path) -> PodStacks:
    try:
        with open_regular(path) as file:
            content = file.read(MAX_FILE)
    except OSError as error:
        return PodStacks(node, "", str(unreadable(path, error)))
    text = _main_threads(content.decode(errors="replace"))
    return PodStacks(node, text, None if text else f"{shown(path)} has no stack")


def _main_threads(text: str) -> str:
    """The line of each rank, and what follows it up to an empty line: its main thread."""
    found, inside = [], False
    for line in text.splitlines():
        inside = bool(line) and (inside or _RANK.match(line) is not None)
        if inside:
            found.append(line)
    return str(Text(MAX_TEXT).fit("\n".join(found)))
