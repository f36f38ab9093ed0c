"""Runs with Megatron FSDP: their losses, how they recover, and what of their checkpoints is needed."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from megatron_contract.exit_codes import ExitCode
from megatron_trainer.checkpoints import selection
from megatron_trainer.flags import FSDP_FORMAT, MEGATRON_FSDP

from tests.trainer.gang import SAVE_INTERVAL, Gang, assert_same_training
from tests.trainer.test_layout_of_a_run import MODEL, until_iteration
from tests.trainer.warm_process import WarmProcess

FSDP = [MEGATRON_FSDP, "--ckpt-format", FSDP_FORMAT]
RECOMPUTED = (
    *("--recompute-granularity", "full", "--recompute-method", "uniform"),
    *("--recompute-num-layers", "1"),
)
SECOND = 2 * SAVE_INTERVAL


def ranks(
    folder: Path, corpus: Path, warm: WarmProcess, *flags: str, fsdp: bool = True, count: int = 2
) -> Gang:
    """A run of ranks with different samples in one pod, which waits for its checkpoints."""
    run = Gang(folder, corpus, nodes=1, warm=warm, ranks=count)
    run.flags.remove("--async-save")
    run.flags += ["--tensor-model-parallel-size", "1", *(FSDP if fsdp else ()), *flags]
    return run


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory, corpus: Path, warm: WarmProcess) -> Iterator[Gang]:
    """A run with FSDP without any failure."""
    run = ranks(tmp_path_factory.mktemp("fsdp"), corpus, warm)
    run.run_to_end()
    yield run
    run.stop()


@pytest.fixture
def run(tmp_path: Path, corpus: Path, warm: WarmProcess) -> Iterator[Gang]:
    made = ranks(tmp_path, corpus, warm)
    yield made
    made.stop()


def test_losses_are_those_of_the_distributed_optimizer(
    tmp_path: Path, corpus: Path, warm: WarmProcess, whole: Gang
) -> None:
    plain = ranks(tmp_path, corpus, warm, fsdp=False)
    plain.run_to_end()
    expected, losses = plain.losses(), whole.losses()
    assert sorted(losses) == sorted(expected)
    for iteration, (loss,) in expected.items():
        # In float32, sums in another order.
        assert losses[iteration] == [pytest.approx(loss, rel=1e-4)], iteration


def test_a_rank_holds_a_part_of_the_weights(whole: Gang) -> None:
    """Each rank saves what it holds: without sharding one would save all."""
    sizes = [path.stat().st_size for path in selection.directory(whole.save, SAVE_INTERVAL).glob("*.distcp")]
    assert len(sizes) == 2
    assert min(sizes) > sum(sizes) / 4


def test_a_killed_run_continues_with_equal_losses(run: Gang, whole: Gang) -> None:
    run.hold_after(SAVE_INTERVAL + 3)
    run.start()
    run.await_iteration(SAVE_INTERVAL + 3)
    run.kill_rank(0)
    assert run.wait() == [0], run.log()[-3000:]
    assert f"starting from iteration {SAVE_INTERVAL}" in run.log()
    assert_same_training(run, whole)


def shorten(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def test_a_run_passes_over_a_torn_checkpoint(run: Gang, whole: Gang) -> None:
    shutil.copytree(whole.save, run.save)
    shutil.rmtree(run.save / f"iter_{3 * SAVE_INTERVAL:07}")
    (run.save / "incidents.json").unlink()
    (run.save / selection.TRACKER).write_text(str(SECOND))
    shorten(sorted((run.save / f"iter_{SECOND:07}").glob("*.distcp"))[0])
    run.start()
    assert run.wait() == [0], run.log()[-3000:]
    assert f"starting from iteration {SAVE_INTERVAL}" in run.log()
    assert_same_training(run, whole)


def test_another_number_of_ranks_continues(
    tmp_path_factory: pytest.TempPathFactory, corpus: Path, warm: WarmProcess
) -> None:
    """4 ranks, then 2, then 4, as an elastic run shrinks and grows."""
    save = tmp_path_factory.mktemp("save")
    runs = {n: ranks(tmp_path_factory.mktemp("run"), corpus, warm, *MODEL.split(), count=n) for n in (2, 4)}
    same = ranks(tmp_path_factory.mktemp("same"), corpus, warm, *MODEL.split(), count=4)
    for last, count in ((SAVE_INTERVAL, 4), (SECOND, 2), (SECOND + 4, 4)):
        runs[count].save = save
        assert until_iteration(runs[count], last) == 0, runs[count].log()[-3000:]
    assert until_iteration(same, SECOND + 4) == 0, same.log()[-3000:]
    expected, losses = same.losses(), runs[4].losses()
    assert sorted(losses) == sorted(expected) == list(range(1, SECOND + 5))
    for iteration, (loss,) in expected.items():
        assert losses[iteration] == [pytest.approx(loss, rel=1e-4)], iteration


@pytest.mark.repeats
def test_gated_products_in_bf16_resume(
    tmp_path_factory: pytest.TempPathFactory, corpus: Path, warm: WarmProcess
) -> None:
    """The halves of a gated product are tensors of their own in these checkpoints: at TP 2 and at TP 1."""
    flags = ("--bf16", "--swiglu", "--disable-bias-linear", *RECOMPUTED, *MODEL.split())
    split = ("--tensor-model-parallel-size", "2")
    resumed, same = (ranks(tmp_path_factory.mktemp("run"), corpus, warm, *flags, count=4) for _ in range(2))
    for last, layout in ((SAVE_INTERVAL, split), (SAVE_INTERVAL + 2, split), (SECOND, ())):
        assert until_iteration(resumed, last, *layout) == 0, resumed.log()[-3000:]
    assert until_iteration(same, SECOND, *split) == 0, same.log()[-3000:]
    expected, losses = same.losses(), resumed.losses()
    assert sorted(losses) == sorted(expected) == list(range(1, SECOND + 1))
    for iteration, (loss,) in expected.items():
        exact = iteration <= SAVE_INTERVAL + 2
        # Of another layout sums are rounded elsewhere.
        assert losses[iteration] == [loss if exact else pytest.approx(loss, rel=1e-3)], iteration


@pytest.mark.parametrize("flag", ["--async-save", "--num-experts=4"])
def test_what_its_checkpoints_do_not_hold_is_refused(flag: str, run: Gang) -> None:
    run.flags.append(flag)
    run.start()
    assert run.wait() == [ExitCode.USAGE]
    assert f"{flag.split('=')[0]} with --use-megatron-fsdp" in run.termination(0)["message"]
