"""Builds the index that Megatron's data sets need, before any accelerator is taken.

    python -m megatron_trainer.data.dataset_index [--into FOLDER] MEGATRON_FLAG ...
    python -m megatron_trainer.data.dataset_index [--into FOLDER] FUNCTION PATH=JSON ...

Which samples a run reads depends on its seed, sequence length, number of samples, split, blend and tokenizer.
Megatron has rank 0 write them down at the first start (document, sample and shuffle index) while all others
wait. This does the same with the same classes; a run with the same flags finds it in --data-cache-path.

Where the volume of the checkpoints is not mounted, --into has it built on the data volume, from which rank 0
copies it (worker/prepared_index.py).

Flags of the model are not needed: a minimal model stands in for it, and the process needs no GPU. For a run
that Megatron-Bridge pretrains its function makes the configuration (bridge_index.py).
"""

import contextlib
import errno
import os
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from megatron_contract.bridge_run import PATH_TO_CACHE, BridgeRun
from megatron_contract.exit_codes import ExitCode

from megatron_trainer.errors import TrainerError
from megatron_trainer.flags import value_of
from megatron_trainer.platform import cpu
from megatron_trainer.volume_paths import left_volume
from megatron_trainer.worker.prepared_index import UNFINISHED

# No part of the index depends on it.
_MODEL = [
    *("--num-layers", "1", "--hidden-size", "64", "--num-attention-heads", "1", "--micro-batch-size", "1"),
    *("--lr", "1e-4", "--position-embedding-type", "rope", "--max-position-embeddings"),
]
_SEQUENCE = "--seq-length"
_CACHE = "--data-cache-path"
_INTO = "--into"
_NOT_WRITABLE = (errno.EROFS, errno.EACCES, errno.EPERM)


class IndexFlagsError(TrainerError):
    """The index cannot be built with these flags."""


def _value(flags: Sequence[str], name: str) -> str:
    if (value := value_of(flags, name.removeprefix("--"))) is None:
        raise IndexFlagsError(f"{name} is missing; set it as in the run's own flags")
    return value


def build(flags: Sequence[str], into: Path | None = None) -> int:
    """Build the index for a run with these flags. Returns the number of new files in --data-cache-path.

    `into` is a folder of the run alone, which gets them instead, and keeps no others.

    Each file is renamed into place when all are complete: Megatron takes whatever it finds there for a whole
    one. Raises IndexFlagsError, RankError if Megatron refuses the flags or does not find the data, and
    OSError.
    """
    cache = into or cache_of(flags)
    if problem := left_volume(cache):
        raise IndexFlagsError(f"{_CACHE}: {problem}")
    cache.mkdir(parents=True, exist_ok=True)
    for leftover in cache.glob(f"{UNFINISHED}*"):
        shutil.rmtree(leftover, ignore_errors=True)
    unfinished = cache / f"{UNFINISHED}{os.getpid()}"
    # The Job of another run may just have removed a folder whose files were not used (unused_files.py).
    unfinished.mkdir(parents=True)
    try:
        if _is_of_bridge(flags):
            from megatron_trainer.data import bridge_index

            bridge_index.build(BridgeRun.from_arguments(flags), unfinished)
        else:
            words, _ = cpu.adapt([*_MODEL, _value(flags, _SEQUENCE), *flags, _CACHE, str(unfinished)])
            _build_all(words)
        names = set[str]()
        for path in sorted(unfinished.iterdir()):
            target = cache / path.name
            # A run that trains may read the one that is there; their names are hashes of what is in them.
            if into is not None or not target.exists():
                path.replace(target)
                names.add(path.name)
        for old in cache.iterdir() if into is not None else ():
            if old.is_file() and old.name not in names:
                old.unlink()
        return len(names)
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)


def cache_of(flags: Sequence[str]) -> Path:
    """The folder in which the run with these arguments looks for its index. Raises IndexFlagsError."""
    if not _is_of_bridge(flags):
        return Path(_value(flags, _CACHE))
    if not isinstance(path := BridgeRun.from_arguments(flags).overrides.get(PATH_TO_CACHE), str):
        raise IndexFlagsError(f"{PATH_TO_CACHE} is missing; set it as in the run's own arguments")
    return Path(path)


def _is_of_bridge(flags: Sequence[str]) -> bool:
    return bool(flags) and not flags[0].startswith("-")


def _build_all(flags: Sequence[str]) -> None:
    cpu.install()
    from megatron.core.datasets.gpt_dataset import GPTDataset
    from megatron.training.training import get_train_valid_test_num_samples, update_train_iters

    from megatron_trainer.worker import gpt
    from megatron_trainer.worker.arguments import parse

    args = parse(flags)
    update_train_iters(args)
    samples = list(get_train_valid_test_num_samples())
    gpt.dataset_builder(GPTDataset, samples, lambda: True).build()


def main(words: Sequence[str]) -> int:
    """Build the index. Returns an exit code of the contract, and prints one line that describes the end."""
    into = Path(words[1]) if words[:1] == [_INTO] else None
    flags = words[2:] if into else words
    os.environ |= {"RANK": "0", "WORLD_SIZE": "1", "MEGATRON_PLATFORM": "cpu", "HF_HUB_OFFLINE": "1"}
    with contextlib.redirect_stdout(sys.stderr):
        try:
            new = build(flags, into)
            code, text = int(ExitCode.OK), f"{new} new files of the index in {into or cache_of(flags)}"
        except (IndexFlagsError, cpu.UnsupportedError) as error:
            code, text = int(ExitCode.USAGE), str(error)
        except OSError as error:
            where = into or cache_of(flags)
            code = int(ExitCode.BAD_DATA)
            text = f"{error.strerror or error}: {error.filename or where}"
            if error.errno in _NOT_WRITABLE:
                text = f"{where} cannot be written ({error.strerror})"
        except Exception as error:
            from megatron_trainer.worker.failures import classify  # imports torch

            failure = classify(error)
            code, text = int(failure.code), str(failure)
    print(text.replace("\n", " "))
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
