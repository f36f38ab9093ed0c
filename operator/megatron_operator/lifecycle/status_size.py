"""Keeps the status under the size that the API server and etcd store without harm to others.

The caps where texts and lists enter the status keep it far below; this is the last resort for what they do
not foresee, such as a status that another version wrote.
"""

import json
from collections.abc import Callable
from typing import Any, Final

import orjson
from megatron_contract.limits import MAX_STRAGGLERS

MAX_STATUS_BYTES: Final = 100_000
"""Bytes of the status as the API server stores it."""
LONGEST_CONDITION: Final = 4096
"""Bytes of a condition's message; the CRD of conditions allows 32768 characters."""
LONGEST_CAUSE: Final = 400
"""Bytes of the cause of an incident."""
LONGEST_WARNING: Final = 400
"""Bytes of a warning's message."""
MAX_WARNINGS: Final = 16
"""Warnings in the status; each pod reports fewer."""
MAX_NODES: Final = 64
"""Nodes that a run avoids, and nodes whose failures are counted."""
MAX_NOTES: Final = 32
"""Number of notes of a plan."""
LARGEST_TOTAL: Final = 2**53
"""The largest sum over incidents."""

_SHORT: Final = 200
"""Bytes of a text after the last reduction."""
_FEW: Final = MAX_STRAGGLERS
"""Entries of a list after it; fewer slow ranks would be new again after each write."""
_SOME: Final = 64
"""Entries of a map after it."""

_ESCAPED: Final = (b"<", b">", b"&")
_SEPARATORS: Final = ("\u2028".encode(), "\u2029".encode())

Status = dict[str, Any]


def json_bytes(value: object) -> int:
    """Bytes of a value as JSON, as Go writes it: UTF-8, with `<`, `>` and `&` escaped."""
    try:
        text = orjson.dumps(value)
    except orjson.JSONEncodeError:
        # Half of a surrogate pair, or an integer of more than 64 bits.
        text = json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode(errors="replace")
    return len(text) + sum(map(text.count, _ESCAPED)) * 5 + sum(map(text.count, _SEPARATORS)) * 3


def cut(text: str, most: int) -> str:
    """The longest beginning of a text that has at most `most` bytes as JSON, without the quotes."""
    text = text[:most]
    if json_bytes(text) - 2 <= most:
        return text
    fits, exceeds = 0, len(text)
    while exceeds - fits > 1:
        middle = (fits + exceeds) // 2
        if json_bytes(text[:middle]) - 2 <= most:
            fits = middle
        else:
            exceeds = middle
    return text[:fits]


def cut_utf8(text: str, most: int) -> str:
    """The longest beginning of a text that has at most `most` bytes of UTF-8."""
    return text.encode(errors="replace")[:most].decode(errors="ignore")


def within_budget(status: Status) -> Status:
    """The status as JSON, without its least important parts if it would exceed MAX_STATUS_BYTES.

    `omitted` then names what was left out or cut, in addition to what it already names.
    """
    if json_bytes(status) <= MAX_STATUS_BYTES:
        return status
    omitted = list(status.get("omitted") or [])
    for name, reduce in _REDUCTIONS:
        reduced = reduce(status)
        if reduced != status:
            omitted = [*omitted, *([] if name in omitted else [name])]
            status = reduced | {"omitted": omitted}
        if json_bytes(status) <= MAX_STATUS_BYTES:
            break
    return status


def _changed(*path: str, to: Callable[[Any], Any]) -> Callable[[Status], Status]:
    """A reduction that changes the value at a path, where there is one; None removes it."""

    def reduce(status: Status) -> Status:
        name, *rest = path
        if name not in status:
            return status
        inner = _changed(*rest, to=to)(status[name]) if rest else to(status[name])
        changed = status | {name: inner}
        if inner is None:
            # An empty map would be refused: see MegatronRecipeStatus.wire.
            del changed[name]
        return changed

    return reduce


def _causes_cut(recovery: Any) -> Any:
    if isinstance(recovery, dict):
        return {
            key: cut(each, _SHORT)
            if key in ("cause", "firstCause", "lastCause", "reason") and isinstance(each, str)
            else _causes_cut(each)
            for key, each in recovery.items()
        }
    return [_causes_cut(each) for each in recovery] if isinstance(recovery, list) else recovery


def _messages_cut(conditions: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [each | {"message": cut(str(each.get("message", "")), 2 * _SHORT)} for each in conditions]


def _fullest_stage(memory: dict[str, Any]) -> dict[str, Any]:
    return memory | {"stages": [max(memory["stages"], key=lambda each: each["bytes"])]}


def _without_crossings(communication: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{key: value for key, value in each.items() if key != "crossings"} for each in communication]


def _slow_now(stragglers: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Those that are slow now: without them they would be new again, with another Event."""
    return [each for each in stragglers if each.get("until") is None][-MAX_STRAGGLERS:]


def _everything_cut(value: Any) -> Any:
    if isinstance(value, str):
        return cut(value, _SHORT)
    if isinstance(value, list):
        return [_everything_cut(each) for each in value[-_FEW:]]
    if isinstance(value, dict):
        return {cut(key, _SHORT): _everything_cut(each) for key, each in list(value.items())[:_SOME]}
    return value


_REDUCTIONS: Final[tuple[tuple[str, Callable[[Status], Status]], ...]] = (
    ("plan.notes", _changed("plan", "notes", to=lambda notes: notes[:0])),
    ("plan.communication.crossings", _changed("plan", "communication", to=_without_crossings)),
    ("memory", _changed("memory", to=_fullest_stage)),
    ("warnings", _changed("warnings", to=lambda warnings: warnings[:2])),
    ("stragglers", _changed("stragglers", to=_slow_now)),
    ("ledger.losses", _changed("ledger", "losses", to=lambda losses: losses[:8])),
    ("ledger.weeks", _changed("ledger", "weeks", to=lambda weeks: weeks[-8:])),
    ("recovery.history", _changed("recovery", "history", to=lambda history: history[-5:])),
    ("conditions", _changed("conditions", to=_messages_cut)),
    ("recovery.causes", _changed("recovery", to=_causes_cut)),
    # The newest stays: incidents are numbered from it.
    ("recovery.history", _changed("recovery", "history", to=lambda history: history[-1:])),
    ("recovery.nodeEvidence", _changed("recovery", "nodeEvidence", to=lambda _: None)),
    ("recovery.maintenance", _changed("recovery", "maintenance", to=lambda _: None)),
    ("recovery.nodeFailures", _changed("recovery", "nodeFailures", to=lambda _: None)),
    ("recovery.endedPods", _changed("recovery", "endedPods", to=lambda _: None)),
    ("recovery.placement", _changed("recovery", "placement", to=lambda _: None)),
    ("plan.stageLayers", _changed("plan", "stageLayers", to=lambda layers: layers[:0])),
    ("everything", _everything_cut),
)
"""Parts of the status and how they are reduced, the least important first."""
