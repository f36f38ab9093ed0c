"""Recovery within the trainer, without the operator: training continues with the same losses."""

import urllib.request
from collections.abc import Callable

import pytest

from tests.trainer.gang import (
    DEADLINE_SECONDS,
    SAVE_INTERVAL,
    TRAIN_ITERS,
    Gang,
    assert_phases_in_order,
    assert_same_training,
)

KILL_AT = SAVE_INTERVAL + 3


@pytest.mark.parametrize(
    ("disturb", "kind", "node_rank", "cause"),
    [
        pytest.param(
            lambda run: run.kill_rank(1), "rank", 1, "rank 2 was killed by SIGKILL", id="a rank is killed"
        ),
        pytest.param(
            lambda run: run.replace(1), "pod", 1, "node 1 was replaced", id="a worker pod is replaced"
        ),
        pytest.param(
            lambda run: run.replace(0), "pod", 0, "node 0 was replaced", id="the Master pod is replaced"
        ),
    ],
)
def test_a_run_continues_with_equal_losses_and_an_incident_when(
    disturb: Callable[[Gang], None], kind: str, node_rank: int, cause: str, gang: Gang, undisturbed: Gang
) -> None:
    gang.hold_after(KILL_AT)
    gang.start()
    gang.await_iteration(KILL_AT)
    gang.await_checkpoint(SAVE_INTERVAL)
    disturb(gang)
    gang.await_iteration(SAVE_INTERVAL + 1, generation=2)
    assert gang.wait() == [0, 0], gang.log()[-3000:]
    assert_same_training(gang, undisturbed)
    assert gang.survivors() == []
    (incident,) = gang.incidents()
    assert (incident["kind"], incident["nodeRank"], incident["cause"]) == (kind, node_rank, cause)
    assert incident["iteration"] >= KILL_AT > incident["resumedFrom"] == SAVE_INTERVAL
    assert_phases_in_order(incident)


def test_a_checkpoint_has_the_state_of_its_iteration_when_it_is_written_late(
    pod: Gang, undisturbed: Gang
) -> None:
    pod.inject({"what": "late-write", "at": SAVE_INTERVAL, "generations": [1]})
    pod.hold_after(KILL_AT)
    pod.start()
    pod.await_checkpoint(SAVE_INTERVAL)
    pod.kill_rank(0)
    assert pod.wait() == [0], pod.log()[-3000:]
    (incident,) = pod.incidents()
    assert incident["resumedFrom"] == SAVE_INTERVAL
    assert_same_training(pod, undisturbed)


def lose_network(run: Gang, rank: int) -> None:
    """Start a run whose rank cannot reach the others, in any generation, although no process ends."""
    run.environment["MEGATRON_MAX_RANK_RESTARTS"] = "1"
    run.inject({"what": "lose-network", "rank": rank, "at": 2})
    run.start()


def test_a_network_error_in_every_start_ends_the_pod_after_its_restarts(pod: Gang) -> None:
    lose_network(pod, 3)
    assert pod.wait() == [138], pod.log()[-3000:]
    cause = "rank 3: NCCL error in: ProcessGroupNCCL.cpp:3690, unhandled system error"
    assert pod.termination(0)["message"] == f"{cause}; all 1 rank restarts without a new checkpoint are used"
    (incident,) = pod.incidents()
    assert (incident["kind"], incident["rank"]) == ("rank", 3)


def test_a_network_error_of_which_no_pod_knows_more_ends_node_0_after_its_restarts(gang: Gang) -> None:
    lose_network(gang, 3)
    assert gang.pods[0].wait(timeout=DEADLINE_SECONDS) == 138, gang.log()[-3000:]
    assert gang.termination(0)["message"].endswith("all 1 rank restarts without a new checkpoint are used")
    assert gang.pods[1].poll() is None, "a healthy pod waits for the replacement"


def test_every_pod_serves_progress_metrics_and_health(gang: Gang) -> None:
    gang.environment["MEGATRON_PREFLIGHT"] = "1"
    gang.start()
    gang.await_iteration(2)
    for node, port in enumerate(gang.progress_ports):
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as answer:
            metrics = answer.read().decode()
        assert "megatron_train_iterations" in metrics
        assert "megatron_generation" in metrics
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/healthz") as answer:
            assert answer.status == 200
        progress = gang.progress(node)
        assert (progress["incidents"], progress["warnings"]) == ([], [])
        assert progress["firstStartedAt"] < gang.records()[0]["time"]


def set_flags(run: Gang, flags: str) -> None:
    """Give a run these flags, separated by spaces; of those given twice Megatron takes the last."""
    run.flags += flags.split()


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(lambda run: set_flags(run, "--bf16"), id="BF16"),
        pytest.param(
            lambda run: set_flags(
                run,
                "--tensor-model-parallel-size 1 --pipeline-model-parallel-size 2 --num-experts 4 "
                "--expert-model-parallel-size 2 --moe-token-dispatcher-type allgather --moe-router-topk 2",
            ),
            id="experts over 2 ranks, pipeline over 2",
        ),
        pytest.param(
            lambda run: set_flags(
                run,
                "--tensor-model-parallel-size 1 --pipeline-model-parallel-size 2 --num-layers 4 "
                "--num-layers-per-virtual-pipeline-stage 1",
            ),
            id="pipeline over 2 ranks with 2 virtual stages each",
        ),
    ],
)
def test_a_killed_run_repeats_the_same_losses_with(change: Callable[[Gang], object], pod: Gang) -> None:
    change(pod)
    pod.hold_after(KILL_AT)
    pod.start()
    pod.await_iteration(KILL_AT)
    pod.await_checkpoint(SAVE_INTERVAL)
    pod.kill_rank(0)
    assert pod.wait() == [0], pod.log()[-3000:]
    (incident,) = pod.incidents()
    assert incident["resumedFrom"] == SAVE_INTERVAL
    losses = pod.losses()
    assert sorted(losses) == list(range(1, TRAIN_ITERS + 1))
    assert len(losses[SAVE_INTERVAL + 1]) == 2, "the iterations after the checkpoint are repeated"
    different = {iteration: each for iteration, each in losses.items() if len(set(each)) > 1}
    assert not different, "every repeated iteration has the loss that it had before"
    assert pod.samples().problems() == []
