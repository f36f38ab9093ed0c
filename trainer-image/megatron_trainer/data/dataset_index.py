"""Builds the index that Megatron's data sets need, before any accelerator is taken.

    python -m megatron_trainer.data.dataset_index MEGATRON_FLAG ...

Which samples a run reads depends on its seed, sequence length, number of samples, split, blend and tokenizer.
Megatron has rank 0 write them down at the first start (document, sample and shuffle index) while all others
wait. This does the same with the same classes; a run with the same flags finds it in --data-cache-path.

Flags of the model are not needed: a minimal model stands in for it, and the process needs no GPU.
"""

import contextlib
import os
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from megatron_contract.exit_codes import ExitCode

from megatron_trainer.errors import TrainerError
from megatron_trainer.platform import cpu
from megatron_trainer.volume_paths import left_volume

# No part of the index depends on it.
_MODEL = [
    *("--num-layers", "1", "--hidden-size", "64", "--num-attention-heads", "1", "--micro-batch-size", "1"),
    *("--lr", "1e-4", "--position-embedding-type", "rope", "--max-position-embeddings"),
]
_SEQUENCE = "--seq-length"
_CACHE = "--data-cache-path"
_UNFINISHED = ".unfinished-"


class IndexFlagsError(TrainerError):
    """The index cannot be built with these flags."""


def _value(flags: Sequence[str], name: str) -> str:
    for position, word in enumerate(flags):
        if word == name and position + 1 < len(flags):
            return flags[position + 1]
        if word.startswith(f"{name}="):
            return word.partition("=")[2]
    raise IndexFlagsError(f"{name} is missing; set it as in the run's own flags")


def build(flags: Sequence[str]) -> int:
    """Build the index for a run with these flags. Returns the number of new files in --data-cache-path.

    Each file is renamed into place when all are complete: Megatron takes whatever it finds there for a whole
    one. Raises IndexFlagsError, RankError if Megatron refuses the flags or does not find the data, and
    OSError.
    """
    cache = Path(_value(flags, _CACHE))
    if problem := left_volume(cache):
        raise IndexFlagsError(f"{_CACHE}: {problem}")
    cache.mkdir(parents=True, exist_ok=True)
    for leftover in cache.glob(f"{_UNFINISHED}*"):
        shutil.rmtree(leftover, ignore_errors=True)
    unfinished = cache / f"{_UNFINISHED}{os.getpid()}"
    unfinished.mkdir()
    try:
        words, _ = cpu.adapt([*_MODEL, _value(flags, _SEQUENCE), *flags, _CACHE, str(unfinished)])
        _build_all(words)
        new = 0
        for path in sorted(unfinished.iterdir()):
            target = cache / path.name
            # A run that trains may read the one that is there; their names are hashes of what is in them.
            if not target.exists():
                path.replace(target)
                new += 1
        return new
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)


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


def main(flags: Sequence[str]) -> int:
    """Build the index. Returns an exit code of the contract, and prints one line that describes the end."""
    os.environ |= {"RANK": "0", "WORLD_SIZE": "1", "MEGATRON_PLATFORM": "cpu", "HF_HUB_OFFLINE": "1"}
    with contextlib.redirect_stdout(sys.stderr):
        try:
            code, text = int(ExitCode.OK), f"{build(flags)} new files of the index in {_value(flags, _CACHE)}"
        except (IndexFlagsError, cpu.UnsupportedError) as error:
            code, text = int(ExitCode.USAGE), str(error)
        except Exception as error:
            from megatron_trainer.worker.failures import classify  # imports torch

            failure = classify(error)
            code, text = int(failure.code), str(failure)
    print(text.replace("\n", " "))
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
