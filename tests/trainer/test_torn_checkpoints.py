"""A run starts from the newest complete checkpoint, whatever the last save left behind."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from megatron_contract.exit_codes import ExitCode
from megatron_trainer.checkpoints import selection

from tests.trainer.gang import SAVE_INTERVAL, TRAIN_ITERS, Gang, assert_same_training

SECOND = 2 * SAVE_INTERVAL
DIRECTORY = f"iter_{SECOND:07d}"
TRACKER = selection.TRACKER


def a_shard(save: Path) -> Path:
    return sorted((save / DIRECTORY).glob("*.distcp"))[0]


def shorten(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def copy_run(undisturbed: Gang, save: Path) -> None:
    """Copy what the undisturbed run had saved after its second checkpoint."""
    shutil.copytree(undisturbed.save, save)
    shutil.rmtree(save / f"iter_{TRAIN_ITERS:07d}")
    (save / TRACKER).write_text(str(SECOND))
    (save / "incidents.json").unlink()


DAMAGES: dict[str, tuple[Callable[[Path], object], int]] = {
    "a shard is truncated": (lambda save: shorten(a_shard(save)), SAVE_INTERVAL),
    "a shard is empty": (lambda save: a_shard(save).write_bytes(b""), SAVE_INTERVAL),
    "a shard is missing": (lambda save: a_shard(save).unlink(), SAVE_INTERVAL),
    ".metadata is torn": (lambda save: shorten(save / DIRECTORY / ".metadata"), SAVE_INTERVAL),
    ".metadata is empty": (lambda save: (save / DIRECTORY / ".metadata").write_bytes(b""), SAVE_INTERVAL),
    ".metadata is missing": (lambda save: (save / DIRECTORY / ".metadata").unlink(), SAVE_INTERVAL),
    "metadata.json is torn": (lambda save: shorten(save / DIRECTORY / "metadata.json"), SAVE_INTERVAL),
    "metadata.json is empty": (
        lambda save: (save / DIRECTORY / "metadata.json").write_text(""),
        SAVE_INTERVAL,
    ),
    "metadata.json is missing": (lambda save: (save / DIRECTORY / "metadata.json").unlink(), SAVE_INTERVAL),
    "the tracker is garbled": (lambda save: (save / TRACKER).write_text("1\x006garbage"), SECOND),
    "the tracker is empty": (lambda save: (save / TRACKER).write_text(""), SECOND),
    "the tracker is missing": (lambda save: (save / TRACKER).unlink(), SECOND),
    "the tracker names a checkpoint that is not there": (
        lambda save: (save / TRACKER).write_text(str(TRAIN_ITERS)),
        SECOND,
    ),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_the_right_checkpoint_of_megatron_is_chosen_when(
    damage: str, tmp_path: Path, undisturbed: Gang
) -> None:
    hurt, start = DAMAGES[damage]
    copy_run(undisturbed, tmp_path / "save")
    hurt(tmp_path / "save")
    assert selection.choose(tmp_path / "save").iteration == start
    assert selection.read_tracker(tmp_path / "save") == str(start)


@pytest.mark.parametrize("damage", ["a shard is truncated", "the tracker is garbled"])
def test_a_run_resumes_with_equal_losses_when(damage: str, pod: Gang, undisturbed: Gang) -> None:
    hurt, start = DAMAGES[damage]
    copy_run(undisturbed, pod.save)
    hurt(pod.save)
    pod.start()
    assert pod.wait() == [0], pod.log()[-3000:]
    assert f"starting from iteration {start}" in pod.log()
    assert_same_training(pod, undisturbed)
    repeated = [iteration for iteration, losses in pod.losses().items() if len(losses) > 1]
    assert repeated == list(range(start + 1, TRAIN_ITERS + 1))


def corrupt(path: Path) -> None:
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2] + bytes(len(content) - len(content) // 2))


def test_a_corrupt_shard_of_full_length_is_detected_by_loading_it(pod: Gang, undisturbed: Gang) -> None:
    copy_run(undisturbed, pod.save)
    corrupt(a_shard(pod.save))
    pod.start()
    assert pod.wait() == [0], pod.log()[-3000:]
    assert f"checkpoint of iteration {SECOND} cannot be loaded" in pod.log()
    assert f"starting from iteration {SAVE_INTERVAL}" in pod.log()
    assert_same_training(pod, undisturbed)
    assert [path.name for path in pod.save.glob(f"{DIRECTORY}.*")], "it is set aside, not deleted"


def test_a_replacement_knows_which_checkpoint_could_not_be_loaded(pod: Gang, undisturbed: Gang) -> None:
    copy_run(undisturbed, pod.save)
    corrupt(a_shard(pod.save))
    pod.environment["MEGATRON_MAX_RANK_RESTARTS"] = "0"
    for _ in range(2):
        pod.start()
        assert pod.wait() == [ExitCode.WORKER_DIED], pod.log()[-3000:]
        assert f"checkpoint of iteration {SECOND} cannot be loaded" in pod.termination(0)["message"]
    pod.start()
    assert pod.wait() == [0], pod.log()[-3000:]
    assert_same_training(pod, undisturbed)


def test_a_checkpoint_whose_load_fails_for_another_reason_than_its_bytes_stays_where_it_is(
    pod: Gang, undisturbed: Gang
) -> None:
    copy_run(undisturbed, pod.save)
    pod.inject({"what": "fail-load"})
    pod.environment["MEGATRON_MAX_RANK_RESTARTS"] = "1"
    pod.start()
    assert pod.wait() == [ExitCode.WORKER_DIED], pod.log()[-3000:]
    assert "a view of a leaf Variable" in pod.termination(0)["message"]
    assert not list(pod.save.glob("iter_*.broken-*"))
    pod.inject()
    pod.start()
    assert pod.wait() == [0], pod.log()[-3000:]
    assert f"starting from iteration {SECOND}" in pod.log()
    assert f"starting from iteration {SAVE_INTERVAL}" not in pod.log()
    assert_same_training(pod, undisturbed)
