"""Prepares chats, or samples of media and text, to fine-tune: training.jsonl and validation.jsonl.

Workers share the conversations by shards as they do documents (blend.py), but a shard's records are lines
instead of tokens. Each source becomes a folder under a digest of what it was made from; the first share of
its chats is for training, the next for validation. The folder of several sources has their files joined.
"""

import hashlib
import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import BinaryIO, NamedTuple

import numpy as np
from megatron_contract.exit_codes import ExitCode

from megatron_trainer.data import check, shards, tokenizer
from megatron_trainer.data.answers import ChatLines, LineEncoder
from megatron_trainer.data.blend import Worker, build_shards, load_encoder, log, repair
from megatron_trainer.data.chat import ConversationError
from megatron_trainer.data.dataset import Dataset
from megatron_trainer.data.image_samples import SampleLines, digest_of_processor
from megatron_trainer.data.meter import Meter
from megatron_trainer.data.preparation_error import PreparationError
from megatron_trainer.data.sources import Source, content_digest, divide, find_files
from megatron_trainer.tokenizer_files import digest_of_tokenizer

FILES = ("training.jsonl", "validation.jsonl")
_BLOCK = 8 << 20


@dataclass(frozen=True)
class ChatRun:
    """What a run reads: samples of `seq_length` tokens, `batch` an iteration, `samples` in all of training.

    `split` are the shares of training and validation.
    """

    seq_length: int
    batch: int
    samples: int
    max_epochs: int
    split: str
    evaluates: bool
    vocab_size: int | None = None


class ChatCounts(NamedTuple):
    """Numbers of chats of a folder: all that were read, and where they went."""

    read: int
    left_out: int
    """Chats of which no answer begins within a sample."""
    training: int
    """Chats in the file of the training split."""
    validation: int
    """Chats in the file of the validation split."""


def prepare_chats(
    sources: Sequence[Source],
    folder: Path,
    root: Path,
    tokenizer_dir: Path,
    worker: Worker,
    run: ChatRun,
    meter: Meter | None = None,
) -> ChatCounts | None:
    """Prepare all sources below `folder`, and link `root` to the result; None if this worker does not join.

    Raises PreparationError or OSError.
    """
    lines = _load(sources, tokenizer_dir, run)
    splits = {source.name: _split(source, run) for source in sources}
    digests = {split: _digest(sources, tokenizer_dir, run, split) for split in set(splits.values())}
    datasets = [_dataset(source, folder, digests[splits[source.name]]) for source in sources]
    made = _folder(datasets, folder)
    _check_link(sources[0], root, made)
    meter = meter or Meter(log)
    meter.begin(datasets)
    build_shards(datasets, LineEncoder(), lines.line, worker, meter)
    if worker.index:
        return None
    for dataset in datasets:
        if not dataset.done.is_file():
            repair(dataset, LineEncoder(), lines.line, meter)
        dataset.finish(partial(_join, dataset, splits[dataset.source.name]), ".*.jsonl.*")
    if len(datasets) > 1:
        _concatenate(datasets, made)
    counts = [_counts(dataset) for dataset in datasets]
    total = ChatCounts(*(sum(each) for each in zip(*counts, strict=True)))
    _check_run(total, run, [source.name for source in sources if source.validation])
    _link(root, made)
    return total


def _of_samples(sources: Sequence[Source]) -> bool:
    return sources[0].format == "webdataset"


def _load(sources: Sequence[Source], tokenizer_dir: Path, run: ChatRun) -> ChatLines | SampleLines:
    encoder = load_encoder(tokenizer_dir, append_eod=False)
    if tokenizer.load(tokenizer_dir)[1] is None:
        text = f"data.tokenizer.tokenizerModel: {tokenizer_dir} has no eos_token in its vocabulary"
        fix = "set one in its tokenizer_config.json: samples are padded with it"
        raise PreparationError(ExitCode.BAD_DATA, f"{text}; {fix}")
    check.check_vocabulary(tokenizer_dir, encoder, run.vocab_size)
    check.check_tokenizer(tokenizer_dir, encoder)
    try:
        lines = SampleLines if _of_samples(sources) else ChatLines
        return lines(tokenizer_dir, run.seq_length, run.vocab_size)
    except ConversationError as error:
        raise sources[0].refuse("format", str(error)) from error


def _split(source: Source, run: ChatRun) -> str:
    """Shares of training and validation of a source."""
    return "0,100" if source.validation else run.split


def _digest(sources: Sequence[Source], tokenizer_dir: Path, run: ChatRun, split: str) -> str:
    """Digest of all but the files that the lines and their split depend on."""
    files = digest_of_tokenizer(tokenizer_dir, with_template=True)
    what = ["chats"]
    if _of_samples(sources):
        what = [medium.many for medium in sources[0].media]
        what += ["crc32", digest_of_processor(tokenizer_dir)]
    depends = [*what, run.seq_length, split, run.vocab_size, files]
    return hashlib.sha256(json.dumps(depends).encode()).hexdigest()


def _dataset(source: Source, folder: Path, digest: str) -> Dataset:
    files = find_files(source)
    made = folder / "objects" / content_digest(source, files, digest, None)
    dataset = Dataset(source, made, divide(source, files), digest, FILES)
    if dataset.counts() is None:
        dataset.done.unlink(missing_ok=True)
        dataset.work.mkdir(parents=True, exist_ok=True)
    return dataset


