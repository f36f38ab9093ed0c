"""Where a generation starts, with checkpoints of both tiers and the loss policy."""

from pathlib import Path

import pytest
from megatron_contract.exit_codes import ExitCode
from megatron_trainer.checkpoints import selection
from megatron_trainer.checkpoints.checkpoint_lease import Ownership
from megatron_trainer.checkpoints.checkpoint_manager import Keeper
from megatron_trainer.launcher import flags, settings
from megatron_trainer.rendezvous.state import Ended, State
from megatron_trainer.telemetry.incidents import Kind, Report
from megatron_trainer.telemetry.run_journal import Book
from megatron_trainer.telemetry.status import Status

from tests.unit.trainer.test_checkpoints import write_checkpoint


class Run:
    """A run with persistent checkpoints at 10 and 20, non-persistent ones at 22 and 24."""

    def __init__(self, folder: Path) -> None:
        self.save, self.fast = folder / "save", folder / "fast"
        for root, iterations in ((self.save, (10, 20)), (self.fast, (22, 24))):
            for iteration in iterations:
                write_checkpoint(root, iteration)
            (root / selection.TRACKER).write_text(str(iterations[-1]))
        self.owner = Ownership(self.save, "me", "run")
        self.owner.claim()
        self.book = Book(self.save, lambda _text: None)
        known = flags.read(
            [
                *("--save", str(self.save), "--train-iters", "100"),
                *("--non-persistent-ckpt-type", "global", "--non-persistent-global-ckpt-dir", str(self.fast)),
            ]
        )
        status = Status(0, 100)
        self.keeper = Keeper(
            settings.read({}), known, status, self.book, self.owner, lambda: False, lambda _text: None
        )

    def start(self, report: Report | None = None) -> int | None:
        return self.keeper.prepare(State(2, report), False, {}).iteration

    def trackers(self) -> tuple[str | None, str | None]:
        return selection.tracked(self.save), selection.tracked(self.fast)


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return Run(tmp_path)


def bad_loss(iteration: int) -> Report:
    return Report(Kind.LOSS, f"lm loss is nan at iteration {iteration}", 0, 0, failed_iteration=iteration)


def test_the_newest_of_both_tiers_is_loaded(run: Run) -> None:
    assert run.start() == 24
    assert run.trackers() == ("20", "24")


def test_a_broken_non_persistent_one_is_deleted_since_megatron_reads_all_names_there(run: Run) -> None:
    (run.fast / "iter_0000024" / ".metadata").unlink()
    assert run.start() == 22
    assert sorted(path.name for path in run.fast.iterdir()) == ["iter_0000022", selection.TRACKER]


def test_going_back_takes_newer_ones_of_both_tiers_out_of_the_way(run: Run) -> None:
    for start in (24, 22):
        assert run.start(bad_loss(26)) == start
    assert run.trackers() == ("20", "22")
    with pytest.raises(Ended) as ended:
        run.start(bad_loss(26))
    assert ended.value.ending.code == ExitCode.LOSS_NOT_FINITE


def test_a_keeper_that_is_not_the_owner_any_more_touches_nothing(run: Run) -> None:
    (run.save / "iter_0000020" / ".metadata").unlink()
    Ownership(run.save, "another", "run").claim()
    with pytest.raises(Ended) as ended:
        run.start()
    assert ended.value.ending.code == ExitCode.PEER_LOST
    assert (run.save / "iter_0000020").is_dir()


def test_the_plan_names_the_owner_and_asks_new_pods_for_the_preflight_only_where_it_is_set(run: Run) -> None:
    plan = run.keeper.prepare(State(2), True, {})
    assert (plan.owner, plan.preflight) == ("me", False)
