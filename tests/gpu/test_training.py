"""The trainer's gpu path from warm start to exit, on simulated GPUs. Their kernels compute nothing."""

from collections.abc import Callable

from tests.trainer.gang import Gang


def iterations(run: Gang) -> list[int]:
    return [record["iteration"] for record in run.records()]


def test_a_rank_is_forked_trains_two_steps_and_exits(gpu_run: Callable[..., Gang]) -> None:
    run = gpu_run()
    run.start(extra=("--train-iters", "2"))
    assert run.wait() == [0], run.log()[-3000:]
    assert iterations(run) == [1, 2]
    assert run.termination(0)["reason"] == "Completed"
    assert "ranks start cold" not in run.log()
