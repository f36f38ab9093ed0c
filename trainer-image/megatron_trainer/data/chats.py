"""Prepares chats, documents, or samples of media and text, to fine-tune: training.jsonl and validation.jsonl.

Workers share the conversations by shards as they do documents (blend.py), but a shard's records are lines
instead of tokens. Each source becomes a folder under a digest of what it was made from; the first share of
its chats is for training, the next for validation. The folder of several sources has their files joined, and
the weights by which the run reads them (bridge/sample_blend.py).
"""

import hashlib
import json
import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import BinaryIO

import numpy as np
from megatron_contract.environment import DATA_DIR
from megatron_contract.exit_codes import ExitCode

from megatron_trainer.bridge import sample_blend
from megatron_trainer.data import check, shards, tokenizer
from megatron_trainer.data.answers import ChatLines, LineEncoder
from megatron_trainer.data.blend import Worker, build_shards, load_encoder, repair
from megatron_trainer.data.chat import ConversationError
from megatron_trainer.data.chat_check import ChatCounts, ChatRun, Part, check_run, parts
from megatron_trainer.data.dataset import Dataset
from megatron_trainer.data.document_lines import DocumentLines
from megatron_trainer.data.documents import Render
from megatron_trainer.data.image_samples import SampleLines, digest_of_processor
from megatron_trainer.data.kept_objects import find_kept, keep_settings, log_kept
from megatron_trainer.data.line_ends import write_line_ends
from megatron_trainer.data.log import log
from megatron_trainer.data.meter import Meter
from megatron_trainer.data.preparation_error import NoFilesError, PreparationError
from megatron_trainer.data.shards import RecordEncoder
from megatron_trainer.data.sources import Source, content_digest, divide, find_files
from megatron_trainer.data.validation_files import check_validation_files
from megatron_trainer.tokenizer_files import digest_of_tokenizer

FILES = ("training.jsonl", "validation.jsonl")
_BLOCK = 8 << 20


@dataclass(frozen=True)
class _Lines:
    """How the lines of a source are made; `render` of conversations alone, `eod` is what ends documents."""

    encoder: RecordEncoder
    render: Render | None = None
    eod: int | None = None


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
    digests = {
        source.name: _digest(source, tokenizer_dir, run, splits[source.name], lines[source.name].eod)
        for source in sources
    }
    datasets = [_dataset(source, folder, root, digests[source.name]) for source in sources]
    check_validation_files(datasets, {source.name for source in sources if source.validation})
    made = _folder(datasets, folder)
    _check_link(sources, root, made)
    meter = meter or Meter(log)
    meter.begin(datasets)
    for is_text in (False, True):
        if group := [dataset for dataset in datasets if dataset.source.is_text == is_text]:
            of_group = lines[group[0].source.name]
            build_shards(group, of_group.encoder, of_group.render, worker, meter)
    if worker.index:
        return None
    for dataset in datasets:
        of_source = lines[dataset.source.name]
        if not dataset.done.is_file():
            repair(dataset, of_source.encoder, of_source.render, meter)
        dataset.finish(partial(_join, dataset, splits[dataset.source.name]), ".*.jsonl.*")
    counts = [_counts(dataset) for dataset in datasets]
    total = ChatCounts(*(sum(each) for each in zip(*counts, strict=True)))
    files = parts(sources, counts)
    if len(datasets) > 1:
        _concatenate(datasets, made, files)
    check_run(*files, run)
    if not _of_samples(sources):
        for name in FILES:
            write_line_ends(made / name)
    for dataset in datasets:
        keep_settings(made, dataset, None)
    _link(root, made)
    return total


def _of_samples(sources: Sequence[Source]) -> bool:
    return sources[0].format == "webdataset"


def _load(sources: Sequence[Source], tokenizer_dir: Path, run: ChatRun) -> dict[str, _Lines]:
    """Return how the lines of each source are made, by its name. Raises PreparationError."""
    encoder = load_encoder(tokenizer_dir, append_eod=False)
    eod = tokenizer.load(tokenizer_dir)[1]
    if eod is None:
        text = f"data.tokenizer.tokenizerModel: {tokenizer_dir} has no eos_token in its vocabulary"
        fix = "set one in its tokenizer_config.json: samples are padded with it"
        raise PreparationError(ExitCode.BAD_DATA, f"{text}; {fix}")
    check.check_vocabulary(tokenizer_dir, encoder, run.vocab_size)
    found = {}
    if any(source.is_text for source in sources):
        encoder = replace(encoder, eod=eod)
        of_text = _Lines(DocumentLines(encoder, run.seq_length, run.vocab_size), eod=eod)
        found = {source.name: of_text for source in sources if source.is_text}
    check.check_tokenizer(tokenizer_dir, encoder)
    if spoken := [source for source in sources if not source.is_text]:
        made = _maker(spoken[0], tokenizer_dir, run)
        found |= {source.name: _Lines(LineEncoder(), made.line) for source in spoken}
    return found


def _maker(source: Source, folder: Path, run: ChatRun) -> ChatLines | SampleLines:
    """What makes the lines of conversations; the folder of samples is that of the model."""
    of_samples = _of_samples([source])
    try:
        return (SampleLines if of_samples else ChatLines)(folder, run.seq_length, run.vocab_size)
    except ConversationError as error:
        if of_samples:
            raise PreparationError(ExitCode.BAD_DATA, f"init.modelFolder: {error}") from error
        raise source.refuse("format", str(error)) from error


