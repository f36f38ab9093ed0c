"""No pod that was replaced writes the checkpoint directory, even if it was frozen meanwhile."""

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from tests.trainer.gang import (
    SAVE_INTERVAL,
    TRAIN_ITERS,
    FrozenPod,
    Gang,
    assert_same_training,
    has_stopped,
    until,
)
from tests.trainer.holder import WRITES
from tests.trainer.test_torn_checkpoints import a_shard, copy_run, shorten


def test_a_master_that_is_cut_off_stops_when_its_replacement_starts(pod: Gang, undisturbed: Gang) -> None:
    pod.hold_after(SAVE_INTERVAL + 1)
    pod.start()
    pod.await_iteration(SAVE_INTERVAL + 1)
    pod.await_checkpoint(SAVE_INTERVAL)
    older = pod.pods.pop(0)
    # Only the volume connects the two: the new launcher has other ports.
    pod.cut_off()
    pod.start()
    assert older.wait(timeout=300) == 140
    assert pod.wait() == [0], pod.log()[-3000:]
    assert_same_training(pod, undisturbed)
    assert "was replaced and no longer writes checkpoints" in pod.log()
    assert [(each["kind"], each["cause"]) for each in pod.incidents()] == [("pod", "the pod was replaced")]


def freeze_within_save(run: Gang, node: int) -> FrozenPod:
    """Freeze a pod within the save of the first checkpoint: it has checked the lease and written nothing."""
    per_node = 4 // run.nodes
    ranks = range(node * per_node, (node + 1) * per_node)
    run.inject(
        *({"what": "freeze-save", "rank": rank, "at": SAVE_INTERVAL, "generations": [1]} for rank in ranks)
    )
    run.start()
    run.await_iteration(1)
    until("the ranks to freeze", lambda: all(map(has_stopped, run.ranks(node))) or None)
    return run.freeze(node)


def test_a_master_frozen_within_a_save_writes_no_file_of_it_after_its_replacement(
    pod: Gang, undisturbed: Gang
) -> None:
    frozen = freeze_within_save(pod, 0)
    pod.cut_off()
    pod.inject()
    pod.start()
    assert pod.wait() == [0], pod.log()[-3000:]
    assert_same_training(pod, undisturbed)
    written = pod.files()
    frozen.resume_ranks()
    assert pod.files() == written
    assert frozen.resume_launcher() == 140
    assert pod.files() == written


def test_a_worker_frozen_within_a_save_writes_no_file_of_it_after_its_replacement(
    gang: Gang, undisturbed: Gang
) -> None:
    frozen = freeze_within_save(gang, 1)
    gang.start(1)
    assert gang.wait() == [0, 0], gang.log()[-3000:]
    assert_same_training(gang, undisturbed)
    written = gang.files()
    frozen.resume_ranks()
    assert gang.files() == written
    frozen.resume_fork_server()
    reason = "the ranks of generation 1 were replaced and no longer write checkpoints"
    until("the reason in the log", lambda: reason in gang.log() or None)


def test_a_master_frozen_while_it_repairs_the_directory_does_not_go_on_with_it_after_its_replacement(
    pod: Gang, undisturbed: Gang
) -> None:
    copy_run(undisturbed, pod.save)
    shorten(a_shard(pod.save))
    pod.inject({"what": "freeze-repair"})
    pod.start()
    launcher = psutil.Process(pod.pods[0].pid)
    until("the launcher to freeze", lambda: has_stopped(launcher) or None)
    frozen = pod.freeze(0)
    pod.cut_off()
    pod.inject()
    pod.start()
    assert pod.wait() == [0], pod.log()[-3000:]
    written = pod.files()
    assert frozen.resume_launcher() == 140
    assert pod.files() == written
    assert f"iter_{TRAIN_ITERS:07d}" in {path.name for path in pod.save.iterdir()}


@pytest.fixture
def hold(tmp_path: Path) -> Iterator[Callable[..., subprocess.Popen[bytes]]]:
    """Starts a process that acquires the lease of one directory: tests.trainer.holder."""
    started: list[subprocess.Popen[bytes]] = []

    def start(*words: str) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "tests.trainer.holder", str(tmp_path), *words]
        started.append(subprocess.Popen(command, cwd=Path(__file__).parents[2]))
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.wait()


def test_a_first_holder_that_was_late_waits_until_the_other_first_holder_has_stopped(
    tmp_path: Path, hold: Callable[..., subprocess.Popen[bytes]]
) -> None:
    def writes() -> list[str]:
        file = tmp_path / WRITES
        return file.read_text().split() if file.exists() else []

    late = psutil.Process(hold("late", "freeze").pid)
    until("the late one to freeze", lambda: has_stopped(late) or None)
    first = hold("first")
    until("the first one to write", lambda: "first" in writes() or None)
    late.resume()
    until("the late one to write", lambda: "late" in writes() or None)
    first.wait(timeout=60)
    found = writes()
    assert "first" not in found[found.index("late") :]
