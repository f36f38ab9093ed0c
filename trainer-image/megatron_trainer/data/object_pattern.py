"""Which keys of a bucket a pattern means: the rules are those of files on a volume."""

from collections.abc import Sequence
from fnmatch import fnmatchcase

_WILDCARDS = "*?["


def split(pattern: str) -> tuple[list[str], int]:
    """Return the parts of a pattern between slashes, and how many of them come before its first wildcard.

    The last part is never counted. Raises ValueError if `**` is not alone in its part.
    """
    parts = pattern.split("/")
    for part in parts:
        if "**" in part and part != "**":
            raise ValueError("'**' can only be an entire path component")
    fixed = 0
    while fixed < len(parts) - 1 and not any(sign in parts[fixed] for sign in _WILDCARDS):
        fixed += 1
    return parts, fixed


def prefix(pattern: str) -> str:
    """Return what all keys that match begin with."""
    return pattern[
        : min((at for sign in _WILDCARDS if (at := pattern.find(sign)) >= 0), default=len(pattern))
    ]


def matches(key: str, parts: Sequence[str], fixed: int) -> bool:
    """Return whether a key matches a pattern, as `split` returns it.

    A key with a hidden part below the fixed ones does not, unless the pattern has one too.
    """
    names = key.split("/")
    hidden = any(part.startswith(".") for part in parts)
    if not hidden and any(name.startswith(".") for name in names[fixed:]):
        return False
    # Numbers of the parts that may come next: `**` is for any number of names.
    places = _with_skipped({0}, parts)
    for name in names:
        reached = {
            place if parts[place] == "**" else place + 1 for place in places if _takes(parts, place, name)
        }
        places = _with_skipped(reached, parts)
    return len(parts) in places


def _takes(parts: Sequence[str], place: int, name: str) -> bool:
    return place < len(parts) and (parts[place] == "**" or fnmatchcase(name, parts[place]))


def _with_skipped(places: set[int], parts: Sequence[str]) -> set[int]:
    """The places with those behind each `**`, which may be for no name."""
    found = set(places)
    for place, part in enumerate(parts):
        if part == "**" and place in found:
            found.add(place + 1)
    return found
