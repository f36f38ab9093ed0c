"""Samples that share a sequence: a Job packs them before the run (data/packed_samples.py), or its rank 0."""

import contextlib
import dataclasses
import hashlib
import json
import os
import shutil
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from megatron_contract.bridge_run import MAX_EPOCHS, BridgeRun
from megatron_contract.exit_codes import ExitCode

from megatron_trainer.telemetry.reporter import GENERATION_ENV, Reporter
from megatron_trainer.tokenizer_files import digest_of_tokenizer
from megatron_trainer.volume_paths import left_volume
from megatron_trainer.worker.failures import RankError
from megatron_trainer.worker.prepared_index import PACKED_FILE, PACKED_FOLDER, folder_of

PARTS: Final = ("training", "validation")
_REPORT_SECONDS: Final = 60.0
_CHECK_SECONDS: Final = 1.0


@dataclass(frozen=True)
class Packing:
    """What packed files depend on.

    `root` is the samples' folder, `tokenizer` the tokenizer's; sequences have `seq_length` tokens.
    """

    root: Path
    seq_length: int
    seed: int
    preprocessing: Any
    tokenizer: Path
    tokenizer_type: str

    @property
    def folder(self) -> str:
        """Name of their folder: files of this name are finished and current."""
        samples = [(self.root / f"{part}.jsonl").stat() for part in PARTS if self._has(part)]
        depends = [
            self.seq_length,
            self.seed,
            dataclasses.asdict(self.preprocessing),
            [(each.st_size, each.st_mtime_ns) for each in samples],
            digest_of_tokenizer(self.tokenizer, with_template=True),
            self.tokenizer_type,
        ]
        return hashlib.sha256(json.dumps(depends, default=str).encode()).hexdigest()[:16]

    def _has(self, part: str) -> bool:
        return (self.root / f"{part}.jsonl").is_file()


def packed_file(folder: Path, part: str) -> Path:
    """Return the file of the packed sequences of a part in their folder."""
    return folder / f"{part}.idx.parquet"


def is_packed_folder(path: Path) -> bool:
    """Whether a folder has the name of one with packed files."""
    return PACKED_FOLDER.fullmatch(path.name) is not None and path.is_dir() and not path.is_symlink()


def create(folder: Path) -> None:
    """Create a folder of packed files, without those that a process was killed in. Raises OSError."""
    folder.mkdir(parents=True, exist_ok=True)
    for leftover in folder.glob(".*"):
        if PACKED_FILE.fullmatch(leftover.name):
            leftover.unlink(missing_ok=True)


def pack(config: Any, folder: Path) -> None:
    """Have samples share sequences of the model's length, in files below `folder`.

    Bridge takes a file that exists for finished and current. So what the files depend on is in the name of
    their folder, and each appears when it is whole.
    """
    from megatron.bridge.data.packing import PackedSequenceSpecs

    what = Packing(
        Path(config.dataset.dataset_root),
        config.model.seq_length,
        config.dataset.seed,
        config.dataset.preprocessing,
        Path(str(config.tokenizer.tokenizer_model)),
        str(config.tokenizer.tokenizer_type),
    )
    own = folder / what.folder
    if int(os.environ.get("RANK", "0")) == 0:
        create(own)
    specs = PackedSequenceSpecs(packed_sequence_size=config.model.seq_length)
    # Set afterwards: the constructor requires files that exist.
    specs.packed_train_data_path, specs.packed_val_data_path = (str(packed_file(own, part)) for part in PARTS)
    specs.packed_metadata_path = own / "metadata.json"
    config.dataset.offline_packing_specs = specs
    config.dataset.enable_offline_packing = True


