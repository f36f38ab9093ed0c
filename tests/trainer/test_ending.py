"""How pods end: the exit code and the termination message say what to do next."""

import signal

from tests.trainer.gang import SAVE_INTERVAL, TRAIN_ITERS, Gang, assert_same_training


def test_sigterm_saves_and_exits_143_and_the_other_pod_waits_for_the_next(
    gang: Gang, undisturbed: Gang
) -> None:
    gang.start()
    gang.await_iteration(3)
    gang.pods[1].send_signal(signal.SIGTERM)
    assert gang.pods[1].wait(timeout=300) == 143
    message = gang.termination(1)
    assert message["reason"] == "Terminated"
    saved = message["checkpointIteration"]
    assert 3 <= saved < TRAIN_ITERS
    assert gang.pods[0].poll() is None
    gang.start(1)
    assert gang.wait() == [0, 0], gang.log()[-3000:]
    assert_same_training(gang, undisturbed)
    assert len(gang.losses()[saved]) == 1, "no iteration before the saved one is done again"


def test_a_finished_run_entered_again_ends_at_once_with_0(undisturbed: Gang) -> None:
    before = undisturbed.records()
    undisturbed.start()
    assert undisturbed.wait() == [0]
    assert undisturbed.records() == before
    assert "was done already" in undisturbed.termination(0)["message"]


def test_flags_that_megatron_refuses_end_with_64_and_its_words(pod: Gang) -> None:
    pod.start(0, extra=("--tensor-model-parallel-size", "3"))
    assert pod.pods[0].wait(timeout=300) == 64
    assert pod.termination(0) == {
        "reason": "FlagError",
        "message": "Megatron refuses the flags: world size (4) is not divisible by total_model_size "
        "(total_model_size=3)",
        "nodeRank": 0,
        "rank": None,
        "iteration": None,
        "checkpointIteration": None,
        "exitCode": 64,
    }
    assert "Traceback" not in pod.log()


def test_missing_data_ends_with_65_and_names_the_files(pod: Gang) -> None:
    pod.start(0, extra=("--data-path", "/nowhere/corpus"))
    assert pod.pods[0].wait(timeout=300) == 65
    assert pod.termination(0)["message"] == "--data-path: not found: /nowhere/corpus.bin, /nowhere/corpus.idx"


def test_a_dead_checkpoint_writer_restarts_the_ranks_instead_of_hanging_them(
    pod: Gang, undisturbed: Gang
) -> None:
    pod.start()
    pod.await_iteration(SAVE_INTERVAL - 5)
    # Megatron runs the writer at a nice value of 10, which tells it from the data loader's workers.
    (writer,) = (helper for helper in pod.ranks(0)[0].children() if helper.nice() == 10)
    writer.kill()
    pod.await_iteration(1, generation=2)
    assert pod.wait() == [0], pod.log()[-3000:]
    assert "the checkpoint writer was killed by signal 9" in pod.log()
    assert_same_training(pod, undisturbed)
