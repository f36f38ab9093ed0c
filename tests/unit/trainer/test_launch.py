"""What the launcher does before it knows of Megatron and of a gang."""

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from megatron_contract import environment
from megatron_contract.exit_codes import REASONS, ExitCode
from megatron_trainer.launcher import main, settings


@pytest.fixture(autouse=True)
def handlers() -> Iterator[None]:
    """`main` is made for a process of its own."""
    before = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, before)


def test_help_names_every_setting_and_exit_code(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main.main(["--num-layers", "2", "--help"])
    assert ended.value.code == 0
    told = capsys.readouterr().out
    assert environment.ENV_RENDEZVOUS_TIMEOUT in told
    assert all(f"{int(code)} {reason}" in told for code, reason in REASONS.items())


def test_a_pod_that_is_told_to_stop_while_it_starts_leaves_at_once_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = tmp_path / "termination"
    known = settings.read({environment.ENV_TERMINATION_LOG: str(words), environment.ENV_PLATFORM: "cpu"})
    monkeypatch.setattr(main.pod_settings, "read", lambda: known)
    monkeypatch.setattr(main, "_prepare_environment", lambda _size: None)
    monkeypatch.setattr(main, "flags_of", lambda *_: os.kill(os.getpid(), signal.SIGTERM))
    with pytest.raises(SystemExit) as ended:
        main.main([])
    assert ended.value.code == ExitCode.TERMINATED
    assert json.loads(words.read_text())["reason"] == "Terminated"
