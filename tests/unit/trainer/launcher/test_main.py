"""What the launcher does before it starts Megatron and joins the gang."""

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from megatron_contract import environment
from megatron_contract.exit_codes import REASONS, ExitCode
from megatron_trainer import settings
from megatron_trainer.launcher import main


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
