"""Prepares the sources of a recipe with any number of workers that do not speak to each other.

All of them walk through the same shards, each from its own part on, then through what the others have not
done yet; the files on the volume are all that they share. A worker that is killed loses the shard that it was
at. Worker 0 joins the shards. A dataset is kept under a digest of what it was made from, and the name that a
recipe gives to Megatron links to it, so recipes share what is the same.
"""

import hashlib
import json
import os
import random
import shutil
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from megatron_contract.exit_codes import ExitCode
from megatron_contract.preparation import PreparationResult

from megatron_trainer.data import shards, tokenizer
from megatron_trainer.data.chat import ConversationError, load_template
from megatron_trainer.data.documents import Render, read_documents
from megatron_trainer.data.preparation_error import PreparationError
from megatron_trainer.data.shards import Encoder
from megatron_trainer.data.sources import Shard, Source, content_digest, divide, find_files

_PROGRESS_SECONDS = 5.0


@dataclass(frozen=True)
class Worker:
    """Which of `count` workers this is."""

    index: int
    count: int


@dataclass(frozen=True)
class _Dataset:
    source: Source
    folder: Path
    divided: Sequence[Shard]

    @property
    def done(self) -> Path:
        return self.folder / "done.json"

    @property
    def work(self) -> Path:
        return self.folder / "shards"


def _log(text: str) -> None:
    print(f"megatron-prepare: {text}", flush=True)


def load_encoder(folder: Path, *, append_eod: bool) -> Encoder:
    """Load the tokenizer of a directory. Raises PreparationError if there is none, or it has no end token."""
    try:
        if not tokenizer.exists(folder):
            raise tokenizer.TokenizerError(
                f"{folder} has no tokenizer.json; copy the tokenizer there, in the fast format of "
                "transformers"
            )
        loaded, eod = tokenizer.load(folder)
    except tokenizer.TokenizerError as error:
        raise PreparationError(ExitCode.BAD_DATA, f"data.tokenizer.tokenizerModel: {error}") from error
    if append_eod and eod is None:
        raise PreparationError(
            ExitCode.BAD_DATA,
            f"data.prepare.appendEod: the tokenizer in {folder} has no eos_token; set one, or false here",
        )
    # Ids may have gaps: the largest decides, as it must fit the embedding and the type of the file.
    size = max(loaded.get_vocab(with_added_tokens=True).values()) + 1
    return Encoder(loaded, size, eod if append_eod else None)


def _digest_of_tokenizer(folder: Path, *, with_template: bool) -> str:
    names = ["tokenizer.json", *(("tokenizer_config.json", "chat_template.jinja") if with_template else ())]
    digest = hashlib.sha256()
    for name in names:
        path = folder / name
        digest.update(path.read_bytes() if path.is_file() else b"none")
    return digest.hexdigest()


def prepare(
    sources: Sequence[Source], folder: Path, tokenizer_dir: Path, worker: Worker, *, append_eod: bool
) -> PreparationResult | None:
    """Prepare all sources below `folder`. Returns the result, None for a worker that does not join.

    Raises PreparationError or OSError.
    """
    encoder = load_encoder(tokenizer_dir, append_eod=append_eod)
    render = _template(sources, tokenizer_dir)
    datasets = [_dataset(source, folder, tokenizer_dir, encoder) for source in sources]
    _build_shards(datasets, encoder, render, worker)
    if worker.index:
        return None
    total = [0, 0, 0, 0]
    for dataset in datasets:
        counts = _finish(dataset, encoder)
        total = [sum(pair) for pair in zip(total, counts, strict=True)]
    documents, tokens, bin_bytes, idx_bytes = total
    return PreparationResult(documents, tokens, encoder.vocabulary, str(folder), bin_bytes, idx_bytes)


def _template(sources: Sequence[Source], tokenizer_dir: Path) -> Render | None:
    chats = [source for source in sources if source.format == "chat"]
    if not chats:
        return None
    try:
        return load_template(tokenizer_dir)
    except ConversationError as error:
        raise chats[0].refuse("format", str(error)) from error


