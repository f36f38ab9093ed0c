"""Which checkpoint a rank with Megatron FSDP looks for, and how it ends without its tokenizer."""

import argparse
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from megatron_contract.exit_codes import ExitCode
from megatron_trainer.checkpoints.selection import TRACKER

pytest.importorskip("megatron.training", reason="make setup-trainer")


def loaded(folder: Path, *, fsdp: bool) -> str | None:
    from megatron_trainer.worker.arguments import load_only_what_exists

    args = SimpleNamespace(use_megatron_fsdp=fsdp, load=str(folder))
    load_only_what_exists(args)
    return args.load


def test_a_run_with_fsdp_does_not_look_for_a_checkpoint_that_is_not_there(tmp_path: Path) -> None:
    assert loaded(tmp_path, fsdp=True) is None
    assert loaded(tmp_path, fsdp=False) == str(tmp_path)
    (tmp_path / TRACKER).write_text("10")
    assert loaded(tmp_path, fsdp=True) == str(tmp_path)


@pytest.mark.parametrize(("planned", "load"), [("10", True), (None, False)])
def test_a_planned_iteration_is_looked_for_where_its_tracker_is_not_seen_yet(
    planned: str | None, load: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file that another node wrote may appear late on a network volume."""
    from megatron_trainer.telemetry.reporter import RESUME_ENV
    from megatron_trainer.worker import main

    args = SimpleNamespace(
        use_megatron_fsdp=True, load=str(tmp_path), save=str(tmp_path), iterations_to_skip=[]
    )
    seen: list[str | None] = []

    class Installed:
        def __init__(self, *_args: object) -> None:
            seen.append(args.load)
            raise InterruptedError

    monkeypatch.delenv(RESUME_ENV, raising=False)
    if planned is not None:
        monkeypatch.setenv(RESUME_ENV, planned)
    monkeypatch.setattr(main, "parse", lambda _argv: args)
    monkeypatch.setattr(main, "require_gpus", lambda: None)
    monkeypatch.setattr(main.tracebacks, "make_picklable", lambda: None)
    monkeypatch.setattr(main.async_checkpoint_writers, "install", lambda *_args: None)
    monkeypatch.setattr(main, "MegatronHooks", Installed)
    with pytest.raises(InterruptedError):
        main._train(["--save", str(tmp_path)], object(), False)  # type: ignore[arg-type]
    assert seen == [str(tmp_path) if load else None]


@pytest.mark.parametrize(
    ("tokenizer", "code"), [("/proc/self/mem", ExitCode.WORKER_DIED), ("/gone/vocabulary", ExitCode.BAD_DATA)]
)
def test_a_tokenizer_that_the_volume_does_not_return_is_no_wrong_data(
    tokenizer: str, code: ExitCode, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Reads of address 0 of a process's memory fail with EIO."""
    from megatron_trainer.worker import arguments
    from megatron_trainer.worker.failures import classify

    # Restored after the test.
    monkeypatch.setattr(sys, "argv", sys.argv)
    monkeypatch.setattr(argparse.ArgumentParser, "error", argparse.ArgumentParser.error)
    monkeypatch.setattr(arguments, "parse_and_validate_args", lambda **_: Path(tokenizer).read_bytes())
    with pytest.raises(Exception, match=r"Input/output|No such file") as raised:
        arguments.parse([])
    assert classify(raised.value).code == code
