"""Decides how to retry a failure that may recur: a bad loss, a crash within a step, an unreadable checkpoint.

First from the newest checkpoint again, since most failures are transient hardware faults. Then from an older
one, since the newest may contain the damage. Then, by the setting on_repeat, the failed iterations are
skipped or the run ends. The policy's memory is part of the run journal, and every branch is bounded: an
episode ends with a checkpoint beyond the failure or with a verdict.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from megatron_contract.exit_codes import ExitCode

from megatron_trainer.telemetry.incidents import FailureKind, FailureReport
from megatron_trainer.termination import Ending

# Number of failures in one episode, and of iterations skipped in one, after which the run ends.
MAX_TRIES = 6
MAX_SKIPPED = 10
# Number of consecutive checkpoints that are set aside as unreadable: with more, the checkpoints are hardly
# the cause.
MAX_UNREADABLE = 2


@dataclass(frozen=True)
class RestartPlan:
    """How the next generation starts.

    `start` is the iteration to resume from, None for the beginning; `skip` are iterations to leave out;
    `discard` are newer checkpoints to set aside; `verdict` ends the run instead.
    """

    start: int | None
    skip: tuple[int, ...] = ()
    discard: tuple[int, ...] = ()
    verdict: Ending | None = None
    why: str = ""


def plan_restart(
    memory: dict[str, Any],
    report: FailureReport | None,
    checkpoints: Sequence[int],
    train_iters: int | None,
    on_repeat: str,
) -> RestartPlan:
    """Decide how to restart, and update `memory` (JSON values; empty at the run's first start).

    `checkpoints`: iterations with a complete checkpoint, newest first. `train_iters`: iterations of the whole
    run. `on_repeat`: fail or skip.
    """
    _drop_malformed(memory)
    failed = None if report is None else report.failed_iteration
    # What the evaluation after the last save finds bad is in that checkpoint too.
    earlier = [each for each in checkpoints if failed is None or each < failed]
    newest = earlier[0] if earlier else None
    episode = memory.get("episode")
    if episode and newest is not None and newest >= episode["last"]:
        memory["episode"] = episode = None
    if report is not None and report.unreadable is not None:
        return _retry_unreadable(memory, report.unreadable, report.cause, checkpoints)
    if newest is not None and newest > max(map(int, memory.get("unreadable", {})), default=newest):
        del memory["unreadable"]
    if report is None or failed is None:
        return _resume(memory, newest)
    if checkpoints and newest is None:
        return _end_run(f"{report.cause}; there is no checkpoint of an earlier iteration")
    episode = memory["episode"] = _updated_episode(episode, report, newest)
    if episode["tries"] == 1:
        return _resume(memory, newest, checkpoints, "the newest checkpoint again")
    older = next((each for each in checkpoints if each < episode["starts"][0]), None)
    if episode["tries"] == 2 and older is not None:
        episode["starts"].append(older)
        return _resume(memory, older, checkpoints, "an older checkpoint")
    return _skip_or_end(memory, report, checkpoints, train_iters, on_repeat)


def _drop_malformed(memory: dict[str, Any]) -> None:
    """Remove what this version cannot have written: the journal is a file on a volume."""
    episode = memory.get("episode")
    if episode is not None and not (
        isinstance(episode, dict)
        and {"kind", "rank"} <= episode.keys()
        and all(_is_count(episode.get(key)) for key in ("first", "last", "tries"))
        and _are_counts(episode.get("starts"))
        and episode["starts"]
    ):
        del memory["episode"]
    if not _are_counts(memory.get("skip", [])):
        del memory["skip"]
    unreadable = memory.get("unreadable", {})
    if not isinstance(unreadable, dict) or not all(
        re.fullmatch("[0-9]{1,18}", key) and _is_count(tries) for key, tries in unreadable.items()
    ):
        del memory["unreadable"]


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 63


def _are_counts(value: object) -> bool:
    return isinstance(value, list) and all(map(_is_count, value))


def _retry_unreadable(
    memory: dict[str, Any], iteration: int, cause: str, checkpoints: Sequence[int]
) -> RestartPlan:
    """Retry the same checkpoint once, then the one before it. Never discard all, never start from nothing."""
    counts = memory.setdefault("unreadable", {})
    counts[str(iteration)] = counts.get(str(iteration), 0) + 1
    if counts[str(iteration)] == 1:
        return _resume(memory, checkpoints[0] if checkpoints else None, why="the newest checkpoint again")
    older = next((each for each in checkpoints if each < iteration), None)
    if older is None:
        return _end_run(f"{cause}; there is no older one", ExitCode.NO_CHECKPOINT)
    if len(counts) > MAX_UNREADABLE:
        tried = ", ".join(sorted(counts, key=int))
        return _end_run(f"{cause}; none of the checkpoints {tried} can be loaded", ExitCode.NO_CHECKPOINT)
    return _resume(memory, older, checkpoints, f"checkpoint {iteration} cannot be loaded: an older one")


def _updated_episode(
    episode: dict[str, Any] | None, report: FailureReport, newest: int | None
) -> dict[str, Any]:
    """Return the episode with `report` added, or a new one if this is another failure.

    Any bad loss continues an episode of bad losses; a crash must recur on the same rank and iteration.
    """
    failed = report.failed_iteration
    assert failed is not None
    same = episode is not None and (
        (report.kind is FailureKind.LOSS and episode["kind"] == FailureKind.LOSS)
        or (report.kind == episode["kind"] and (report.rank, failed) == (episode["rank"], episode["last"]))
    )
    if episode is None or not same:
        return {
            "kind": str(report.kind),
            "rank": report.rank,
            "first": failed,
            "last": failed,
            "tries": 1,
            "starts": [newest or 0],
        }
    return episode | {
        "first": min(failed, episode["first"]),
        "last": max(failed, episode["last"]),
        "tries": episode["tries"] + 1,
    }


def _skip_or_end(
    memory: dict[str, Any],
    report: FailureReport,
    checkpoints: Sequence[int],
    train_iters: int | None,
    on_repeat: str,
) -> RestartPlan:
    """Skip the failed iterations from the oldest start of the episode, or end the run."""
    episode = memory["episode"]
    starts = [f"iteration {start}" if start else "the beginning" for start in episode["starts"]]
    history = f"{report.cause}; failed {episode['tries']} times, starting from {' and '.join(starts)}"
    if on_repeat != "skip":
        return _end_run(f"{history}; onRepeat is fail")
    skipped = range(episode["first"], episode["last"] + 1)
    if episode["tries"] >= MAX_TRIES or len(skipped) > MAX_SKIPPED:
        return _end_run(f"{history}; skipping up to {len(skipped)} iterations did not help")
    if train_iters is not None and episode["last"] >= train_iters:
        return _end_run(f"{history}; the last iteration cannot be skipped")
    memory["skip"] = sorted({*memory.get("skip", []), *skipped})
    before = next((each for each in checkpoints if each <= min(episode["starts"])), None)
    what = f"iterations {skipped[0]} to {skipped[-1]}" if len(skipped) > 1 else f"iteration {skipped[0]}"
    return _resume(memory, before, checkpoints, f"skipping {what}")


def _end_run(message: str, code: ExitCode = ExitCode.LOSS_NOT_FINITE) -> RestartPlan:
    return RestartPlan(None, verdict=Ending(code, message))


def _resume(
    memory: dict[str, Any], start: int | None, checkpoints: Sequence[int] = (), why: str = ""
) -> RestartPlan:
    return RestartPlan(
        start,
        skip=tuple(each for each in memory.get("skip", []) if each > (start or 0)),
        discard=tuple(each for each in checkpoints if each > (start or 0)),
        why=why,
    )
