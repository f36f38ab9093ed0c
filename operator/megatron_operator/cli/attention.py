"""What of a run needs attention, for `megatron status` and the web page."""

from collections.abc import Iterator
from typing import Any, Final

from megatron_operator.api.conditions import TRAINS, Condition, Phase
from megatron_operator.api.status import Straggler
from megatron_operator.lifecycle.status_reading import read_status
from megatron_operator.lifecycle.stragglers import describe

Object = dict[str, Any]
_EXPECTED: Final = dict.fromkeys(
    (Condition.PLANNED, Condition.IMPORTED, Condition.PREPARED, Condition.RUNNING, Condition.EXPORTED), "True"
)
"""Conditions of a run without trouble; the others are reported while they are True."""
_SUMMARIES: Final = (Condition.READY, Condition.STALLED)
"""They repeat other conditions."""
_GOES_ON: Final = TRAINS | {Phase.SUCCEEDED, Phase.SUSPENDED}
"""Phases of runs that do not wait for anything."""
_TRAINS_NO_LONGER: Final = frozenset({Phase.SUCCEEDED, Phase.SUSPENDED, Phase.EXPORTING})
"""Phases in which Running is false of a run without trouble."""


def attention(status: Object) -> Iterator[tuple[str, str]]:
    """Label and text of conditions that are not those of a run without trouble, slow ranks, and warnings."""
    for condition in _conditions(status):
        head = _head(condition)
        yield "condition", f"{head}: {condition.get('message') or ''}".rstrip(": ")
    slow = [each for each in stragglers(status) if not each.until]
    for pod in dict.fromkeys(each.pod for each in slow):
        yield "slow", describe([each for each in slow if each.pod == pod])
    for warning in status.get("warnings") or []:
        yield "warning", f"{warning['reason']}: {warning['message']}"


def stragglers(status: Object) -> list[Straggler]:
    """The slow ranks of a status, as far as this version knows their fields."""
    return read_status({"stragglers": status.get("stragglers")})[0].stragglers or []


def reason_to_wait(status: Object) -> str | None:
    """Reason and message of the condition for which a run does not train; None for one that goes on."""
    if status.get("phase") in _GOES_ON:
        return None
    for condition in _conditions(status):
        found = (condition.get("reason") or "", condition.get("message") or "")
        return ": ".join(filter(None, found)) or None
    return None


def _conditions(status: Object) -> Iterator[Object]:
    over = status.get("phase") in _TRAINS_NO_LONGER
    for condition in status.get("conditions") or []:
        kind, value = condition["type"], condition["status"]
        if kind in _SUMMARIES or (over and kind == Condition.RUNNING):
            continue
        if value != _EXPECTED.get(kind, "False") and kind != Condition.SUCCEEDED:
            yield condition


def _head(condition: Object) -> str:
    kind, reason = condition["type"], condition.get("reason") or ""
    name = kind if condition["status"] == "True" else f"not {kind}"
    return name if reason in ("", kind) else f"{name} ({reason})"
