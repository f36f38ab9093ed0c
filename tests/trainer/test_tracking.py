"""Curves of a run with real ranks: over restarts, and beside a tracker that cannot be reached."""

import json

import pytest

from tests.trainer.curves import read_curves
from tests.trainer.gang import SAVE_INTERVAL, TRAIN_ITERS, Gang, assert_same_training, free_port

ALL = list(range(1, TRAIN_ITERS + 1))


def track(run: Gang, **trackers: object) -> None:
    run.environment["MEGATRON_TRACKING"] = json.dumps(trackers)


def rounded(points: list[tuple[int, float]]) -> list[tuple[int, float]]:
    """Points in the precision of TensorBoard's files."""
    return [(step, pytest.approx(value, rel=1e-6)) for step, value in points]


def test_curves_have_each_iteration_once_after_a_killed_rank_and_a_replaced_pod(
    pod: Gang, undisturbed: Gang
) -> None:
    track(pod, tensorboard=True)
    pod.flags[pod.flags.index("--eval-iters") + 1] = "1"
    pod.flags[pod.flags.index("--eval-interval") + 1] = "4"
    pod.start()
    pod.await_checkpoint(SAVE_INTERVAL)
    pod.await_iteration(SAVE_INTERVAL + 2)
    pod.kill_rank(0)
    pod.await_checkpoint(2 * SAVE_INTERVAL)
    pod.await_iteration(2 * SAVE_INTERVAL + 2, generation=2)
    pod.replace(0)
    assert pod.wait() == [0], pod.log()[-3000:]

    assert_same_training(pod, undisturbed)
    scalars = [json.loads(line) for line in (pod.save / "scalars.jsonl").read_text().splitlines()]
    assert {each["generation"] for each in scalars} == {1, 2, 3}
    losses = [(iteration, each[-1]) for iteration, each in sorted(pod.losses().items())]
    board = read_curves("tensorboard", pod.save / "tensorboard")
    assert board["lm loss"] == rounded(losses)
    assert [step for step, _ in board["grad-norm"]] == ALL
    assert {"learning-rate", "batch-size", "iteration-time", "throughput", "consumed-samples"} <= board.keys()
    lines = [json.loads(line) for line in (pod.save / "validation.jsonl").read_text().splitlines()]
    validations: dict[int, float] = {}
    for each in lines:
        # After the last iteration Megatron evaluates once more.
        validations.setdefault(each["iteration"], each["lmLoss"])
    assert board["lm loss validation"] == rounded(sorted(validations.items()))


def test_a_tracker_that_cannot_be_reached_changes_nothing(pod: Gang, undisturbed: Gang) -> None:
    url = f"http://127.0.0.1:{free_port()}"
    track(pod, tensorboard=True, mlflow={"trackingUri": url, "experiment": "tests"})
    pod.flags += ["--timing-log-level", "1", "--log-timers-to-tensorboard", "--log-interval", "1"]
    pod.run_to_end()
    assert_same_training(pod, undisturbed)
    log = pod.log()
    assert f"mlflow: {url} cannot be reached: [Errno 111] Connection refused; the training goes on" in log
    assert "mlflow: the end of the curves is not recorded" in log
    board = read_curves("tensorboard", pod.save / "tensorboard")
    assert [step for step, _ in board["lm loss"]] == ALL
    assert [step for step, _ in board["optimizer-time"]] == ALL
