"""The log of the pod that failed first, from around the failure: it may train again since."""

import asyncio
from collections import deque
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass
from typing import Final

from megatron_operator.api.times import seconds, timestamp
from megatron_operator.cli.first_failure import DETECTED_WITHIN, FailedPod
from megatron_operator.controller.api_client import ApiError
from megatron_operator.sdk.connection import AsyncConnection
from megatron_operator.sdk.errors import ClusterUnreachableError

LINES: Final = 80
"""Lines of the log before the failure, and as many after it."""
LOG_SECONDS: Final = 10.0
"""Seconds in which a log is read: the kubelet of a lost node does not answer."""
_AFTER: Final = 60.0
"""Seconds after a failure in which its log is read: stacks of a hang follow its detection."""
_ROUNDED: Final = 1.0
"""Times in a status are whole seconds."""
_BYTES: Final = 16 << 20
"""Of a log at most: lines may be as long as a program likes."""
_LONGEST_LINE: Final = 2000


@dataclass(frozen=True, slots=True)
class FailureLog:
    """The pod that failed first, and its log."""

    pod: str
    why: str
    part: str
    """Which part of the log it is, or why there is none: a sentence."""
    text: str | None


async def read_failure_log(connection: AsyncConnection, namespace: str, failed: FailedPod) -> FailureLog:
    """The log around the failure; its end where the container ended, nothing where the pod was replaced."""
    if failed.replaced:
        return _without(failed, "The log of the failure is gone with the pod that wrote it.")
    at = seconds(failed.time)
    ends = failed.exited or at is None
    log = connection.log(
        namespace,
        failed.pod,
        previous=failed.previous,
        tail=LINES if ends else None,
        since=None if ends or at is None else timestamp(at - DETECTED_WITHIN),
        limit_bytes=_BYTES,
        timestamps=True,
    )
    try:
        async with asyncio.timeout(LOG_SECONDS):
            if ends or at is None:
                async with aclosing(log) as lines:
                    found = list(deque([line[:_LONGEST_LINE] async for line in lines], LINES))
            else:
                found = await _around(log, at)
    except TimeoutError:
        return _without(failed, f"Reading its log took more than {LOG_SECONDS:.0f} s.")
    except (ApiError, ClusterUnreachableError) as error:
        return _without(failed, f"Its log cannot be read: {error}.")
    if not found:
        return _without(failed, "Its node does not have the log of that time any more.")
    part = "The end of its log." if ends else f"Its log around {failed.time}."
    return FailureLog(failed.pod, failed.why, part, "\n".join(found))


def _without(failed: FailedPod, part: str) -> FailureLog:
    return FailureLog(failed.pod, failed.why, part, None)


async def _around(log: AsyncGenerator[str], failed_at: float) -> list[str]:
    """The last lines up to a time, and the first ones after it."""
    before: deque[str] = deque(maxlen=LINES)
    after: list[str] = []
    time = 0.0
    async with aclosing(log) as lines:
        async for line in lines:
            # A line that a limit has cut may have no time.
            time = seconds(line.partition(" ")[0]) or time
            if time > failed_at + _AFTER or len(after) == LINES:
                break
            (before if time <= failed_at + _ROUNDED else after).append(line[:_LONGEST_LINE])
    return [*before, *after]