def _dataset(source: Source, folder: Path, tokenizer_dir: Path, encoder: Encoder) -> _Dataset:
    files = find_files(source)
    template = _digest_of_tokenizer(tokenizer_dir, with_template=source.format == "chat")
    made_from = folder / "objects" / content_digest(source, files, template, encoder.eod)
    link = source.output.with_name(f"{source.output.name}.bin")
    if link.is_symlink() and link.resolve() != (made_from / "data.bin").resolve():
        raise source.refuse(
            "path",
            "the files or the tokenizer changed since this dataset was prepared, and a run that resumes "
            "would read other samples; set another data.prepare.name to prepare them again",
        )
    dataset = _Dataset(source, made_from, divide(source, files))
    if not dataset.done.is_file():
        dataset.work.mkdir(parents=True, exist_ok=True)
    return dataset


def _order(datasets: Sequence[_Dataset], worker: Worker) -> list[tuple[_Dataset, int]]:
    """All shards: first this worker's own, then the others', in an order that differs by worker.

    Helpers would else follow each other from shard to shard and do the same work.
    """
    every = [(dataset, number) for dataset in datasets for number in range(len(dataset.divided))]
    first = len(every) * worker.index // worker.count
    last = len(every) * (worker.index + 1) // worker.count
    others = [*every[:first], *every[last:]]
    random.Random(worker.index).shuffle(others)
    return [*every[first:last], *others]


def _build_shards(
    datasets: Sequence[_Dataset], encoder: Encoder, render: Render | None, worker: Worker
) -> None:
    todo = _order(datasets, worker)
    started = logged = time.monotonic()
    built = tokens = 0
    for position, (dataset, number) in enumerate(todo, start=1):
        if dataset.done.is_file() or shards.lengths_file(dataset.work, number).is_file():
            continue
        limit = dataset.source.documents
        if limit is not None:
            limit = max(0, limit - (shards.documents_before(dataset.work, number) or 0))
        try:
            texts = read_documents(dataset.source, dataset.divided[number], render)
            tokens += shards.write_shard(dataset.work, number, texts, encoder, limit)
        except FileNotFoundError:
            # Worker 0 joined the shards, and removed them, while this one repeated the last.
            if not dataset.done.is_file():
                raise
        built += 1
        if (now := time.monotonic()) - logged > _PROGRESS_SECONDS:
            logged = now
            left = (len(todo) - position) * (now - started) / built / worker.count
            rate = tokens / (now - started)
            _log(f"shard {position} of {len(todo)}, {rate:.0f} tokens/s, about {left:.0f} s left")


def _join(dataset: _Dataset, encoder: Encoder) -> None:
    part = shards.temporary(dataset.folder / "data")
    limit = dataset.source.documents
    documents, tokens = shards.join(dataset.work, len(dataset.divided), part, encoder, limit)
    if not tokens:
        raise dataset.source.refuse("path", f"{dataset.source.path} contains no text")
    sizes = []
    for suffix in (".bin", ".idx"):
        made = Path(f"{part}{suffix}")
        sizes.append(made.stat().st_size)
        made.replace(dataset.folder / f"data{suffix}")
    mark = shards.temporary(dataset.done)
    mark.write_text(json.dumps([documents, tokens, *sizes]), encoding="utf-8")
    mark.replace(dataset.done)


def _finish(dataset: _Dataset, encoder: Encoder) -> tuple[int, int, int, int]:
    """Join the shards if nobody has, and link the dataset's name to it. Returns the counts of the result."""
    if not dataset.done.is_file():
        try:
            _join(dataset, encoder)
        except FileNotFoundError:
            # Worker 0 of another recipe with this source was faster, and removed the shards.
            if not dataset.done.is_file():
                raise
    shutil.rmtree(dataset.work, ignore_errors=True)
    for leftover in dataset.folder.glob(".data.*"):
        leftover.unlink(missing_ok=True)
    for suffix in (".bin", ".idx"):
        target = dataset.folder / f"data{suffix}"
        link = dataset.source.output.with_name(f"{dataset.source.output.name}{suffix}")
        link.parent.mkdir(parents=True, exist_ok=True)
        new = shards.temporary(link)
        new.unlink(missing_ok=True)
        new.symlink_to(os.path.relpath(target, link.parent))
        new.replace(link)
    documents, tokens, bin_bytes, idx_bytes = json.loads(dataset.done.read_text(encoding="utf-8"))
    return documents, tokens, bin_bytes, idx_bytes
