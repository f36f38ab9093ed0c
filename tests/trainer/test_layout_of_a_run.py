"""A run begun without `elastic` that gets another layout with its optimizer: one checkpoint in between."""

from pathlib import Path

import pytest

from tests.trainer.gang import SAVE_INTERVAL, Gang
from tests.trainer.warm_process import WarmProcess

# Without dropout, whose random numbers depend on the layout.
MODEL = "--attention-dropout 0 --hidden-dropout 0"
RESHARDABLE = "--dist-ckpt-optim-fully-reshardable"
PIPELINE = ("--tensor-model-parallel-size", "1", "--pipeline-model-parallel-size", "2")


def until_iteration(gang: Gang, iteration: int, *extra: str) -> int:
    """Start or continue the run, up to an iteration; returns the exit code."""
    gang.start(extra=(*extra, "--train-iters", str(iteration)))
    (code,) = gang.wait()
    return code


@pytest.fixture
def runs(tmp_path_factory: pytest.TempPathFactory, corpus: Path, warm: WarmProcess) -> tuple[Gang, Gang]:
    """Two runs of the same model in one pod of two ranks, at TP 2."""
    made = [Gang(tmp_path_factory.mktemp("run"), corpus, nodes=1, warm=warm, ranks=2) for _ in range(2)]
    for gang in made:
        gang.flags += MODEL.split()
    return made[0], made[1]


def test_the_layout_changes_after_one_checkpoint_of_an_elastic_run(runs: tuple[Gang, Gang]) -> None:
    run, same_layout = runs
    first, second, third = SAVE_INTERVAL, 2 * SAVE_INTERVAL, 3 * SAVE_INTERVAL
    assert until_iteration(run, first) == 0, run.log()[-3000:]
    assert until_iteration(run, second, *PIPELINE, RESHARDABLE) != 0
    assert "not supported for DistributedOptimizer with sharding type dp_reshardable" in run.log()

    assert until_iteration(run, second, RESHARDABLE) == 0, run.log()[-3000:]
    assert until_iteration(run, third, *PIPELINE, RESHARDABLE) == 0, run.log()[-3000:]

    assert until_iteration(same_layout, third) == 0, same_layout.log()[-3000:]
    expected, losses = same_layout.losses(), run.losses()
    assert sorted(losses) == sorted(expected)
    for iteration, (loss,) in expected.items():
        # In float32, sums in another order.
        assert losses[iteration] == [pytest.approx(loss, rel=1e-4)], iteration
