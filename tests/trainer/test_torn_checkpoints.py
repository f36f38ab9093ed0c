"""A run starts from the newest whole checkpoint, whatever the last save left behind."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.trainer.gang import SAVE_INTERVAL, TRAIN_ITERS, Gang, assert_same_training

SECOND = 2 * SAVE_INTERVAL


def shard(save: Path, iteration: int) -> Path:
    return sorted((save / f"iter_{iteration:07d}").glob("*.distcp"))[0]


def truncate_a_shard(save: Path) -> None:
    path = shard(save, SECOND)
    path.write_bytes(path.read_bytes()[:-1])


def lose_a_shard(save: Path) -> None:
    shard(save, SECOND).unlink()


def tear_metadata(save: Path) -> None:
    path = save / f"iter_{SECOND:07d}" / ".metadata"
    path.write_bytes(path.read_bytes()[:100])


def garble_the_tracker(save: Path) -> None:
    (save / "latest_checkpointed_iteration.txt").write_text("1\x006garbage")


@pytest.mark.parametrize(
    ("damage", "resumed_from"),
    [
        (truncate_a_shard, SAVE_INTERVAL),
        (lose_a_shard, SAVE_INTERVAL),
        (tear_metadata, SAVE_INTERVAL),
        (garble_the_tracker, SECOND),
    ],
)
def test_resumes_with_equal_losses_after(
    damage: Callable[[Path], None], resumed_from: int, pod: Gang, undisturbed: Gang
) -> None:
    shutil.copytree(undisturbed.save, pod.save)
    shutil.rmtree(pod.save / f"iter_{TRAIN_ITERS:07d}")
    (pod.save / "latest_checkpointed_iteration.txt").write_text(str(SECOND))
    damage(pod.save)
    pod.start()
    assert pod.wait() == [0], pod.log()[-3000:]
    assert f"starting from iteration {resumed_from}" in pod.log()
    assert_same_training(pod, undisturbed)
    done_again = [iteration for iteration, losses in pod.losses().items() if len(losses) > 1]
    assert done_again == list(range(resumed_from + 1, TRAIN_ITERS + 1))