def _split(source: Source, run: ChatRun) -> str:
    """Shares of training and validation of a source."""
    return "0,100" if source.validation else run.split


def _digest(source: Source, tokenizer_dir: Path, run: ChatRun, split: str, eod: int | None) -> str:
    """Digest of all but the files that the lines of a source and their split depend on."""
    files = digest_of_tokenizer(tokenizer_dir, with_template=not source.is_text)
    # tokenizer_config.json has the end token, and the template, which documents do not depend on.
    what: list[object] = ["documents", eod] if source.is_text else ["chats"]
    if _of_samples([source]):
        what = [medium.many for medium in source.media]
        what += ["crc32", digest_of_processor(tokenizer_dir)]
    depends = [*what, run.seq_length, split, run.vocab_size, files]
    return hashlib.sha256(json.dumps(depends).encode()).hexdigest()


def _dataset(source: Source, folder: Path, root: Path, digest: str) -> Dataset:
    try:
        files = find_files(source)
    except NoFilesError:
        # The run reads media from the files themselves.
        if _of_samples([source]) or not root.is_symlink():
            raise
        kept_in = find_kept(root.resolve(), folder / "objects", source, digest, None)
        if kept_in is None or (kept := Dataset(source, kept_in, (), digest, FILES)).counts() is None:
            raise
        log_kept(kept)
        return kept
    made = folder / "objects" / content_digest(source, files, digest, None)
    dataset = Dataset(source, made, divide(source, files), digest, FILES)
    if dataset.counts() is None:
        dataset.done.unlink(missing_ok=True)
        dataset.work.mkdir(parents=True, exist_ok=True)
    return dataset


def _folder(datasets: Sequence[Dataset], folder: Path) -> Path:
    """The folder of what a run reads."""
    names: list[object] = [dataset.folder.name for dataset in datasets]
    if len(names) == 1:
        return datasets[0].folder
    weights = [dataset.source.weight for dataset in datasets]
    if sample_blend.is_weighted(weights):
        names.append(weights)
    return folder / "objects" / hashlib.sha256(json.dumps(names).encode()).hexdigest()[:32]


def _check_link(sources: Sequence[Source], root: Path, made: Path) -> None:
    if root.is_symlink() and root.resolve() != made.resolve():
        fix = "set another data.prepare.name to prepare them again"
        is_weighted = sample_blend.is_weighted(source.weight for source in sources)
        # What has weights, documents or media is read by data.sources alone.
        if not is_weighted and all(source.format == "chat" for source in sources):
            path = str(root).removeprefix(f"{DATA_DIR}/")
            fix += f", or data.datasetRoot: {path} with data.examples: chat, instead of data.sources, "
            fix += "to go on with what was prepared"
        raise sources[0].refuse(
            "path",
            "files of data.sources, the tokenizer or the vocabulary of the model changed since this dataset "
            f"was prepared, and a run that resumes would read other samples; {fix}",
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
        if source.is_text:
            raise source.refuse("path", f"the files of {source.path} contain no text; correct the path")
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
    samples = []
    for name, (first, end) in zip(FILES, pairwise(ends), strict=True):
        part = shards.temporary(dataset.folder / name)
        with part.open("wb") as stream:
            before = count = 0
            for number, length in enumerate(bytes_of):
                at, until = max(first, before), min(end, before + length)
                if at < until:
                    records = shards.records_file(dataset.work, number)
                    count += _copy(records, stream, at - before, until - before)
                before += length
            shards.flush(stream)
        part.replace(dataset.folder / name)
        samples.append(count)
    sizes = [end - first for first, end in pairwise(ends)]
    _mark(dataset.folder, [sum(taken), sum(taken) - kept, *samples, *sizes])


def _copy(source: Path, target: BinaryIO, first: int, end: int) -> int:
    """Append the bytes from `first` up to `end` of a file. Returns the number of lines that end there."""
    lines = 0
    with source.open("rb") as stream:
        stream.seek(first)
        while first < end and (data := stream.read(min(end - first, _BLOCK))):
            target.write(data)
            lines += data.count(b"\n")
            first += len(data)
    return lines


def _mark(folder: Path, counts: list[int]) -> None:
    mark = shards.temporary(folder / "done.json")
    mark.write_text(json.dumps(counts), encoding="utf-8")
    mark.replace(folder / "done.json")


def _concatenate(datasets: Sequence[Dataset], made: Path, files: Sequence[Part]) -> None:
    """Write the files of all sources after each other, which the run shuffles, and their weights."""
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
    if any(file.mix for file in files):
        part = shards.temporary(made / sample_blend.FILE)
        part.write_text(sample_blend.dump({file.name: file.mix for file in files}), encoding="utf-8")
        part.replace(made / sample_blend.FILE)
    _mark(made, [*(sum(each) for each in zip(*map(_counts, datasets), strict=True)), *sizes])


def _link(root: Path, made: Path) -> None:
    """Give the folder the name by which the run reads it."""
    root.parent.mkdir(parents=True, exist_ok=True)
    new = shards.temporary(root)
    new.unlink(missing_ok=True)
    new.symlink_to(os.path.relpath(made, root.parent))
    new.replace(root)
