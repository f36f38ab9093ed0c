"""What a pattern of paths matches and cannot be read: `Path.glob` does not report it."""

import os
from collections.abc import Iterator
from fnmatch import fnmatchcase
from pathlib import Path

from megatron_contract.environment import DATA_DIR
from megatron_contract.preparation import PREPARED_FOLDER

PREPARED = Path(DATA_DIR, PREPARED_FOLDER)
"""What this command writes, for all recipes of a data volume: no pattern of a user's files means it."""


def left_out(folder: Path, pattern: str) -> str | None:
    """Return what `pattern` matches below `folder` and cannot be read, and the fix; None if all can be.

    It is the first of the folders whose entries may not be listed and the links to nothing. As in glob and in
    a shell, `**` does not follow links to folders, and wildcards do not enter hidden folders. What
    `is_prepared` is left out.
    """
    skipped = None if fixed(folder / pattern).is_relative_to(PREPARED) else PREPARED
    return next(_unread(folder, tuple(Path(pattern).parts), skipped), None)


def is_prepared(path: Path, pattern: Path) -> bool:
    """Return whether a match of `pattern`, which does not name the folder, is of what was prepared."""
    return path.is_relative_to(PREPARED) and not fixed(pattern).is_relative_to(PREPARED)


def fixed(pattern: Path) -> Path:
    """Return the folders of a pattern before its first wildcard."""
    parts = [index for index, part in enumerate(pattern.parts) if is_wild(part)]
    return Path(*pattern.parts[: parts[0]]) if parts else pattern.parent


def may_not_read(path: Path) -> bool:
    """Return whether this user may not read a file that exists, or not enter the folder that it is in."""
    if _may(path, os.F_OK):
        return not _may(path, os.R_OK)
    return _may(path.parent, os.F_OK) and not _may(path.parent, os.X_OK)


def _may(path: Path, mode: int) -> bool:
    return os.access(path, mode, effective_ids=True)


def _unread(folder: Path, parts: tuple[str, ...], skipped: Path | None) -> Iterator[str]:
    if folder == skipped:
        return
    first, rest = parts[0], parts[1:]
    if first == "**" and rest:
        yield from _unread(folder, rest, skipped)
    elif not is_wild(first):
        yield from _below(folder / first, rest, skipped)
        return
    try:
        with os.scandir(folder) as found:
            entries = sorted(found, key=lambda entry: entry.name)
    except PermissionError:
        yield f"{folder} may not be listed by user {os.geteuid()}; let this user read and enter it"
        return
    for entry in entries:
        hidden = entry.name.startswith(".") and not first.startswith(".")
        if hidden or not (first == "**" or fnmatchcase(entry.name, first)):
            continue
        if first != "**":
            yield from _below(Path(entry), rest, skipped)
        elif entry.is_dir(follow_symlinks=False):
            yield from _unread(Path(entry), parts, skipped)


def _below(path: Path, rest: tuple[str, ...], skipped: Path | None) -> Iterator[str]:
    """What is left out of an entry that matches all parts before `rest`."""
    try:
        if path.is_symlink() and not path.exists():
            lost = f"{path} is a link to {path.readlink()}, which does not exist"
            yield f"{lost}; copy the file there, or remove the link"
        enter = bool(rest) and path.is_dir()
    except PermissionError:
        yield f"{path} may not be read by user {os.geteuid()}; let this user enter the folders above it"
        return
    if enter:
        yield from _unread(path, rest, skipped)


def is_wild(part: str) -> bool:
    """Return whether a part of a pattern may match several names."""
    return any(sign in part for sign in "*?[")
