"""The checkpoint with the lowest validation loss is kept beside the newest ones."""

import fcntl
import json
import random
import shutil
from pathlib import Path

import pytest
from megatron_contract.environment import VALIDATION_FILE
from megatron_contract.exit_codes import ExitCode
from megatron_trainer import flags, settings
from megatron_trainer.checkpoints import selection
from megatron_trainer.checkpoints.best_checkpoint import best_complete, read_losses
from megatron_trainer.checkpoints.checkpoint_lease import CheckpointLease
from megatron_trainer.checkpoints.checkpoint_manager import CheckpointManager
from megatron_trainer.rendezvous.state import State
from megatron_trainer.telemetry.run_journal import RunJournal
from megatron_trainer.telemetry.status import Status
from megatron_trainer.telemetry.validation_log import ValidationLog
from megatron_trainer.termination import Ending

from tests.unit.trainer.checkpoints.test_selection import write_checkpoint


def complete_iterations(root: Path) -> list[int]:
    return sorted(selection.newest_complete_iterations(root, 100))


def evaluate(root: Path, iteration: int, loss: float, generation: int = 1) -> None:
    line = {"iteration": iteration, "lmLoss": loss, "generation": generation, "time": 1.0}
    with (root / VALIDATION_FILE).open("a") as file:
        file.write(json.dumps(line) + "\n")


@pytest.mark.parametrize(
    ("losses", "best"),
    [
        ({}, None),
        ({5: 1.0, 40: 0.5}, None),
        ({10: 2.0}, 10),
        ({10: 2.0, 20: 1.0, 30: 3.0}, 20),
        ({10: 2.0, 20: 2.0}, 10),
        ({15: 0.1, 30: 3.0}, 30),
    ],
)
def test_the_best_is_the_complete_checkpoint_with_the_lowest_loss_and_the_earliest_of_equal_ones(
    losses: dict[int, float], best: int | None, tmp_path: Path
) -> None:
    for iteration in (10, 20, 30):
        write_checkpoint(tmp_path, iteration)
    assert best_complete(tmp_path, losses) == best


def test_a_checkpoint_whose_save_has_not_finished_does_not_take_the_place_of_the_best(tmp_path: Path) -> None:
    for iteration in (10, 20, 30):
        write_checkpoint(tmp_path, iteration)
    (tmp_path / "iter_0000030" / "metadata.json").unlink()
    losses = {10: 1.0, 20: 2.0, 30: 0.5}
    assert best_complete(tmp_path, losses) == 10
    selection.prune(tmp_path, 1, also=best_complete(tmp_path, losses))
    assert complete_iterations(tmp_path) == [10, 20]
    (tmp_path / "iter_0000030" / "metadata.json").write_text('{"sharded_backend": "torch_dist"}')
    selection.prune(tmp_path, 1, also=best_complete(tmp_path, losses))
    assert complete_iterations(tmp_path) == [30], "the earlier best goes once a better one is complete"


