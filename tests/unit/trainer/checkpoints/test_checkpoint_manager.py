"""Where a generation starts, given persistent and non-persistent checkpoints and the retry policy."""

import errno
import os
import shutil
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from megatron_contract.exit_codes import ExitCode
from megatron_contract.hardware import Evidence
from megatron_trainer import flags, settings
from megatron_trainer.checkpoints import checkpoint_manager, selection, volume
from megatron_trainer.checkpoints.checkpoint_lease import CheckpointLease, LeaseLostError
from megatron_trainer.checkpoints.checkpoint_manager import CheckpointManager
from megatron_trainer.rendezvous.state import RunEndedError, State
from megatron_trainer.telemetry.incidents import FailureKind, FailureReport
from megatron_trainer.telemetry.run_journal import RunJournal, RunSummary
from megatron_trainer.telemetry.status import Status
from megatron_trainer.termination import Ending

from tests.unit.trainer.checkpoints.test_selection import fail_reads, write_checkpoint


class Run:
    """A run with persistent checkpoints at 10 and 20, non-persistent ones at 22 and 24."""

    def __init__(self, folder: Path, *words: str) -> None:
        self.save, self.fast = folder / "save", folder / "fast"
        for root, iterations in ((self.save, (10, 20)), (self.fast, (22, 24))):
            for iteration in iterations:
                write_checkpoint(root, iteration)
            (root / selection.TRACKER).write_text(str(iterations[-1]))
        self.lease = CheckpointLease(self.save, "me", "run")
        self.lease.acquire()
        self.journal = RunJournal(self.save, lambda _text: None)
        run_flags = flags.read(
            [
                *("--save", str(self.save), "--train-iters", "100"),
                *("--non-persistent-ckpt-type", "global", "--non-persistent-global-ckpt-dir", str(self.fast)),
                *words,
            ]
        )
        status = Status(0, 100)
        self.checkpoints = CheckpointManager(
            settings.read({}), run_flags, status, self.journal, self.lease, lambda: False, lambda _text: None
        )

    def start(self, report: FailureReport | None = None) -> int | None:
        return self.checkpoints.prepare(State(2, report), False, None).iteration

    def trackers(self) -> tuple[str | None, str | None]:
        return selection.read_tracker(self.save), selection.read_tracker(self.fast)


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return Run(tmp_path)


def bad_loss(iteration: int) -> FailureReport:
    return FailureReport(
        FailureKind.LOSS, f"lm loss is nan at iteration {iteration}", 0, 0, failed_iteration=iteration
    )


def test_the_newest_checkpoint_of_both_directories_is_loaded(run: Run) -> None:
    assert run.start() == 24
    assert run.trackers() == ("20", "24")


def test_starting_weights_that_are_missing_end_a_run_without_checkpoints_at_once(tmp_path: Path) -> None:
    """Megatron would raise on every rank, which counts as an error that a restart may heal."""
    weights = tmp_path / "model-megatron"
    run = Run(tmp_path, "--pretrained-checkpoint", str(weights))
    assert run.start() == 24, "a run that resumes needs them no longer"
    for folder in (run.save, run.fast):
        (folder / selection.TRACKER).unlink()
        for checkpoint in folder.glob("iter_*"):
            shutil.rmtree(checkpoint)
    with pytest.raises(RunEndedError) as ended:
        run.start()
    assert ended.value.ending.code == ExitCode.NO_CHECKPOINT
    assert f"no checkpoint in {weights}, whose weights the run starts from (init.from)" in str(ended.value)
    weights.mkdir()
    (weights / selection.TRACKER).write_text(selection.RELEASE)
    assert run.start() is None


def test_the_newest_checkpoint_to_load_is_that_of_both_directories(run: Run) -> None:
    assert (run.checkpoints.newest_to_load(), run.checkpoints.newest()) == (24, 20)
    write_checkpoint(run.save, 30)
    assert run.checkpoints.newest_to_load() == 30
    for path in run.fast.glob("iter_*/.metadata"):
        path.unlink()
    assert run.checkpoints.newest_to_load() == 30


def test_a_broken_non_persistent_checkpoint_is_deleted_because_megatron_reads_all_names_there(
    run: Run,
) -> None:
    (run.fast / "iter_0000024" / ".metadata").unlink()
    assert run.start() == 22
    assert sorted(path.name for path in run.fast.iterdir()) == ["iter_0000022", selection.TRACKER]


def broken(run: Run) -> list[str]:
    return [path.name for path in run.save.glob("*.broken-*")]


