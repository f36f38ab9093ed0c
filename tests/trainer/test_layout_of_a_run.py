"""A run begun without `elastic` that gets another layout with its optimizer: one checkpoint in between."""

from pathlib import Path

import pytest

from tests.trainer.gang import SAVE_INTERVAL, Gang
from tests.trainer.warm_process import WarmProcess

# Without dropout, whose random numbers depend on the layout.
MODEL = "--attention-dropout 0 --hidden-dropout 0"
RESHARDABLE = "--dist-ckpt-optim-fully-reshardable"
EXPERTS = (
    "--tensor-model-parallel-size 1 --num-experts 4 --moe-router-topk 2 --expert-model-parallel-size 2 "
    "--moe-token-dispatcher-type allgather --disable-bias-linear"
)
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


def test_experts_that_are_no_longer_split_keep_their_optimizer(
    tmp_path_factory: pytest.TempPathFactory, corpus: Path, warm: WarmProcess
) -> None:
    """Split experts have an optimizer of their own: EP 2 has two on each rank, EP 1 one."""
    run, same_layout = (
        Gang(tmp_path_factory.mktemp("run"), corpus, nodes=1, warm=warm, ranks=2) for _ in range(2)
    )
    for gang in (run, same_layout):
        gang.flags += f"{MODEL} {EXPERTS}".split()
        assert until_iteration(gang, SAVE_INTERVAL, RESHARDABLE) == 0, gang.log()[-3000:]
    last = 2 * SAVE_INTERVAL
    whole = (*PIPELINE, "--expert-model-parallel-size", "1")
    assert until_iteration(run, last, RESHARDABLE, *whole) == 0, run.log()[-3000:]
    # And back again.
    assert until_iteration(run, last + 2, RESHARDABLE) == 0, run.log()[-3000:]

    assert until_iteration(same_layout, last + 2, RESHARDABLE) == 0, same_layout.log()[-3000:]
    expected, losses = same_layout.losses(), run.losses()
    assert sorted(losses) == sorted(expected)
    for iteration, (loss,) in expected.items():
        assert losses[iteration] == [pytest.approx(loss, rel=1e-3)], iteration


def test_ranks_of_one_replica_rewrite_a_checkpoint_for_any_layout_without_a_step(
    tmp_path_factory: pytest.TempPathFactory, corpus: Path, warm: WarmProcess
) -> None:
    """TP 2 x DP 2 -> two ranks of TP 2 that load and save -> PP 2, with the losses of the first layout."""
    first, last = SAVE_INTERVAL, SAVE_INTERVAL + 4
    original, converter = (
        Gang(tmp_path_factory.mktemp("run"), corpus, nodes=1, warm=warm, ranks=ranks) for ranks in (4, 2)
    )
    for gang in (original, converter):
        gang.flags += MODEL.split()
    assert until_iteration(original, first) == 0, original.log()[-3000:]

    # At the last iteration Megatron only saves, unless it is one at which the run has saved already.
    at = ("--load", str(original.save), "--ckpt-step", str(first), "--save-interval", "1000")
    assert until_iteration(converter, first, *at, RESHARDABLE) == 0, converter.log()[-3000:]
    assert converter.losses() == {}, "no step was done"
    assert until_iteration(converter, last, *PIPELINE, RESHARDABLE) == 0, converter.log()[-3000:]

    assert until_iteration(original, last) == 0, original.log()[-3000:]
    expected = {iteration: losses for iteration, losses in original.losses().items() if iteration > first}
    assert sorted(converter.losses()) == sorted(expected) == list(range(first + 1, last + 1))
    for iteration, (loss,) in expected.items():
        assert converter.losses()[iteration] == [pytest.approx(loss, rel=1e-4)], iteration
