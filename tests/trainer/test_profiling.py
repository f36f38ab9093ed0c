"""A profile has the iterations that were asked for, also after a restart, and changes no loss."""

import gzip
import json
import re
from pathlib import Path

from tests.trainer.gang import SAVE_INTERVAL, Gang, assert_same_training

FIRST, LAST = SAVE_INTERVAL + 5, SAVE_INTERVAL + 7


def recorded_steps(trace: Path) -> int:
    """Number of optimizer steps in a trace."""
    events = json.loads(gzip.decompress(trace.read_bytes()))["traceEvents"]
    return sum(bool(re.match(r"Optimizer\.step#", each.get("name", ""))) for each in events)


def test_the_window_is_recorded_after_a_restart_and_changes_no_loss(pod: Gang, undisturbed: Gang) -> None:
    pod.environment["MEGATRON_PROFILE"] = f"{FIRST}-{LAST}:0,3"
    pod.hold_after(SAVE_INTERVAL + 2)
    pod.start()
    pod.await_iteration(SAVE_INTERVAL + 2)
    pod.await_checkpoint(SAVE_INTERVAL)
    pod.kill_rank(0)
    assert pod.wait() == [0], pod.log()[-3000:]
    traces = sorted((pod.save / "profile").iterdir())
    assert [each.name for each in traces] == [
        f"rank-{rank}-iterations-{FIRST}-{LAST}.json.gz" for rank in (0, 3)
    ]
    assert [recorded_steps(each) for each in traces] == [LAST - FIRST + 1] * 2
    assert_same_training(pod, undisturbed)


def test_a_trace_that_cannot_be_written_does_not_end_the_run(pod: Gang, undisturbed: Gang) -> None:
    pod.save.mkdir(exist_ok=True)
    (pod.save / "profile").write_text("not a directory")
    pod.environment["MEGATRON_PROFILE"] = "3-4:0"
    pod.run_to_end()
    assert "rank 0: no trace: " in pod.log()
    assert_same_training(pod, undisturbed)