class Walk:
    """A run that trains, evaluates, saves, is killed, resumes and rolls back, as the trainer would."""

    def __init__(self, root: Path, random_: random.Random) -> None:
        self.root, self.random = root, random_
        self.log = ValidationLog(root / VALIDATION_FILE)
        self.iteration, self.generation = 0, 1
        self.keep = random_.randint(1, 3)
        self.losses: dict[int, float] = {}

    def train(self) -> None:
        self.iteration += 10
        if self.random.random() < 0.6:
            loss = self.random.choice([float("nan"), 1.0, round(self.random.uniform(1, 3), 1)])
            evaluate(self.root, self.iteration, loss, self.generation)
            if loss == loss:
                self.losses[self.iteration] = loss
        if self.random.random() < 0.8:
            path = selection.directory(self.root, self.iteration)
            shutil.rmtree(path, ignore_errors=True)
            write_checkpoint(self.root, self.iteration)
            if self.random.random() < 0.3:
                (path / "metadata.json").unlink()

    def resume(self) -> None:
        complete = selection.choose(self.root).iteration
        if complete is not None and self.random.random() < 0.3:
            older = [each for each in complete_iterations(self.root) if each < complete]
            start = older[-1] if older else None
            newer = [each for each in selection.iterations(self.root) if each > (start or 0)]
            selection.roll_back(self.root, start, newer, "the loss is nan")
            complete = start
        self.iteration = complete or 0
        self.generation += 1
        self.log = ValidationLog(self.root / VALIDATION_FILE)
        self.log.discard_after(self.iteration, self.generation)
        self.losses = {at: loss for at, loss in self.losses.items() if at <= self.iteration}

    def retain(self) -> None:
        self.log.read_new()
        before = complete_iterations(self.root)
        evaluated = [(self.losses[each], each) for each in before if each in self.losses]
        best = best_complete(self.root, self.log.losses)
        selection.prune(self.root, self.keep, log=lambda _text: None, also=best)
        expected = {*before[-self.keep :], *([min(evaluated)[1]] if evaluated else [])}
        assert complete_iterations(self.root) == sorted(expected)


@pytest.mark.parametrize("seed", range(20))
def test_in_a_random_run_exactly_the_newest_and_the_best_stay(seed: int, tmp_path: Path) -> None:
    walk = Walk(tmp_path, random.Random(seed))
    for _ in range(30):
        walk.random.choices([walk.train, walk.resume, walk.retain], [6, 1, 3])[0]()
    walk.retain()


def test_an_evaluation_that_a_resume_discards_counts_for_no_reader_until_it_is_repeated(
    tmp_path: Path,
) -> None:
    evaluate(tmp_path, 10, 2.0)
    evaluate(tmp_path, 20, 1.0)
    reader = ValidationLog(tmp_path / VALIDATION_FILE)
    reader.read_new()
    journal = RunJournal(tmp_path, print)
    journal.start_generation(2, None, resumed_from=10, latest=None, met_at=1.0)
    evaluate(tmp_path, 20, 0.5)  # by a rank of generation 1 that was frozen
    reader.read_new()
    for losses in (dict(reader.losses), dict(read_losses(tmp_path))):
        assert losses == {10: 2.0}
    assert journal.summary().best_validation_iteration == 10
    evaluate(tmp_path, 20, 3.0, generation=2)
    assert dict(read_losses(tmp_path)) == {10: 2.0, 20: 3.0}


def test_a_resume_that_discards_no_evaluation_writes_nothing(tmp_path: Path) -> None:
    evaluate(tmp_path, 10, 2.0)
    before = (tmp_path / VALIDATION_FILE).read_text()
    journal = RunJournal(tmp_path, print)
    journal.start_generation(2, None, resumed_from=10, latest=None, met_at=1.0)
    assert (tmp_path / VALIDATION_FILE).read_text() == before


class Managed:
    """Node 0 of a run that keeps its newest checkpoint and the best; 10 is the best of 10, 20 and 30.

    Not `new`: another pod of it, which finds the directory as the former one has left it.
    """

    def __init__(self, save: Path, *, new: bool = True, **environment: str) -> None:
        for iteration, loss in ((10, 1.0), (20, 2.0), (30, 3.0)) if new else ():
            write_checkpoint(save, iteration)
            evaluate(save, iteration, loss)
            (save / selection.TRACKER).write_text(str(iteration))
        lease = CheckpointLease(save, "me", "run")
        lease.acquire()
        values = {"MEGATRON_KEEP_CHECKPOINTS": "1", "MEGATRON_KEEP_BEST": "1"} | environment
        self.status = Status(0, 40)
        self.manager = CheckpointManager(
            settings.read(values),
            flags.read(["--save", str(save), "--train-iters", "40"]),
            self.status,
            RunJournal(save, print),
            lease,
            lambda: False,
            print,
        )

    def check(self, reported: str | None) -> str | None:
        """What the thread that watches the directory does each time."""
        return self.manager._check_directory(reported)

    def best(self) -> tuple[int | None, float | None]:
        report = self.status.report
        return report.best_checkpoint_iteration, report.best_checkpoint_loss