@pytest.mark.parametrize(
    ("cause", "left"),
    [
        ("a checkpoint could not be written ([Errno 122] Disk quota exceeded); 2.0 TiB free", 0),
        ("a checkpoint could not be written (No space left on device); 2.0 TiB free", 0),
        ("RuntimeError: unable to write to file </torch_1>: No space left on device (28)", 1),
        ("a checkpoint could not be written ([Errno 5] Input/output error); 2.0 TiB free", 1),
    ],
)
def test_a_quota_that_is_used_up_is_a_full_volume(
    cause: str, left: int, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """statvfs counts the free space of the volume, not that of a quota."""
    monkeypatch.setattr(volume, "free_bytes", lambda _path: 2 << 40)
    (run.save / "iter_0000020" / ".metadata").unlink()
    assert run.start(FailureReport(FailureKind.RANK, cause, 0, 0)) == 24
    assert len(broken(run)) == left


def test_a_quota_that_prevents_a_repair_is_freed(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(volume, "free_bytes", lambda _path: 2 << 40)
    choose = selection.choose
    write_checkpoint(run.save, 30)
    (run.save / "iter_0000030").rename(run.save / "iter_0000030.broken-1")

    def write(*args: Any) -> selection.Choice:
        if broken(run):
            raise OSError(errno.EDQUOT, os.strerror(errno.EDQUOT))
        return choose(*args)

    monkeypatch.setattr(selection, "choose", write)
    assert run.start() == 24
    assert broken(run) == []


def test_a_rollback_sets_newer_checkpoints_of_both_directories_aside(run: Run) -> None:
    for start in (24, 22):
        assert run.start(bad_loss(26)) == start
    assert run.trackers() == ("20", "22")
    with pytest.raises(RunEndedError) as ended:
        run.start(bad_loss(26))
    assert ended.value.ending.code == ExitCode.LOSS_NOT_FINITE


def test_without_the_lease_nothing_is_changed(run: Run) -> None:
    (run.save / "iter_0000020" / ".metadata").unlink()
    CheckpointLease(run.save, "another", "run").acquire()
    with pytest.raises(RunEndedError) as ended:
        run.start()
    assert ended.value.ending.code == ExitCode.PEER_LOST
    assert (run.save / "iter_0000020").is_dir()


@pytest.mark.parametrize("iteration", [20, 10], ids=["the newest", "an older one"])
def test_a_checkpoint_that_cannot_be_read_now_is_kept_and_the_pod_is_retried(
    run: Run, iteration: int
) -> None:
    file = selection.directory(run.save, iteration) / ".metadata"
    fail_reads(file)
    with pytest.raises(RunEndedError) as ended:
        run.start()
    assert ended.value.ending.code == ExitCode.WORKER_DIED
    assert str(file) in ended.value.ending.message
    assert selection.iterations(run.save) == [20, 10]
    assert run.trackers() == ("20", "24")
    assert RunJournal(run.save, print).generation == 0


def lose_the_lease(run: Run, monkeypatch: pytest.MonkeyPatch, module: object, name: str) -> None:
    """Another launcher takes the lease the first time that this function is called."""
    inner = getattr(module, name)

    def call(*args: object, **kwargs: object) -> object:
        monkeypatch.undo()
        CheckpointLease(run.save, "another", "run").acquire()
        return inner(*args, **kwargs)

    monkeypatch.setattr(module, name, call)


def test_a_checkpoint_is_not_set_aside_if_the_lease_is_lost_while_the_directory_is_read(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    (run.save / "iter_0000020" / ".metadata").unlink()
    lose_the_lease(run, monkeypatch, selection, "why_incomplete")
    with pytest.raises(RunEndedError) as ended:
        run.start()
    assert ended.value.ending.code == ExitCode.PEER_LOST
    assert (run.save / "iter_0000020").is_dir()
    assert run.checkpoints.fenced is not None, "the journal of the new holder must not be written at the end"


def test_nothing_is_rolled_back_if_the_lease_is_lost_while_the_restart_is_planned(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert run.start(bad_loss(26)) == 24
    lose_the_lease(run, monkeypatch, checkpoint_manager, "plan_restart")
    with pytest.raises(RunEndedError) as ended:
        run.start(bad_loss(26))
    assert ended.value.ending.code == ExitCode.PEER_LOST
    assert run.trackers() == ("20", "24")


def test_the_journal_is_not_written_if_the_lease_is_lost_while_the_restart_is_planned(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    lose_the_lease(run, monkeypatch, checkpoint_manager, "plan_restart")
    with pytest.raises(RunEndedError):
        run.start()
    assert RunJournal(run.save, print).generation == 0


def test_a_master_that_finds_the_last_checkpoint_has_nothing_left_to_do(run: Run) -> None:
    assert run.checkpoints.completed(None) is None
    write_checkpoint(run.save, 100)
    ending = run.checkpoints.completed(None)
    assert ending is not None
    assert (ending.code, ending.message) == (ExitCode.OK, "iteration 100 of 100 was already done")


def test_a_master_that_must_roll_back_the_last_iteration_is_not_done(run: Run) -> None:
    write_checkpoint(run.save, 100)
    assert run.checkpoints.completed(bad_loss(100)) is None


def test_the_plan_names_the_lease_holder_and_has_no_preflight_by_default(run: Run) -> None:
    plan = run.checkpoints.prepare(State(2), True, None)
    assert (plan.owner, plan.preflight) == ("me", False)


def watching(run: Run, status: Status, log: Callable[[str], None] = print) -> CheckpointManager:
    """Node 0 of the run, which keeps one checkpoint."""
    kept = settings.read({"MEGATRON_KEEP_CHECKPOINTS": "1"})
    run_flags = flags.read(["--save", str(run.save)])
    return CheckpointManager(kept, run_flags, status, run.journal, run.lease, lambda: False, log)


def low_space(status: Status) -> str | None:
    warnings = {each.reason: each.message for each in status.report.warnings}
    return warnings.get("CheckpointVolumeLow")


def test_little_space_is_reported_also_if_old_checkpoints_cannot_be_read(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(selection, "prune", fail)
    monkeypatch.setattr(volume, "free_bytes", lambda _path: 0)
    status = Status(0, 100)
    checkpoints = watching(run, status)
    checkpoints.watch()
    try:
        deadline = time.monotonic() + 60
        while low_space(status) is None and time.monotonic() < deadline:
            time.sleep(0.05)
        assert (low_space(status) or "").startswith("0 B free on the volume")
    finally:
        checkpoints.fenced = LeaseLostError("ends the threads")


def test_space_that_a_save_in_progress_has_filled_is_not_missing_for_it(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    size = volume.directory_size(run.save / "iter_0000020")
    status = Status(0, 100)
    status.set_checkpoint(20, 0.0)
    checkpoints = watching(run, status)
    partial = run.save / "iter_0000030"
    partial.mkdir()
    (partial / "__0_0.distcp").write_bytes(b"x" * (size // 2))
    monkeypatch.setattr(volume, "free_bytes", lambda _path: size)
    checkpoints._measure()
    assert low_space(status) is None
    monkeypatch.setattr(volume, "free_bytes", lambda _path: size // 2)
    checkpoints._measure()
    assert "the save in progress needs about" in (low_space(status) or "")


def test_the_lease_is_checked_while_a_checkpoint_is_deleted(run: Run) -> None:
    deleting, go_on = threading.Event(), threading.Event()

    def log(text: str) -> None:
        if text.startswith("deleted checkpoint"):
            deleting.set()
            go_on.wait()

    checkpoints = watching(run, Status(0, 100), log)
    checkpoints.watch()
    try:
        assert deleting.wait(60)
        CheckpointLease(run.save, "another", "run").acquire()
        deadline = time.monotonic() + 60
        while checkpoints.fenced is None and time.monotonic() < deadline:
            time.sleep(0.05)
        assert checkpoints.fenced is not None
    finally:
        go_on.set()


def other_pod(run: Run, status: Status) -> CheckpointManager:
    """A pod other than node 0: without the lease and the journal."""
    run_flags = flags.read(["--save", str(run.save), "--train-iters", "20"])
    return CheckpointManager(settings.read({}), run_flags, status, None, None, lambda: False, print)


def test_a_pod_other_than_node_0_reads_no_checkpoint_that_node_0_has_checked(run: Run) -> None:
    status = Status(1, 20)
    node_0 = Status(0, 20)
    node_0.set_checkpoint(20, 0.0)
    report = node_0.report
    status.set_run(RunSummary((), 0.0, 0.0, None, report.checkpoint_iteration, report.checkpoint_time))
    for path in run.save.glob("iter_*/*"):
        path.unlink()
        os.mkfifo(path)  # opening it would never return
    ending = Ending(ExitCode.OK, "all iterations are done")
    assert other_pod(run, status).verify(ending) == ending
    assert status.report.checkpoint_iteration == 20


def test_a_pod_other_than_node_0_checks_the_last_checkpoint_if_node_0_has_not_reported_it(run: Run) -> None:
    ending = Ending(ExitCode.OK, "all iterations are done")
    assert other_pod(run, Status(1, 20)).verify(ending) == ending
    (run.save / "iter_0000020" / "__0_0.distcp").unlink()
    assert other_pod(run, Status(1, 20)).verify(ending).code == ExitCode.WORKER_DIED


@pytest.mark.parametrize("code", [ExitCode.WORKER_DIED, ExitCode.HANG, ExitCode.TERMINATED])
def test_a_pod_ends_as_it_would_if_its_checkpoints_cannot_be_read(run: Run, code: ExitCode) -> None:
    fail_reads(run.save / "iter_0000020" / ".metadata")
    ending = Ending(code, "rank 3 was killed by SIGKILL", 3, Evidence.DEVICE_XID)
    run.checkpoints.report_newest()
    assert run.checkpoints.verify(ending) == ending


def test_a_run_whose_last_checkpoint_cannot_be_read_is_not_completed(run: Run) -> None:
    write_checkpoint(run.save, 100)
    fail_reads(run.save / "iter_0000100" / "metadata.json")
    ending = run.checkpoints.verify(Ending(ExitCode.OK, "all iterations are done"))
    assert ending.code == ExitCode.WORKER_DIED
    assert os.strerror(errno.EIO) in ending.message
