"""Which checkpoint a rank with Megatron FSDP looks for, and how it ends without its tokenizer."""

import argparse
import errno
import os
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn

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


@pytest.fixture
def parsing(monkeypatch: pytest.MonkeyPatch) -> Callable[[Path], BaseException]:
    """What a rank raises as Megatron builds the HuggingFaceTokenizer of a folder."""
    pytest.importorskip("transformers", reason="make setup-trainer")
    from megatron.core.tokenizers.text.libraries.huggingface_tokenizer import HuggingFaceTokenizer
    from megatron_trainer.worker import arguments

    # Restored after the test.
    monkeypatch.setattr(sys, "argv", sys.argv)
    monkeypatch.setattr(argparse.ArgumentParser, "error", argparse.ArgumentParser.error)

    def parse(folder: Path) -> BaseException:
        monkeypatch.setattr(
            arguments, "parse_and_validate_args", lambda **_: HuggingFaceTokenizer(str(folder))
        )
        with pytest.raises(Exception, match=r".") as raised:
            arguments.parse(["--tokenizer-model", str(folder)])
        return raised.value

    return parse


def test_a_tokenizer_whose_volume_fails_is_no_wrong_flag(
    parsing: Callable[[Path], BaseException], tmp_path: Path
) -> None:
    """Reads of address 0 of a process's memory fail with EIO, which Megatron makes a ValueError."""
    from megatron_trainer.worker.failures import classify

    (tmp_path / "tokenizer_config.json").symlink_to("/proc/self/mem")
    failure = classify(parsing(tmp_path))
    assert (failure.code, "Input/output error" in str(failure)) == (ExitCode.WORKER_DIED, True)


def test_a_tokenizer_whose_volume_is_away_is_no_missing_one(
    parsing: Callable[[Path], BaseException], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """os.path.isdir, by which transformers looks for it, is false then."""
    from megatron_trainer.worker.failures import classify

    stat = os.stat

    def away(path: Any, *args: Any, **kwargs: Any) -> os.stat_result:
        if str(path).startswith(str(tmp_path)):
            raise OSError(errno.ENOTCONN, os.strerror(errno.ENOTCONN), str(path))
        return stat(path, *args, **kwargs)

    monkeypatch.setattr(os, "stat", away)
    assert classify(parsing(tmp_path / "tokenizer")).code == ExitCode.WORKER_DIED


def test_a_tokenizer_that_is_missing_or_wrong_is_no_wrong_flag(
    parsing: Callable[[Path], BaseException], tmp_path: Path
) -> None:
    from megatron_trainer.worker.failures import classify

    (tmp_path / "damaged").mkdir()
    (tmp_path / "damaged" / "tokenizer_config.json").write_text("{")
    for folder in (tmp_path / "gone", tmp_path / "damaged"):
        failure = classify(parsing(folder))
        assert failure.code == ExitCode.BAD_DATA
        assert str(failure).startswith(
            f"tokenizer: Unable to instantiate HuggingFace AutoTokenizer for {folder}"
        )


@pytest.mark.parametrize(
    ("code", "ends"), [(errno.EIO, ExitCode.WORKER_DIED), (errno.ENOENT, ExitCode.USAGE)]
)
def test_an_error_of_a_volume_while_the_model_is_built_is_no_wrong_flag(
    code: int, ends: ExitCode, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from megatron_trainer.checkpoints import async_checkpoint_writers
    from megatron_trainer.worker import dataset_helpers, main, tracebacks
    from megatron_trainer.worker.failures import RankError

    def build(*_args: object, **_kwargs: object) -> NoReturn:
        try:
            raise OSError(code, os.strerror(code))
        except OSError as error:
            raise ValueError("no such model") from error

    args = SimpleNamespace(use_megatron_fsdp=False, load=None, save=str(tmp_path), iterations_to_skip=[])
    monkeypatch.setattr(main, "parse", lambda _argv: args)
    monkeypatch.setattr(main, "require_gpus", lambda: None)
    monkeypatch.setattr(tracebacks, "make_picklable", lambda: None)
    monkeypatch.setattr(async_checkpoint_writers, "install", lambda *_args: None)
    monkeypatch.setattr(dataset_helpers, "skip_build", lambda: None)
    monkeypatch.setattr(main, "MegatronHooks", lambda *_args: Building())
    monkeypatch.setattr(main, "pretrain_cfg_container_from_args", build)
    monkeypatch.setattr(main, "model_config", lambda _args: None)
    with pytest.raises(RankError) as raised:
        main._train(["--save", str(tmp_path)], object(), False)  # type: ignore[arg-type]
    assert raised.value.code == ends


class Building:
    """The hooks of a rank that builds its model."""

    building, stepping, iteration = True, None, 0

    def install(self) -> None: ...

    def close(self) -> None: ...
