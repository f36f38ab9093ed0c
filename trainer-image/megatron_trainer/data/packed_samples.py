"""Packs the samples of a run that fine-tunes before it takes accelerators, which rank 0 would do otherwise.

The functions are those of the run, and so are the names of the files, which it finds there.
"""

import argparse
import shutil
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from megatron_contract.environment import DATA_DIR
from megatron_contract.exit_codes import ExitCode

from megatron_trainer.data.check_meter import CheckMeter
from megatron_trainer.data.preparation_error import PreparationError
from megatron_trainer.volume_paths import left_volume

_TOKENIZER_TYPE: Final = "HuggingFaceTokenizer"
"""The only one of recipes that fine-tune."""


@dataclass(frozen=True)
class PackedRun:
    """A run on packed samples of `root`: `samples` in all of training, `batch` in an iteration."""

    root: Path
    tokenizer: Path
    chats: bool
    seq_length: int
    seed: int
    batch: int
    samples: int
    max_epochs: int | None
    """How often a packed sequence may be read; None for any number of times."""
    evaluates: bool
    folder: Path
    """Where the files are written, each run's below a name of what they depend on."""

    @classmethod
    def of_command(cls, args: argparse.Namespace, root: Path, *, chats: bool) -> "PackedRun":
        """The run that a command of `megatron-prepare` was given, with the options of `add_packing`."""
        return cls(
            root=root,
            tokenizer=args.tokenizer_dir,
            chats=chats,
            seq_length=args.seq_length,
            seed=args.seed,
            batch=args.batch,
            samples=args.samples,
            max_epochs=args.max_epochs,
            evaluates=args.evaluates,
            folder=args.index_dir or args.packed_folder,
        )


def pack(run: PackedRun, meter: CheckMeter) -> str:
    """Pack the samples, and check that the sequences suffice. Returns a line that describes the end.

    Where the folder cannot be written, rank 0 packs. Raises PreparationError if the sequences do not suffice,
    or Bridge cannot read a sample.
    """
    # Imports torch and Megatron-Bridge.
    from megatron_trainer.weights import cpu_model
    from megatron_trainer.worker.failures import RankError

    cpu_model.import_bridge()
    started = time.monotonic()
    try:
        if problem := left_volume(run.folder):
            raise OSError(problem)
        sequences = _pack(run, meter)
    except OSError as error:
        text = " ".join(str(error).split())
        return f"warning: samples are not packed, rank 0 will pack them while the others wait: {text}"
    except RankError as error:
        raise PreparationError(ExitCode(error.code), str(error)) from error
    evaluated = f", {sequences[1]:,} for validation" if run.evaluates else ""
    seconds = time.monotonic() - started
    return f"packed in {seconds:.1f} s: {sequences[0]:,} sequences for training{evaluated}"


def _pack(run: PackedRun, meter: CheckMeter) -> list[int]:
    """Return the number of sequences of each part."""
    import pyarrow.parquet as pq

    from megatron_trainer.bridge import blended_samples, packed_lines, packing
    from megatron_trainer.bridge.configuration import preprocessing

    blended_samples.read_documents()
    packed_lines.install()

    parts = packing.PARTS if run.evaluates else packing.PARTS[:1]
    form = preprocessing(chats=run.chats)
    what = packing.Packing(run.root, run.seq_length, run.seed, form, run.tokenizer, _TOKENIZER_TYPE)
    own = run.folder / what.folder
    packing.create(own)
    if run.folder.is_relative_to(DATA_DIR):
        # With the checkpoints, files of an earlier edit may be read by a run that goes on.
        for other in run.folder.iterdir():
            if packing.is_packed_folder(other) and other != own:
                shutil.rmtree(other, ignore_errors=True)
    missing = [part for part in parts if not packing.packed_file(own, part).exists()]
    if missing:
        meter.begin(sum((run.root / f"{part}.jsonl").stat().st_size for part in missing), "packed")
        with tempfile.TemporaryDirectory() as index:
            write = _writer(run, form, Path(index), meter)
            for part in missing:
                write(run.root / f"{part}.jsonl", packing.packed_file(own, part))
    sequences = [pq.read_metadata(packing.packed_file(own, part)).num_rows for part in parts]
    for count, part in zip(sequences, parts, strict=True):
        packing.require_batch(count, part, run.batch)
    packing.require_epochs(sequences[0], run.samples, run.batch, run.max_epochs)
    return sequences


def _writer(run: PackedRun, form: Any, index: Path, meter: CheckMeter) -> Callable[[Path, Path], None]:
    """What packs one file as the run does. `index`: a folder for what Bridge writes about the file."""
    from megatron.bridge.data.builders.gpt_sft import (
        GPTSFTDatasetBuilder,
        GPTSFTDatasetConfig,
        build_gpt_sft_split,
    )
    from megatron.bridge.training.tokenizers.config import TokenizerConfig
    from megatron.bridge.training.tokenizers.tokenizer import build_tokenizer

    from megatron_trainer.bridge import packed_lines

    tokenizer = build_tokenizer(
        TokenizerConfig(tokenizer_type=_TOKENIZER_TYPE, tokenizer_model=str(run.tokenizer))
    )
    config = GPTSFTDatasetConfig(
        seq_length=run.seq_length,
        dataset_root=run.root,
        preprocessing=form,
        dataset_kwargs={"index_mapping_dir": str(index)},
        do_test=False,
    )
    kwargs = GPTSFTDatasetBuilder(config, tokenizer).dataset_kwargs

    def write(source: Path, target: Path) -> None:
        def build(*args: Any, **options: Any) -> Any:
            return _Metered(build_gpt_sft_split(*args, **options), source.stat().st_size, meter)

        packed_lines.pack_file(source, target, run.seq_length, tokenizer, run.seed, kwargs, build)

    return write


class _Metered:
    """A dataset of Bridge that counts the bytes of its file, the same for each sample."""

    def __init__(self, dataset: Any, size: int, meter: CheckMeter) -> None:
        self._dataset, self._size, self._meter = dataset, size, meter

    def __getattr__(self, name: str) -> Any:
        return getattr(self._dataset, name)

    def __len__(self) -> int:
        return len(self._dataset)

    def __getitem__(self, number: int) -> Any:
        before, after = (each * self._size // len(self) for each in (number, number + 1))
        self._meter.step(after - before)
        return self._dataset[number]
