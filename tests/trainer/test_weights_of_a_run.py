"""A run that starts from the weights of another one in another layout, by the flag of `init.from.recipe`."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.trainer.gang import SAVE_INTERVAL, TRAIN_ITERS, Gang
from tests.trainer.warm_process import WarmProcess

# Without dropout, whose random numbers depend on the layout.
MODEL = (
    "--num-experts 4 --moe-router-topk 2 --moe-token-dispatcher-type allgather "
    "--attention-dropout 0 --hidden-dropout 0"
)
EXPERTS_OVER_FOUR = "--tensor-model-parallel-size 1 --expert-model-parallel-size 4"
PIPELINE_OVER_TWO = (
    "--tensor-model-parallel-size 1 --expert-model-parallel-size 2 --pipeline-model-parallel-size 2"
)

LOCAL_INTERVAL = 4
"""Iterations between checkpoints on the node's disk: the first one comes before the first on the volume."""

NewRun = Callable[[str], Gang]


@pytest.fixture
def new_run(tmp_path_factory: pytest.TempPathFactory, corpus: Path, warm: WarmProcess) -> Iterator[NewRun]:
    """Makes a run of a model with experts in one pod of four ranks, in a layout."""
    runs: list[Gang] = []

    def made(layout: str) -> Gang:
        # A short name: a path of a Unix socket has at most 107 characters.
        runs.append(Gang(tmp_path_factory.mktemp("run"), corpus, nodes=1, warm=warm))
        runs[-1].flags += f"{MODEL} {layout}".split()
        return runs[-1]

    yield made
    for run in runs:
        run.stop()


def test_a_run_in_another_layout_starts_from_the_weights_and_resumes_from_its_own_checkpoints(
    new_run: NewRun, tmp_path: Path
) -> None:
    """With only one on the node's disk, which has no tracker that keeps Megatron from the weights again."""
    first = new_run(EXPERTS_OVER_FOUR)
    first.start(extra=("--train-iters", str(SAVE_INTERVAL)))
    assert first.wait() == [0], first.log()[-3000:]
    weights = ("--pretrained-checkpoint", str(first.save))

    run = new_run(PIPELINE_OVER_TWO)
    run.flags += f"--non-persistent-ckpt-type global --non-persistent-save-interval {LOCAL_INTERVAL}".split()
    run.flags += ["--non-persistent-global-ckpt-dir", str(tmp_path / "local")]
    run.hold_after(LOCAL_INTERVAL + 1)
    run.start(extra=weights)
    run.await_iteration(LOCAL_INTERVAL + 1)
    run.kill_rank(0)
    same_layout = new_run(EXPERTS_OVER_FOUR)
    same_layout.start(extra=(*weights, "--train-iters", "1"))
    assert same_layout.wait() == [0], same_layout.log()[-3000:]
    assert run.wait() == [0], run.log()[-3000:]

    random_weights, (expected,) = first.losses()[1][0], same_layout.losses()[1]
    losses = run.losses()
    assert losses[1] == [pytest.approx(expected, rel=1e-4)], "the first batch again"
    assert losses[1][0] < random_weights - 0.1
    (incident,) = run.incidents()
    assert incident["resumedFrom"] == LOCAL_INTERVAL
    assert sorted(losses) == list(range(1, TRAIN_ITERS + 1))
    different = {iteration: each for iteration, each in losses.items() if len(set(each)) > 1}
    assert not different, "every repeated iteration has the loss that it had before"