def test_node_0_keeps_and_reports_the_best_and_forgets_it_once_a_better_one_is_complete(
    tmp_path: Path,
) -> None:
    run = Managed(tmp_path)
    reported = run.check(None)
    assert complete_iterations(tmp_path) == [10, 30]
    assert run.best() == (10, 1.0)
    evaluate(tmp_path, 40, 0.5)
    assert run.check(reported) == reported
    assert complete_iterations(tmp_path) == [10, 30], "it has been evaluated, and is not saved yet"
    write_checkpoint(tmp_path, 40)
    (tmp_path / selection.TRACKER).write_text("40")
    assert run.check(reported) == "40"
    assert complete_iterations(tmp_path) == [40]
    assert run.best() == (40, 0.5)


def test_a_launcher_that_starts_knows_the_best_of_the_earlier_ones(tmp_path: Path) -> None:
    Managed(tmp_path).check(None)
    run = Managed(tmp_path, new=False)
    assert run.manager.prepare(State(2), False, None).iteration == 30
    assert run.check(None) == "30"
    assert run.best() == (10, 1.0)
    assert complete_iterations(tmp_path) == [10, 30]


def test_the_evaluation_after_the_last_save_is_counted_when_the_run_ends(tmp_path: Path) -> None:
    run = Managed(tmp_path)
    write_checkpoint(tmp_path, 40)
    (tmp_path / selection.TRACKER).write_text("40")
    run.check(None)
    assert run.best() == (10, 1.0)
    evaluate(tmp_path, 40, 0.25)
    assert run.manager.verify(Ending(ExitCode.OK, "done")).code == ExitCode.OK
    assert run.best() == (40, 0.25)
    assert complete_iterations(tmp_path) == [40]


def test_of_a_run_that_is_done_only_the_newest_are_left(tmp_path: Path) -> None:
    """The last checkpoint may be complete a moment before the launcher ends."""
    run = Managed(tmp_path, MEGATRON_KEEP_BEST="")
    run.check(None)
    write_checkpoint(tmp_path, 40)
    (tmp_path / selection.TRACKER).write_text("40")
    (tmp_path / ".deleting-iter_0000020").mkdir()
    assert run.manager.verify(Ending(ExitCode.TERMINATED, "SIGTERM")).code == ExitCode.TERMINATED
    assert complete_iterations(tmp_path) == [30, 40], "another pod goes on"
    assert run.manager.verify(Ending(ExitCode.OK, "done")).code == ExitCode.OK
    assert complete_iterations(tmp_path) == [40]
    assert not list(tmp_path.glob(".deleting-*"))


def test_without_the_setting_only_the_newest_are_kept_and_no_best_is_reported(tmp_path: Path) -> None:
    run = Managed(tmp_path, MEGATRON_KEEP_BEST="")
    run.check(None)
    assert complete_iterations(tmp_path) == [30]
    assert run.best() == (None, None)


def test_all_are_kept_without_a_number_to_keep_and_the_best_is_reported(tmp_path: Path) -> None:
    run = Managed(tmp_path, MEGATRON_KEEP_CHECKPOINTS="")
    run.check(None)
    assert complete_iterations(tmp_path) == [10, 20, 30]
    assert run.best() == (10, 1.0)


def test_a_former_best_that_a_reader_has_locked_stays_until_the_next_checkpoint(tmp_path: Path) -> None:
    run = Managed(tmp_path)
    reported = run.check(None)
    evaluate(tmp_path, 30, 0.5)
    with (tmp_path / "iter_0000010" / "metadata.json").open() as file:
        fcntl.flock(file, fcntl.LOCK_SH)
        run.check(reported)
        assert complete_iterations(tmp_path) == [10, 30]
    run.check(None)
    assert complete_iterations(tmp_path) == [30]