def take(own: Path, prepared: Path) -> None:
    """Copy to `own` the packed files that a Job has left in `prepared`, and that are missing there.

    Trainers do not read them where they are: the Job of an edited recipe replaces them. Errors are not
    raised, as rank 0 packs what is missing.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        if not is_packed_folder(prepared) or left_volume(prepared) is not None:
            return
        for part in PARTS:
            source, target = packed_file(prepared, part), packed_file(own, part)
            if source.is_symlink() or not source.is_file() or target.exists():
                continue
            copy = own / f".{target.name}.{os.getpid()}"
            try:
                shutil.copyfile(source, copy)
                pq.read_metadata(copy)
                copy.replace(target)
            finally:
                copy.unlink(missing_ok=True)
    except (OSError, pa.ArrowException) as error:
        print(f"the packed samples in {prepared} are not used: {error}", flush=True)


def _pack_what_is_missing(builder: Any) -> None:
    own = Path(builder.train_path_packed).parent
    take(own, folder_of(own.parent) / own.name)
    parts = PARTS if builder.do_validation else PARTS[:1]
    missing = [part for part in parts if not packed_file(own, part).exists()]
    started = time.monotonic()
    builder.prepare_data()
    if missing:
        print(
            f"rank 0 has packed samples for {' and '.join(missing)} in {time.monotonic() - started:.1f} s,"
            " while the others waited: no Job had packed them",
            flush=True,
        )


def wait_outside_collectives(reporter: Reporter) -> None:
    """Have rank 0 report that it packs, and the others wait for it in no collective, which would time out.

    Call it once in a process.
    """
    import torch
    from megatron.bridge.data.builders.gpt_sft import GPTSFTDatasetBuilder

    inner = GPTSFTDatasetBuilder.build

    def build(builder: Any) -> list[Any]:
        if builder.packed_sequence_size > 0 and torch.distributed.is_initialized():
            store = torch.distributed.distributed_c10d._get_default_store()
            packed = f"megatron-trainer/packed/{os.environ.get(GENERATION_ENV, '0')}"
            if torch.distributed.get_rank() == 0:
                with reporting(reporter):
                    _pack_what_is_missing(builder)
                store.set(packed, "1")
            else:
                while not store.check([packed]):
                    time.sleep(_CHECK_SECONDS)
        return list(inner(builder))

    GPTSFTDatasetBuilder.build = build


@contextlib.contextmanager
def reporting(reporter: Reporter, interval: float = _REPORT_SECONDS) -> Iterator[None]:
    """Report that this thread packs samples, as long as it does: one that waits for a volume reports nothing.

    `interval`: seconds between two reports.
    """
    clock = time.pthread_getcpuclockid(threading.get_ident())
    ended = threading.Event()

    def report() -> None:
        used = time.clock_gettime(clock)
        while not ended.wait(interval):
            before, used = used, time.clock_gettime(clock)
            if used > before:
                reporter.send("busy", doing="packing samples")

    reporter.send("busy", doing="packing samples")
    thread = threading.Thread(target=report, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def max_epochs(run: BridgeRun) -> int | None:
    """Return how often a run may read a packed sequence, None for any number.

    Raises RankError with USAGE for another value.
    """
    epochs = run.overrides.get(MAX_EPOCHS)
    if epochs is None or type(epochs) is int:
        return epochs
    raise RankError(ExitCode.USAGE, f"{MAX_EPOCHS}: {epochs!r} is not a number of epochs")


def check_when_packed(config: Any, max_epochs: int | None) -> None:
    """Have a run compare its packed sequences with what it reads, before it trains; call it once.

    `max_epochs`: how often it may read one, None for any number. Raises RankError with BAD_DATA there.
    """
    from megatron.bridge.data import loaders
    from megatron.bridge.data.builders.gpt_sft import GPTSFTDatasetBuilder

    inner = GPTSFTDatasetBuilder._build_datasets
    samples, evaluated, _ = loaders.get_train_valid_test_num_samples(config)
    batch = config.train.global_batch_size
    of_validation = config.validation.eval_global_batch_size or batch

    def build(builder: Any) -> list[Any]:
        training, validation, *others = inner(builder)
        if training is None:
            text = f"{builder.train_path} has no samples to train on"
            raise RankError(ExitCode.BAD_DATA, f"data.packing: {text}")
        training.lines_of = str(builder.train_path)
        require_batch(len(training), "training", batch)
        if validation is not None and evaluated:
            require_batch(len(validation), "validation", of_validation)
        require_epochs(len(training), samples, batch, max_epochs)
        return [training, validation, *others]

    GPTSFTDatasetBuilder._build_datasets = build


def require_batch(sequences: int, part: str, batch: int) -> None:
    """Raise RankError with BAD_DATA unless a part has a whole batch, of which an epoch has some."""
    if sequences < batch:
        text = f"{sequences:,} packed sequences are for {part}, and an iteration takes {batch:,}"
        fix = "add samples, or set a smaller training.globalBatchSize or training.seqLength"
        fix += ", or training.evalIters: 0" if part == "validation" else ""
        raise RankError(ExitCode.BAD_DATA, f"data.packing: {text}; {fix}")


def require_epochs(sequences: int, samples: int, batch: int, max_epochs: int | None) -> None:
    """Raise RankError with BAD_DATA if a run of `samples` sequences reads one more often than allowed."""
    epochs = -(-samples // (sequences // batch * batch))
    if max_epochs is not None and epochs > max_epochs:
        text = (
            f"the run reads {samples:,} packed sequences, and {sequences:,} are for training: {epochs:,} "
            f"epochs, at most {max_epochs:,}"
        )
        fix = f"set data.maxEpochs: {epochs}, a smaller training.trainIters, or add samples"
        raise RankError(ExitCode.BAD_DATA, f"data.maxEpochs: {text}; {fix}")
