"""What the launcher does before it starts Megatron and joins the gang."""

import errno
import json
import os
import signal
import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from megatron_contract import environment
from megatron_contract.exit_codes import REASONS, ExitCode
from megatron_trainer import settings
from megatron_trainer.health.stacks import collectives_socket
from megatron_trainer.launcher import main, pod
from megatron_trainer.telemetry.event_socket import EventSocket


@pytest.fixture(autouse=True)
def handlers(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Restore the signal handler that `main` replaces. Threads of other tests would make it end pytest."""
    monkeypatch.setattr(main.threading, "active_count", lambda: 1)
    before = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, before)


def test_help_names_every_setting_and_exit_code(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main.main(["--num-layers", "2", "--help"])
    assert ended.value.code == 0
    text = capsys.readouterr().out
    assert environment.ENV_RENDEZVOUS_TIMEOUT in text
    assert all(f"{int(code)} {reason}" in text for code, reason in REASONS.items())


def test_sigterm_while_the_pod_starts_ends_it_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = tmp_path / "termination"
    configured = settings.read({environment.ENV_TERMINATION_LOG: str(log), environment.ENV_PLATFORM: "cpu"})
    monkeypatch.setattr(main.pod_settings, "read", lambda: configured)
    monkeypatch.setattr(main, "_prepare_environment", lambda _size, _argv: None)
    monkeypatch.setattr(main, "complete", lambda *_: os.kill(os.getpid(), signal.SIGTERM))
    with pytest.raises(SystemExit) as ended:
        main.main([])
    assert ended.value.code == ExitCode.TERMINATED
    assert json.loads(log.read_text())["reason"] == "Terminated"


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "/tmp"), ExitCode.WORKER_DIED),
        (BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN)), ExitCode.WORKER_DIED),
        (RuntimeError("can't start new thread"), ExitCode.WORKER_DIED),
        (RuntimeError("another"), ExitCode.INTERNAL),
    ],
    ids=str,
)
def test_an_error_of_the_node_as_the_pod_starts_is_worth_another_pod(
    error: Exception, code: ExitCode, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_apply: object) -> None:
        raise error

    monkeypatch.setattr(main, "_prepare_environment", lambda _size, _argv: None)
    monkeypatch.setattr(pod, "EventSocket", fail)
    configured = settings.read({environment.ENV_PLATFORM: "cpu"})
    ending, _ = main._run_pod(["--save", "/nowhere", "--train-iters", "20"], configured)
    assert ending.code == code
    assert ending.message == f"launcher error: {type(error).__name__}: {error}"


def test_a_temporary_directory_too_long_for_sockets_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    log = tmp_path / "termination"
    configured = settings.read({environment.ENV_TERMINATION_LOG: str(log), environment.ENV_PLATFORM: "cpu"})
    monkeypatch.setattr(main.pod_settings, "read", lambda: configured)
    monkeypatch.setenv("TMPDIR", "/scratch/" + "x" * 60)
    with pytest.raises(SystemExit) as ended:
        main.main([])
    assert ended.value.code == ExitCode.USAGE
    assert "TMPDIR: '/scratch/xx" in capsys.readouterr().err
    assert "has 69 bytes; with more than 65" in json.loads(log.read_text())["message"]


def test_the_sockets_of_a_pod_fit_below_the_longest_temporary_directory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Not tmp_path, which may be longer.
    with tempfile.TemporaryDirectory(dir="/tmp") as short:
        longest = Path(short) / ("x" * (main._LONGEST_TMPDIR - len(short) - 1))
        longest.mkdir()
        monkeypatch.setattr(tempfile, "tempdir", str(longest))
        events = EventSocket(lambda _: None)
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as requests:
            requests.bind(str(collectives_socket(events.folder, 9999)))
        events.close()
