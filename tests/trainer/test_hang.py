"""Ranks that hang are detected, named and restarted; slow operations are not taken for a hang."""

import json
import re
import signal

from megatron_contract.environment import VALIDATION_FILE

from tests.trainer.gang import SAVE_INTERVAL, TRAIN_ITERS, Gang, assert_phases_in_order, assert_same_training


def stacks(run: Gang) -> list[str]:
    """Return the stacks that each pod stored for the one hang."""
    (folder,) = (run.save / "hangs").iterdir()
    return [path.read_text() for path in sorted(folder.iterdir())]


def hang_logs(run: Gang) -> list[str]:
    """Return what the log has of the stacks of the one hang, in order of the nodes."""
    found = re.findall(
        r"main threads of hanging ranks, all threads are in \S+/node-(\d+)\.txt:\n((?:(?:rank|  ).*\n)+)",
        run.log(),
    )
    return [text for _, text in sorted(found)]


def test_a_stopped_rank_is_named_and_all_ranks_restart(gang: Gang, undisturbed: Gang) -> None:
    gang.environment["MEGATRON_HANG_TIMEOUT"] = "40"
    gang.start()
    gang.await_iteration(SAVE_INTERVAL + 1)
    gang.await_checkpoint(SAVE_INTERVAL)
    gang.ranks(1)[0].send_signal(signal.SIGSTOP)
    gang.await_iteration(SAVE_INTERVAL + 1, generation=2)
    assert gang.wait() == [0, 0], gang.log()[-3000:]
    assert_same_training(gang, undisturbed)
    (incident,) = gang.incidents()
    assert (incident["kind"], incident["nodeRank"], incident["rank"]) == ("hang", 1, 2)
    assert incident["cause"].startswith(f"rank 2 is stopped after iteration {incident['iteration']}")
    assert_phases_in_order(incident)
    first, second = stacks(gang)
    assert "all_reduce" in first or "wait" in first, "the stacks of the others show where they wait"
    assert "rank 2" in second
    assert "no answer to the request for its stacks" in second
    waiting, stopped = hang_logs(gang)
    assert re.search(r'  File ".*/megatron/.*", line \d+ in \w+', waiting), "Megatron's frames are in the log"
    assert "rank 2 (pid " in stopped
    assert "no answer to the request for its stacks" in stopped
    assert gang.survivors() == []


def test_an_early_exit_and_an_endless_loop_are_detected_but_not_slow_saves_and_evaluations(
    pod: Gang,
) -> None:
    pod.environment["MEGATRON_HANG_TIMEOUT"] = "5"
    pod.inject(
        {"what": "leave", "rank": 1, "at": 3, "generations": [1]},
        {"what": "slow-save", "at": SAVE_INTERVAL, "generations": [2]},
        {"what": "slow-evaluation", "at": SAVE_INTERVAL, "generations": [2]},
        {"what": "loop", "rank": 3, "at": SAVE_INTERVAL + 4, "generations": [2]},
    )
    pod.start(0, extra=("--eval-interval", str(SAVE_INTERVAL), "--eval-iters", "1"))
    assert pod.wait() == [0], pod.log()[-3000:]
    left, hung = pod.incidents()
    assert (left["kind"], left["rank"]) == ("rank", 1)
    assert left["cause"] == "rank 1 exited with code 0 before the last iteration was done"
    assert (hung["kind"], hung["rank"]) == ("hang", 3)
    assert "rank 3 hangs in endless_loop (" in hung["cause"]
    assert hung["iteration"] == SAVE_INTERVAL + 3
    (logged,) = hang_logs(pod)
    assert re.search(r"rank 3 .*\n  File .* in endless_loop\n", logged), logged
    (text,) = stacks(pod)
    assert all(f"rank {rank} " in text for rank in range(4))
    assert sorted(pod.losses()) == list(range(1, TRAIN_ITERS + 1))
    evaluated = [json.loads(line) for line in (pod.save / VALIDATION_FILE).read_text().splitlines()]
    assert {each["iteration"] for each in evaluated} == {
        *range(SAVE_INTERVAL, TRAIN_ITERS + 1, SAVE_INTERVAL)
    }
    assert all(0 < each["lmLoss"] < 20 for each in evaluated)
