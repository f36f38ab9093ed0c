"""An archive of deleted example runs, for pictures of the page. Nothing was measured."""

import copy
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from megatron_operator.api.times import seconds, timestamp
from megatron_operator.lifecycle.status_reading import read_status
from megatron_operator.ui.archive import SMALLEST, Archive
from megatron_operator.ui.points import Point, peak_tflops, points_of_log

from testkit.example_runs import CREATED, NOW, course, training_run

Object = dict[str, Any]
DELETED: Final = "/runs/research/llama3-8b-ablation"
"""Path of the page of a deleted run."""
_RUNS: Final = (
    ("llama3-8b-lr-2e-4", "teaching", 2e-4, "Failed", 24_000, 31 * 3600.0),
    ("llama3-8b-first-mix", "research", 3e-4, "Succeeded", 100_000, 10 * 3600.0),
    ("llama3-8b-ablation", "research", 3e-4, "Suspended", 61_300, 5400.0),
)
"""Name, namespace, learning rate, last phase and iteration, seconds since the deletion."""


async def example_archive(path: Path) -> Archive:
    """A new archive in which each run has its course, incidents, checkpoints and changes of phase."""
    clock = {"now": 0.0}
    archive = Archive(path, "example", SMALLEST, lambda: clock["now"])
    for name, namespace, rate, phase, last, ago in _RUNS:
        state: Object = {}
        for time, state in _states(training_run(name, namespace, lr=rate), last, NOW - ago):
            clock["now"] = time
            archive.observe(state)
        state["status"]["phase"] = phase
        archive.delete(state)
        await archive.flush()
    return archive


def _states(run: Object, last: int, end: float) -> Iterator[tuple[float, Object]]:
    """The run at every 200th iteration, and the Unix time of that."""
    plan = read_status(run["status"])[0].plan
    points = points_of_log(course(last, 0), plan)[1::2]
    began = seconds(CREATED) or 0.0
    reported = 0
    for number, point in enumerate(points, 1):
        time = began + (end - began) * number / len(points)
        state = copy.deepcopy(run)
        _progress(state["status"], point, time, peak_tflops(plan) or 0.0)
        incidents = len(state["status"]["recovery"]["history"])
        state["status"]["phase"] = "Recovering" if incidents > reported else "Training"
        reported = incidents
        yield time, state


def _progress(status: Object, point: Point, time: float, peak: float) -> None:
    """Set what the operator reports at this point, with the incidents before it."""
    status["progress"] |= {
        "iteration": point.iteration, "lmLoss": point.lm_loss, "learningRate": point.learning_rate,
        "tokensPerSecond": point.tokens_per_second, "tflopsPerGpu": peak * (point.mfu or 0.0),
        "time": timestamp(time),
    }  # fmt: skip
    status["checkpoint"] |= {"iteration": point.iteration - 100, "time": timestamp(time - 90)}
    known = status["recovery"]["history"]
    past = [each for each in known if each["iteration"] < point.iteration and each["time"] < timestamp(time)]
    status["recovery"] |= {"history": past, "lastIncident": past[-1] if past else None}
