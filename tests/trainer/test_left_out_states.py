"""Runs whose checkpoints lack optimizer states or random states: how they resume, and from which others."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from megatron_trainer.checkpoints import selection
from megatron_trainer.checkpoints.volume import directory_size
from megatron_trainer.flags import FSDP_FORMAT, MEGATRON_FSDP

from tests.trainer.gang import SAVE_INTERVAL, Gang
from tests.trainer.test_layout_of_a_run import MODEL, PIPELINE, until_iteration
from tests.trainer.warm_process import WarmProcess

NO_OPTIMIZER, NO_RANDOM = "--no-save-optim", "--no-save-rng"
FSDP = ("--tensor-model-parallel-size", "1", MEGATRON_FSDP, "--ckpt-format", FSDP_FORMAT)
FIRST, LAST = SAVE_INTERVAL + 1, 2 * SAVE_INTERVAL
NewGang = Callable[..., Gang]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory, corpus: Path, warm: WarmProcess) -> Iterator[NewGang]:
    """Makes a run of one pod of two ranks, at TP 2; stops all in the end."""
    runs: list[Gang] = []

    def new(*flags: str) -> Gang:
        runs.append(Gang(tmp_path_factory.mktemp("run"), corpus, nodes=1, warm=warm, ranks=2))
        runs[-1].flags += flags
        return runs[-1]

    yield new
    for run in runs:
        run.stop()


@pytest.fixture(scope="module")
def whole(made: NewGang) -> Gang:
    """A run with dropout and without any failure, whose checkpoints have all states."""
    run = made()
    assert until_iteration(run, LAST) == 0, run.log()[-3000:]
    return run


def rates(run: Gang) -> dict[int, set[float]]:
    """The learning rates of each iteration: a single one where repetitions have the same."""
    found: dict[int, set[float]] = {}
    for each in run.records():
        found.setdefault(each["iteration"], set()).add(each["learningRate"])
    return found


def killed_after_a_save(run: Gang) -> None:
    """Run to the end, with a rank killed two iterations after the first checkpoint."""
    run.hold_after(FIRST + 1)
    run.start(extra=("--train-iters", str(LAST)))
    run.await_iteration(FIRST + 1)
    run.await_checkpoint(SAVE_INTERVAL)
    run.kill_rank(0)
    run.release()
    assert run.wait() == [0], run.log()[-3000:]
    (incident,) = run.incidents()
    assert incident["resumedFrom"] == SAVE_INTERVAL


def size(run: Gang) -> int:
    return directory_size(selection.directory(run.save, LAST))


def test_a_killed_run_resumes_from_weights_and_schedule_with_new_moments(made: NewGang, whole: Gang) -> None:
    run = made(NO_OPTIMIZER)
    killed_after_a_save(run)
    losses, expected = run.losses(), whole.losses()
    # Made by the weights that were loaded, with the random states of the checkpoint.
    assert losses[FIRST] == expected[FIRST] * 2
    assert losses[FIRST + 1][0] == expected[FIRST + 1][0]
    assert losses[FIRST + 1][1] != expected[FIRST + 1][0], "Adam begins again"
    assert rates(run) == rates(whole)
    assert sorted(losses) == list(range(1, LAST + 1))


def test_checkpoints_in_fp32_have_a_quarter_of_the_bytes(made: NewGang, whole: Gang) -> None:
    run = made(NO_OPTIMIZER)
    assert until_iteration(run, LAST) == 0, run.log()[-3000:]
    assert run.losses() == whole.losses(), "what is saved does not change what is trained"
    assert size(run) == pytest.approx(size(whole) / 4, rel=0.1)


def test_a_killed_run_resumes_with_its_optimizer_and_other_random_numbers(made: NewGang, whole: Gang) -> None:
    run = made(NO_RANDOM)
    killed_after_a_save(run)
    losses = run.losses()
    assert losses[FIRST][0] == whole.losses()[FIRST][0]
    assert losses[FIRST][1] != losses[FIRST][0], "dropout is another"
    without_dropout, undisturbed = made(NO_RANDOM, *MODEL.split()), made(*MODEL.split())
    killed_after_a_save(without_dropout)
    assert until_iteration(undisturbed, LAST) == 0, undisturbed.log()[-3000:]
    assert without_dropout.distinct_losses() == undisturbed.distinct_losses()


@pytest.mark.repeats
def test_checkpoints_of_either_kind_are_loaded_after_an_edit(made: NewGang, whole: Gang) -> None:
    run = made()
    assert until_iteration(run, SAVE_INTERVAL) == 0, run.log()[-3000:]
    assert until_iteration(run, LAST, NO_OPTIMIZER, NO_RANDOM) == 0, run.log()[-3000:]
    assert run.losses() == whole.losses(), "the older checkpoint has all states, and they are loaded"
    assert until_iteration(run, LAST + SAVE_INTERVAL) == 0, run.log()[-3000:]
    assert until_iteration(run, LAST + SAVE_INTERVAL + 1) == 0, run.log()[-3000:]
    assert sorted(run.losses()) == list(range(1, LAST + SAVE_INTERVAL + 2))
    assert directory_size(selection.directory(run.save, LAST + SAVE_INTERVAL)) == pytest.approx(
        size(whole), rel=0.01
    )


@pytest.mark.repeats
def test_the_layout_changes_without_optimizer_states(made: NewGang) -> None:
    run, same_layout = (made(NO_OPTIMIZER, *MODEL.split()) for _ in range(2))
    for each in (run, same_layout):
        assert until_iteration(each, SAVE_INTERVAL) == 0, each.log()[-3000:]
    assert until_iteration(run, LAST, *PIPELINE) == 0, run.log()[-3000:]
    assert until_iteration(same_layout, LAST) == 0, same_layout.log()[-3000:]
    for iteration, (loss,) in same_layout.losses().items():
        # In float32, sums in another order.
        assert run.losses()[iteration] == [pytest.approx(loss, rel=1e-4)], iteration


@pytest.mark.repeats
def test_a_run_with_megatron_fsdp_resumes_without_random_states(made: NewGang) -> None:
    undisturbed, run = (made(*MODEL.split(), *FSDP) for _ in range(2))
    for each in (undisturbed, run):
        each.flags.remove("--async-save")
    assert until_iteration(undisturbed, LAST) == 0, undisturbed.log()[-3000:]
    run.flags.append(NO_RANDOM)
    killed_after_a_save(run)
    assert run.distinct_losses() == undisturbed.distinct_losses()
