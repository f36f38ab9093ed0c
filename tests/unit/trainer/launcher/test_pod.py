"""How a pod ends when its volumes or its node fail."""

import errno
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from megatron_contract.environment import JOURNAL_FILE
from megatron_contract.exit_codes import ExitCode
from megatron_trainer import settings
from megatron_trainer.checkpoints.checkpoint_lease import CheckpointLease
from megatron_trainer.launcher import pod
from megatron_trainer.launcher.pod import Pod
from megatron_trainer.listening import listen
from megatron_trainer.settings import SettingError
from megatron_trainer.telemetry.reporter import SOCKET_ENV, STACKS_ENV
from megatron_trainer.telemetry.run_journal import RunJournal

from tests.unit.trainer.checkpoints.test_selection import fail_reads


def master(save: Path) -> Pod:
    values = {"MEGATRON_PLATFORM": "cpu", "MEGATRON_RENDEZVOUS_TIMEOUT": "1"}
    return Pod(settings.read(values), ["--save", str(save), "--train-iters", "20"], lambda _text: None)


def test_a_journal_that_cannot_be_read_ends_the_pod_to_be_tried_again(tmp_path: Path) -> None:
    fail_reads(tmp_path / JOURNAL_FILE)
    ending = master(tmp_path)._open_journal()
    assert ending is not None
    assert ending.code == ExitCode.WORKER_DIED
    assert os.strerror(errno.EIO) in ending.message


def test_a_progress_port_that_is_taken_is_refused(tmp_path: Path) -> None:
    with listen(0, 1) as other:
        port = other.getsockname()[1]
        values = {"MEGATRON_PLATFORM": "cpu", "MEGATRON_PROGRESS_PORT": str(port)}
        taken = Pod(settings.read(values), ["--save", str(tmp_path), "--train-iters", "20"], print)
        with pytest.raises(SettingError, match=f"PORT {port}: Address already in use; set a free port"):
            taken._serve_progress()


@pytest.fixture
def without_processes(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A pod starts no process and no server, and leaves the streams and signals of the tests alone."""
    monkeypatch.setattr(pod, "ForkServer", lambda _warm_up: SimpleNamespace(close=lambda: None))
    monkeypatch.setattr(pod, "replace_streams", lambda: None)
    monkeypatch.setattr(Pod, "_serve_progress", lambda _pod: None)
    for name in (SOCKET_ENV, STACKS_ENV):
        monkeypatch.setenv(name, "")
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.usefixtures("without_processes")
def test_an_error_of_the_system_is_worth_another_pod(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_pod: Pod) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(Pod, "_preflight", fail)
    ending, _ = master(tmp_path).run()
    assert ending.code == ExitCode.WORKER_DIED
    pending = RunJournal(tmp_path, print).pending
    assert pending is not None
    assert pending.cause == ending.message == "launcher error: OSError: [Errno 5] Input/output error"


@pytest.mark.usefixtures("without_processes")
def test_a_directory_that_cannot_be_read_may_have_been_written_before(tmp_path: Path) -> None:
    save = tmp_path / "save"
    save.symlink_to(save.name)
    ending, _ = master(save).run()
    assert ending.code == ExitCode.WORKER_DIED
    assert "this run has written it before" in ending.message


@pytest.mark.usefixtures("without_processes")
def test_a_run_that_finds_the_lease_of_another_has_not_written_the_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    CheckpointLease(tmp_path, "older", "another run").acquire()

    def reject(_lease: CheckpointLease) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    monkeypatch.setattr(CheckpointLease, "acquire", reject)
    ending, _ = master(tmp_path).run()
    assert ending.code == ExitCode.USAGE
    assert "Read-only file system; mount the volume writable for user" in ending.message
