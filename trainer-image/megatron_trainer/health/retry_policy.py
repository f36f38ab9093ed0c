"""What to do about a failure that may come again: a bad loss, a crash within a step, a checkpoint that cannot
be loaded.

First the newest checkpoint once more, since most failures are the machine's. Then an older one, since the
damage may lie in the newest. Then, as asked, leave the iterations out or end the run. The memory of it lies
in the book of the run, and every branch is bounded: an episode ends when a checkpoint beyond the failure is
saved, or with a verdict.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from megatron_contract.exit_codes import ExitCode

from megatron_trainer.launcher.termination import Ending
from megatron_trainer.telemetry.incidents import Kind, Report

# Failures in one episode, and iterations left out in one, after which the run ends.
MAX_TRIES = 6
MAX_SKIPPED = 10
# Checkpoints in a row that are set aside because they cannot be loaded: more are hardly their own fault.
MAX_UNREADABLE = 2


@dataclass(frozen=True)
class Course:
    """Where the next generation starts. `discard` are newer checkpoints that it must not see."""

    start: int | None
    skip: tuple[int, ...] = ()
    discard: tuple[int, ...] = ()
    verdict: Ending | None = None
    why: str = ""


def next_course(
    memory: dict[str, Any],
    report: Report | None,
    checkpoints: Sequence[int],
    train_iters: int | None,
    on_repeat: str,
) -> Course:
    """Decide, and remember in `memory` (a dict that JSON can hold; empty at the run's first start).

    `checkpoints`: iterations with a whole checkpoint, newest first.
    """
    newest = checkpoints[0] if checkpoints else None
    episode = memory.get("episode")
    if episode and (newest or 0) >= episode["last"]:
        memory["episode"] = episode = None
    if report is not None and report.unreadable is not None:
        return _unreadable(memory, report.unreadable, report.cause, checkpoints)
    if newest is not None and newest > max(map(int, memory.get("unreadable", {})), default=newest):
        del memory["unreadable"]
    if report is None or report.failed_iteration is None:
        return _go(memory, newest)
    episode = memory["episode"] = _continued(episode, report, newest)
    if episode["tries"] == 1:
        return _go(memory, newest, why="the newest checkpoint once more")
    older = next((each for each in checkpoints if each < episode["starts"][0]), None)
    if episode["tries"] == 2 and older is not None:
        episode["starts"].append(older)
        return _go(memory, older, checkpoints, "an older checkpoint")
    return _last_resort(memory, report, checkpoints, train_iters, on_repeat)


def _unreadable(memory: dict[str, Any], iteration: int, cause: str, checkpoints: Sequence[int]) -> Course:
    """The same checkpoint once more, then the one before it; never the beginning, never all of them."""
    times = memory.setdefault("unreadable", {})
    times[str(iteration)] = times.get(str(iteration), 0) + 1
    if times[str(iteration)] == 1:
        return _go(memory, checkpoints[0] if checkpoints else None, why="the newest checkpoint once more")
    older = next((each for each in checkpoints if each < iteration), None)
    if older is None:
        return _end(f"{cause}; there is no older one", ExitCode.NO_CHECKPOINT)
    if len(times) > MAX_UNREADABLE:
        tried = ", ".join(sorted(times, key=int))
        return _end(f"{cause}; none of the checkpoints {tried} can be", ExitCode.NO_CHECKPOINT)
    return _go(memory, older, checkpoints, f"checkpoint {iteration} cannot be loaded: an older one")


def _continued(episode: dict[str, Any] | None, report: Report, newest: int | None) -> dict[str, Any]:
    failed = report.failed_iteration
    assert failed is not None
    same = episode is not None and (
        (report.kind is Kind.LOSS and episode["kind"] == Kind.LOSS)
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


def _last_resort(
    memory: dict[str, Any],
    report: Report,
    checkpoints: Sequence[int],
    train_iters: int | None,
    on_repeat: str,
) -> Course:
    episode = memory["episode"]
    starts = [f"iteration {start}" if start else "the beginning" for start in episode["starts"]]
    history = f"{report.cause}; the same came {episode['tries']} times, starting from {' and '.join(starts)}"
    if on_repeat != "skip":
        return _end(f"{history}; onRepeat is fail")
    skipped = range(episode["first"], episode["last"] + 1)
    if episode["tries"] >= MAX_TRIES or len(skipped) > MAX_SKIPPED:
        return _end(f"{history}, leaving out up to {len(skipped)} iterations did not help")
    if train_iters is not None and episode["last"] >= train_iters:
        return _end(f"{history}; the last iteration cannot be left out")
    memory["skip"] = sorted({*memory.get("skip", []), *skipped})
    before = next((each for each in checkpoints if each <= min(episode["starts"])), None)
    what = f"iterations {skipped[0]} to {skipped[-1]}" if len(skipped) > 1 else f"iteration {skipped[0]}"
    return _go(memory, before, checkpoints, f"{what} left out")


def _end(message: str, code: ExitCode = ExitCode.LOSS_NOT_FINITE) -> Course:
    return Course(None, verdict=Ending(code, message))


def _go(memory: dict[str, Any], start: int | None, checkpoints: Sequence[int] = (), why: str = "") -> Course:
    return Course(
        start,
        skip=tuple(each for each in memory.get("skip", []) if each > (start or 0)),
        discard=tuple(each for each in checkpoints if each > (start or 0)),
        why=why,
    )