def _folder(datasets: Sequence[Dataset], folder: Path) -> Path:
    """The folder of what a run reads."""
    names = [dataset.folder.name for dataset in datasets]
    if len(names) == 1:
        return datasets[0].folder
    return folder / "objects" / hashlib.sha256(json.dumps(names).encode()).hexdigest()[:32]


def _check_link(source: Source, root: Path, made: Path) -> None:
    if root.is_symlink() and root.resolve() != made.resolve():
        raise source.refuse(
            "path",
            "files of data.sources or the tokenizer changed since this dataset was prepared, and a run that "
            "resumes would read other samples; set another data.prepare.name to prepare them again",
        )


def _counts(dataset: Dataset) -> ChatCounts:
    counts = dataset.counts()
    assert counts is not None, "the dataset was joined"
    return ChatCounts(*counts[: -len(FILES)])


def _join(dataset: Dataset, split: str) -> None:
    source = dataset.source
    taken = shards.documents_taken(dataset.work, len(dataset.divided), source.documents)
    lengths = [shards.read_lengths(dataset.work, number, some) for number, some in enumerate(taken)]
    kept = sum(int((each > 0).sum()) for each in lengths)
    if not kept:
        what = (
            "of its chats an answer begins within training.seqLength" if sum(taken) else "of its files a chat"
        )
        raise source.refuse("path", f"none {what}; correct the path, or set training.seqLength higher")
    training, validation = (end - first for first, end in check.split_bounds(split, kept)[:2])
    if content_digest(source, find_files(source), dataset.tokenizer, None) != dataset.folder.name:
        problem = f"the files of {source.path} changed while they were prepared"
        raise source.refuse("path", f"{problem}; wait until they are complete, then edit the recipe")
    lines = np.concatenate([each[each > 0] for each in lengths])
    ends = [int(lines[:count].sum(dtype=np.int64)) for count in (0, training, training + validation)]
    bytes_of = [int(each.sum(dtype=np.int64)) for each in lengths]
    for name, (first, end) in zip(FILES, pairwise(ends), strict=True):
        part = shards.temporary(dataset.folder / name)
        with part.open("wb") as stream:
            before = 0
            for number, length in enumerate(bytes_of):
                at, until = max(first, before), min(end, before + length)
                if at < until:
                    _copy(shards.records_file(dataset.work, number), stream, at - before, until - before)
                before += length
            shards.flush(stream)
        part.replace(dataset.folder / name)
    sizes = [end - first for first, end in pairwise(ends)]
    _mark(dataset.folder, [sum(taken), sum(taken) - kept, training, validation, *sizes])


def _copy(source: Path, target: BinaryIO, first: int, end: int) -> None:
    """Append the bytes from `first` up to `end` of a file."""
    with source.open("rb") as stream:
        stream.seek(first)
        while first < end and (data := stream.read(min(end - first, _BLOCK))):
            target.write(data)
            first += len(data)


def _mark(folder: Path, counts: list[int]) -> None:
    mark = shards.temporary(folder / "done.json")
    mark.write_text(json.dumps(counts), encoding="utf-8")
    mark.replace(folder / "done.json")


def _concatenate(datasets: Sequence[Dataset], made: Path) -> None:
    """Write the files of all sources after each other; the run shuffles them."""
    if (made / "done.json").is_file():
        return
    made.mkdir(parents=True, exist_ok=True)
    sizes = []
    for name in FILES:
        part = shards.temporary(made / name)
        with part.open("wb") as stream:
            for dataset in datasets:
                _copy(dataset.folder / name, stream, 0, (dataset.folder / name).stat().st_size)
            shards.flush(stream)
        sizes.append(part.stat().st_size)
        part.replace(made / name)
    _mark(made, [*(sum(each) for each in zip(*map(_counts, datasets), strict=True)), *sizes])


def _check_run(total: ChatCounts, run: ChatRun, evaluated: Sequence[str]) -> None:
    """Raise PreparationError unless a batch of each file is there, and the run repeats no chat too often.

    `evaluated`: names of the sources that are for validation alone.
    """
    for name, chats in (("training", total.training), ("validation", total.validation)):
        if chats >= run.batch or (name == "validation" and not run.evaluates):
            continue
        text = (
            f"data.split {run.split} leaves {chats:,} chats to {name}, and an iteration takes {run.batch:,}"
        )
        fix = "add chats, or set another data.split or training.globalBatchSize"
        if evaluated:
            given = ", ".join(evaluated) if name == "validation" else "the sources without validation"
            text = f"{given}: {chats:,} chats for {name}, and an iteration takes {run.batch:,}"
            fix = "add chats, or set another training.globalBatchSize"
        fix += ", or training.evalIters: 0" if name == "validation" else ""
        raise PreparationError(ExitCode.BAD_DATA, f"{text}; {fix}")
    epoch = total.training // run.batch * run.batch
    epochs = -(-run.samples // epoch)
    if epochs > run.max_epochs:
        text = (
            f"the run reads {run.samples:,} chats, and {total.training:,} are for training: {epochs:,} epochs"
        )
        fix = f"set data.maxEpochs: {epochs}, a smaller training.trainIters, or add chats"
        raise PreparationError(
            ExitCode.BAD_DATA, f"data.maxEpochs: {text}, at most {run.max_epochs:,}; {fix}"
        )


def _link(root: Path, made: Path) -> None:
    """Give the folder the name by which the run reads it."""
    root.parent.mkdir(parents=True, exist_ok=True)
    new = shards.temporary(root)
    new.unlink(missing_ok=True)
    new.symlink_to(os.path.relpath(made, root.parent))
    new.replace(root)
