"""How pods end: exit codes and termination messages."""

import fcntl
import os
import shutil
import signal

import pytest

from tests.trainer.gang import SAVE_INTERVAL, TRAIN_ITERS, Gang, assert_same_training


def test_sigterm_saves_and_exits_143_and_the_other_pod_waits_for_the_replacement(
    gang: Gang, undisturbed: Gang
) -> None:
    gang.start()
    gang.await_iteration(3)
    # A scan of all checkpoints stops here until somebody writes to it.
    blocking = gang.save / "iter_9999999" / "metadata.json"
    blocking.parent.mkdir()
    os.mkfifo(blocking)
    gang.pods[1].send_signal(signal.SIGTERM)
    assert gang.pods[1].wait(timeout=300) == 143
    # Node 0, which checks the new checkpoint, opens it.
    blocking.open("w").close()
    shutil.rmtree(blocking.parent)
    message = gang.termination(1)
    assert message["reason"] == "Terminated"
    saved = message["checkpointIteration"]
    assert 3 <= saved < TRAIN_ITERS
    assert gang.pods[0].poll() is None
    gang.start(1)
    assert gang.wait() == [0, 0], gang.log()[-3000:]
    assert_same_training(gang, undisturbed)
    assert len(gang.losses()[saved]) == 1, "no iteration before the saved one is repeated"


def test_a_run_whose_log_nobody_reads_loses_a_rank_recovers_and_completes(
    pod: Gang, undisturbed: Gang
) -> None:
    log = pod.folder / "pod-0.log"
    os.mkfifo(log)
    unread = os.open(log, os.O_RDONLY | os.O_NONBLOCK)
    fcntl.fcntl(unread, fcntl.F_SETPIPE_SZ, 4096)
    pod.hold_after(SAVE_INTERVAL + 1)
    pod.start()
    pod.await_checkpoint(SAVE_INTERVAL)
    pod.kill_rank(0)
    assert pod.wait() == [0]
    taken = os.read(unread, 1 << 20)
    os.close(unread)
    log.unlink()
    assert b"Completed (exit 0)" not in taken, "the pipe of one page was not full"
    assert_same_training(pod, undisturbed)


def test_the_writer_of_all_saves_does_the_last_one_after_the_last_iteration_too(pod: Gang) -> None:
    """Megatron would start another, which the cpu platform cannot, and which takes long to start on a GPU."""
    last = SAVE_INTERVAL + 2
    pod.start(extra=("--train-iters", str(last)))
    assert pod.wait() == [0], pod.log()[-3000:]
    assert {record["generation"] for record in pod.records()} == {1}, "no rank was restarted"
    assert (pod.save / "latest_checkpointed_iteration.txt").read_text().strip() == str(last)


def test_a_finished_run_that_is_started_again_exits_0(undisturbed: Gang) -> None:
    before = undisturbed.records()
    undisturbed.start()
    assert undisturbed.wait() == [0]
    assert undisturbed.records() == before
    assert "was already done" in undisturbed.termination(0)["message"]


def test_flags_that_megatron_refuses_exit_64_with_its_message(pod: Gang) -> None:
    pod.start(0, extra=("--tensor-model-parallel-size", "3"))
    assert pod.pods[0].wait(timeout=300) == 64
    assert pod.termination(0) == {
        "reason": "BadFlags",
        "message": "Megatron refuses the flags: world size (4) is not divisible by total_model_size "
        "(total_model_size=3)",
        "nodeRank": 0,
        "rank": None,
        "iteration": None,
        "checkpointIteration": None,
        "bestCheckpointIteration": None,
        "bestCheckpointLoss": None,
        "exitCode": 64,
        "evidence": "",
    }
    assert "Traceback" not in pod.log()


def test_missing_data_exits_65_with_the_names_of_the_files(pod: Gang) -> None:
    pod.start(0, extra=("--data-path", "/nowhere/corpus"))
    assert pod.pods[0].wait(timeout=300) == 65
    assert pod.termination(0)["message"] == "--data-path: not found: /nowhere/corpus.bin, /nowhere/corpus.idx"


def test_the_ranks_restart_when_a_checkpoint_writer_dies(pod: Gang, undisturbed: Gang) -> None:
    pod.start()
    pod.await_iteration(SAVE_INTERVAL - 5)
    # Megatron runs the writer at a nice value of 10, unlike the data loader's workers.
    (writer,) = (helper for helper in pod.ranks(0)[0].children() if helper.nice() == 10)
    writer.kill()
    pod.await_iteration(1, generation=2)
    assert pod.wait() == [0], pod.log()[-3000:]
    assert "the checkpoint writer was killed by signal 9" in pod.log()
    assert_same_training(pod, undisturbed)


def test_a_store_lost_after_the_last_iteration_is_no_failure_of_any_pod(
    gang: Gang, undisturbed: Gang
) -> None:
    gang.inject({"what": "lose-store"})
    gang.start()
    assert gang.wait() == [0, 0], gang.log()[-3000:]
    assert "the store was lost after the last iteration" in (gang.folder / "pod-0.log").read_text()
    assert_same_training(gang, undisturbed)


@pytest.mark.parametrize("when", [pytest.param("die-when-done", marks=pytest.mark.repeats), "die-at-end"])
def test_a_run_completes_when_its_master_is_lost_after_the_last_iteration(
    gang: Gang, undisturbed: Gang, when: str
) -> None:
    gang.environment["MEGATRON_RENDEZVOUS_TIMEOUT"] = "20"
    gang.inject({"what": when})
    gang.start()
    assert gang.pods[0].wait(timeout=300) == -signal.SIGKILL, gang.log()[-3000:]
    gang.inject()
    gang.start(0)
    assert gang.wait() == [0, 0], gang.log()[-3000:]
    assert gang.termination(0)["message"] == f"iteration {TRAIN_ITERS} of {TRAIN_ITERS} was already done"
    assert_same_training(gang, undisturbed)
