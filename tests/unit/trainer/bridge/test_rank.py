"""How a rank of Megatron-Bridge ends when its volume fails before the first iteration."""

import errno
import os
import sys
from types import SimpleNamespace
from typing import Any, NoReturn

import pytest
from megatron_contract.exit_codes import ExitCode

pytest.importorskip("megatron.training", reason="make setup-trainer")

ENDS = [(errno.EIO, ExitCode.WORKER_DIED), (errno.ENOENT, ExitCode.USAGE)]


def fail(code: int) -> NoReturn:
    """As Megatron's HuggingFaceTokenizer does."""
    try:
        raise OSError(code, os.strerror(code))
    except OSError as error:
        raise ValueError("unable to instantiate the tokenizer") from error


@pytest.mark.parametrize(("code", "ends"), ENDS)
def test_an_error_of_a_volume_is_no_wrong_configuration(
    code: int, ends: ExitCode, monkeypatch: pytest.MonkeyPatch
) -> None:
    from megatron_trainer.bridge import rank
    from megatron_trainer.worker.failures import classify

    module: Any = SimpleNamespace(runtime_config_update=lambda _config: fail(code))
    monkeypatch.setitem(sys.modules, "megatron.bridge.training.config", module)
    with pytest.raises(Exception, match="unable to instantiate") as raised:
        rank._validate(SimpleNamespace())
    assert classify(raised.value).code == ends


@pytest.mark.parametrize(("code", "ends"), ENDS)
def test_an_error_of_a_volume_while_the_model_is_built_is_no_wrong_configuration(
    code: int, ends: ExitCode, monkeypatch: pytest.MonkeyPatch
) -> None:
    from megatron_trainer.bridge import harmony, line_index, packing, rank, sample_files
    from megatron_trainer.worker import tracebacks
    from megatron_trainer.worker.failures import RankError

    def nothing(*_args: object) -> None: ...

    hooks = SimpleNamespace(building=True, stepping=None, iteration=0, install=nothing, close=nothing)
    module: Any = SimpleNamespace(BridgeHooks=lambda *_args: hooks)
    config = SimpleNamespace(
        train=SimpleNamespace(iterations_to_skip=[]), checkpoint=SimpleNamespace(save=None)
    )
    monkeypatch.setitem(sys.modules, "megatron_trainer.bridge.hooks", module)
    monkeypatch.setattr(rank, "require_gpus", nothing)
    monkeypatch.setattr(tracebacks, "make_picklable", nothing)
    monkeypatch.setattr(rank, "_configure", lambda *_args: config)
    monkeypatch.setattr(harmony, "install", nothing)
    monkeypatch.setattr(sample_files, "name_lines", nothing)
    monkeypatch.setattr(line_index, "install", nothing)
    monkeypatch.setattr(packing, "wait_outside_collectives", nothing)
    monkeypatch.setattr(rank, "_enter", lambda _config: fail(code))
    with pytest.raises(RankError) as raised:
        rank._train([], object(), False)  # type: ignore[arg-type]
    assert raised.value.code == ends
