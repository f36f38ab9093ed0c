"""Datasets of Megatron that a run pretrains on."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from megatron_contract.bridge_run import DATA_PATH, VALIDATION_DATA, BridgeRun
from megatron_contract.exit_codes import ExitCode

from megatron_trainer.worker.failures import RankError


def complete(run: BridgeRun, config: Any) -> None:
    """Have a run evaluate on the datasets for that alone, if there are any, of which Bridge has no setting.

    Raises RankError with BAD_DATA for a dataset without its files.
    """
    trained, evaluated = (_words(run, path) for path in (DATA_PATH, VALIDATION_DATA))
    for path, words in ((DATA_PATH, trained), (VALIDATION_DATA, evaluated)):
        _require_files(path, words)
    if not evaluated:
        return
    from megatron.core.datasets.utils import get_blend_from_list

    config.dataset.blend_per_split = [get_blend_from_list(trained), get_blend_from_list(evaluated), None]
    config.dataset.data_path = config.dataset.blend = config.dataset.split = None


def _words(run: BridgeRun, path: str) -> list[str]:
    words = run.overrides.get(path)
    return list(map(str, words)) if isinstance(words, list) else []


def _require_files(path: str, words: Sequence[str]) -> None:
    """Without a file Megatron's error names neither the setting nor what it is for."""
    for word in words:
        for suffix in (".bin", ".idx") if "/" in word else ():
            if not Path(word + suffix).is_file():
                message = f"{path}: {word}{suffix} does not exist: data.blend names a dataset of Megatron,"
                raise RankError(ExitCode.BAD_DATA, f"{message} two files, without their suffixes")
