"""Samples that share a sequence: Megatron-Bridge packs them at the start of a run, on rank 0."""

import contextlib
import dataclasses
import hashlib
import json
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from megatron_contract.bridge_run import MAX_EPOCHS, BridgeRun
from megatron_contract.exit_codes import ExitCode

from megatron_trainer.telemetry.reporter import GENERATION_ENV, Reporter
from megatron_trainer.tokenizer_files import digest_of_tokenizer
from megatron_trainer.worker.failures import RankError

_SAMPLES: Final = ("training.jsonl", "validation.jsonl")
_REPORT_SECONDS: Final = 60.0
_CHECK_SECONDS: Final = 1.0


def pack(config: Any, folder: Path) -> None:
    """Have samples share sequences of the model's length.

    Bridge takes a file that exists for finished and current. So what the files depend on is in the name of
    their folder, below `folder`, and rank 0 deletes one that it was killed in.
    """
    from megatron.bridge.data.packing import PackedSequenceSpecs

    own = folder / _digest(config)
    training, validation = own / "training.idx.parquet", own / "validation.idx.parquet"
    if int(os.environ.get("RANK", "0")) == 0:
        own.mkdir(parents=True, exist_ok=True)
        for path in (training, validation):
            _delete_partial(path)
    specs = PackedSequenceSpecs(packed_sequence_size=config.model.seq_length)
    # Set afterwards: the constructor requires files that exist.
    specs.packed_train_data_path, specs.packed_val_data_path = str(training), str(validation)
    specs.packed_metadata_path = own / "metadata.json"
    config.dataset.offline_packing_specs = specs
    config.dataset.enable_offline_packing = True


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
                    builder.prepare_data()
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
        _require_batch(len(training), "training", batch)
        if validation is not None and evaluated:
            _require_batch(len(validation), "validation", of_validation)
        _require_epochs(len(training), samples, batch, max_epochs)
        return [training, validation, *others]

    GPTSFTDatasetBuilder._build_datasets = build


def _require_batch(sequences: int, part: str, batch: int) -> None:
    """An epoch has whole batches."""
    if sequences < batch:
        text = f"{sequences:,} packed sequences are for {part}, and an iteration takes {batch:,}"
        fix = "add samples, or set a smaller training.globalBatchSize or training.seqLength"
        fix += ", or training.evalIters: 0" if part == "validation" else ""
        raise RankError(ExitCode.BAD_DATA, f"data.packing: {text}; {fix}")


def _require_epochs(sequences: int, samples: int, batch: int, max_epochs: int | None) -> None:
    epochs = -(-samples // (sequences // batch * batch))
    if max_epochs is not None and epochs > max_epochs:
        text = (
            f"the run reads {samples:,} packed sequences, and {sequences:,} are for training: {epochs:,} "
            f"epochs, at most {max_epochs:,}"
        )
        fix = f"set data.maxEpochs: {epochs}, a smaller training.trainIters, or add samples"
        raise RankError(ExitCode.BAD_DATA, f"data.maxEpochs: {text}; {fix}")


def _digest(config: Any) -> str:
    root = Path(config.dataset.dataset_root)
    found = [(root / name).stat() for name in _SAMPLES if (root / name).is_file()]
    depends = [
        config.model.seq_length,
        config.dataset.seed,
        dataclasses.asdict(config.dataset.preprocessing),
        [(each.st_size, each.st_mtime_ns) for each in found],
        digest_of_tokenizer(Path(str(config.tokenizer.tokenizer_model)), with_template=True),
    ]
    return hashlib.sha256(json.dumps(depends, default=str).encode()).hexdigest()[:16]


def _delete_partial(path: Path) -> None:
    """Delete a file that lacks Parquet's footer, which is written last."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        if path.exists():
            pq.read_metadata(path)
    except pa.ArrowException:
        path.unlink()
