"""Prepares the sources of a recipe with any number of workers that do not speak to each other.

All of them walk through the same shards, each from its own part on, then through what the others have not
begun yet; the files on the volume are all that they share. A worker that is killed loses the shard that it
was at. Worker 0 joins the shards; it waits for those that others build, and builds what they do not continue.
A dataset is kept under a digest of what it was made from, and the name that a recipe gives to Megatron links
to it, so recipes share what is the same.
"""

import json
import os
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from megatron_contract.environment import DATA_DIR, ENV_RUN_ID
from megatron_contract.exit_codes import ExitCode
from megatron_contract.preparation import PreparationResult

from megatron_trainer.data import check, megatron_tokenizer, shards, tokenizer
from megatron_trainer.data.chat import ConversationError, load_template
from megatron_trainer.data.claims import Claims
from megatron_trainer.data.dataset import Dataset
from megatron_trainer.data.documents import Position, Render, read_documents
from megatron_trainer.data.fast_encoder import FastEncoder
from megatron_trainer.data.kept_objects import find_kept, keep_settings, log_kept
from megatron_trainer.data.left_out import CheckedTemplate
from megatron_trainer.data.log import log
from megatron_trainer.data.megatron_tokenizer import MegatronEncoder
from megatron_trainer.data.meter import Meter
from megatron_trainer.data.preparation_error import NoFilesError, PreparationError
from megatron_trainer.data.shards import Encoder, RecordEncoder, TokenEncoder
from megatron_trainer.data.sources import Source, content_digest, divide, find_files
from megatron_trainer.data.validation_files import check_validation_files
from megatron_trainer.tokenizer_files import digest_of_tokenizer

_WAIT_SECONDS = 0.2


@dataclass(frozen=True)
class Worker:
    """Which of `count` workers this is."""

    index: int
    count: int


def load_encoder(folder: Path, *, append_eod: bool) -> Encoder:
    """Load the tokenizer of a directory. Raises PreparationError if there is none, or it has no end token."""
    setting = "data.tokenizer.tokenizerModel"
    if not (folder / "tokenizer.json").is_file():
        there = f"has no tokenizer.json, it has {_names(folder)}" if folder.is_dir() else "is not a folder"
        fix = "copy the tokenizer there, in the fast format of transformers (save_pretrained)"
        raise PreparationError(ExitCode.BAD_DATA, f"{setting}: {folder} {there}; {fix}")
    try:
        loaded, eod = tokenizer.load(folder)
    except tokenizer.TokenizerError as error:
        raise PreparationError(ExitCode.BAD_DATA, f"{setting}: {error}; copy it again") from error
    if append_eod and eod is None:
        raise PreparationError(
            ExitCode.BAD_DATA,
            f"data.prepare.appendEod: the tokenizer in {folder} has no eos_token in its vocabulary; "
            "set one in its tokenizer_config.json, or set false here",
        )
    # Ids may have gaps: the largest decides, as it must fit the embedding and the type of the file.
    size = max(loaded.get_vocab(with_added_tokens=True).values()) + 1
    return Encoder(loaded, size, eod if append_eod else None)


def _names(folder: Path) -> str:
    names = sorted(entry.name for entry in folder.iterdir() if not entry.name.startswith("."))
    return ", ".join(names[:4]) or "nothing"


def prepare(
    sources: Sequence[Source],
    folder: Path,
    tokenizer_dir: Path,
    worker: Worker,
    *,
    append_eod: bool,
    needs: check.Needs | None = None,
    megatron: MegatronEncoder | None = None,
    meter: Meter | None = None,
    threads: int = 1,
    trust_remote_code: bool = False,
) -> PreparationResult | None:
    """Prepare all sources below `folder`. Returns the result, None for a worker that does not join.

    Checks them against what a run `needs`, which may run code of the tokenizer with `trust_remote_code`.
    `megatron` is used instead of the tokenizer of a directory, which encodes with `threads`. Raises
    PreparationError or OSError.
    """
    encoder: TokenEncoder
    if megatron is not None:
        encoder = megatron
        if needs is not None:
            megatron_tokenizer.check_vocabulary(tokenizer_dir, megatron, needs.vocab_size)
    else:
        encoder = load_encoder(tokenizer_dir, append_eod=append_eod)
        if needs is not None:
            _check_encoder(tokenizer_dir, encoder, needs, worker, trust_remote_code=trust_remote_code)
    render = _template(sources, tokenizer_dir)
    datasets = [_dataset(source, folder, tokenizer_dir, encoder) for source in sources]
    if needs is not None:
        names = {source.name for source in sources if str(source.output) in needs.validation}
        check_validation_files(datasets, names)
    if isinstance(encoder, Encoder) and not all(dataset.done.is_file() for dataset in datasets):
        encoder = FastEncoder(encoder, tokenizer_dir, threads, log)
    meter = meter or Meter(log)
    meter.begin(datasets)
    build_shards(datasets, encoder, render, worker, meter)
    if worker.index:
        return None
    total = [0, 0, 0, 0]
    prepared = []
    for dataset in datasets:
        if not dataset.done.is_file():
            repair(dataset, encoder, render, meter)
        counts = _finish(dataset, encoder)
        total = [sum(pair) for pair in zip(total, counts, strict=True)]
        prepared.append(check.Prepared(dataset.source, dataset.folder / "data", counts[0]))
    if needs is not None:
        with meter.checking():
            check.check_datasets(prepared, encoder, needs)
    for dataset in datasets:
        keep_settings(dataset.folder, dataset, encoder.eod)
        _link(dataset)
    documents, tokens, bin_bytes, idx_bytes = total
    return PreparationResult(documents, tokens, encoder.vocabulary, str(folder), bin_bytes, idx_bytes)


def _check_encoder(
    folder: Path, encoder: Encoder, needs: check.Needs, worker: Worker, *, trust_remote_code: bool
) -> None:
    check.check_vocabulary(folder, encoder, needs.vocab_size)
    if not worker.index:
        check.check_tokenizer(folder, encoder, trust_remote_code=trust_remote_code)


def _template(sources: Sequence[Source], tokenizer_dir: Path) -> Render | None:
    chats = [source for source in sources if source.format == "chat"]
    if not chats:
        return None
    try:
        return CheckedTemplate(load_template(tokenizer_dir))
    except ConversationError as error:
        raise chats[0].refuse("format", str(error)) from error


def _dataset(source: Source, folder: Path, tokenizer_dir: Path, encoder: TokenEncoder) -> Dataset:
    if isinstance(encoder, MegatronEncoder):
        template = encoder.digest
    else:
        template = digest_of_tokenizer(tokenizer_dir, with_template=source.format == "chat")
    link = source.output.with_name(f"{source.output.name}.bin")
    try:
        files = find_files(source)
    except NoFilesError as error:
        if not link.is_symlink():
            raise
        made = find_kept(link.resolve().parent, folder / "objects", source, template, encoder.eod)
        if made is None or (kept := Dataset(source, made, (), template)).counts() is None:
            raise NoFilesError(error.code, f"{error}, or {_to_go_on(source)}") from error
        log_kept(kept)
        return kept
    made_from = folder / "objects" / content_digest(source, files, template, encoder.eod)
    if link.is_symlink() and link.resolve() != (made_from / "data.bin").resolve():
        raise source.refuse(
            "path",
            f"the files of {source.path} or the tokenizer changed since this dataset was prepared, and a run "
            "that resumes would read other samples; set another data.prepare.name to prepare them again, or "
            f"{_to_go_on(source)}",
        )
    dataset = Dataset(source, made_from, divide(source, files), template)
    if dataset.counts() is None:
        dataset.done.unlink(missing_ok=True)
        dataset.work.mkdir(parents=True, exist_ok=True)
    return dataset


def _to_go_on(source: Source) -> str:
    """What to set to have the dataset of before."""
    path = str(source.output).removeprefix(f"{DATA_DIR}/")
    return f"list path: {path} in data.blend, instead of data.sources, to go on with what was prepared"


def _order(datasets: Sequence[Dataset], worker: Worker) -> list[tuple[Dataset, int]]:
    """All shards: first this worker's own, then the others', in an order that differs by worker.

    Workers that help would else follow each other from shard to shard.
    """
    every = [(dataset, number) for dataset in datasets for number in range(len(dataset.divided))]
    first = len(every) * worker.index // worker.count
    last = len(every) * (worker.index + 1) // worker.count
    others = [*every[:first], *every[last:]]
    random.Random(worker.index).shuffle(others)
    return [*every[first:last], *others]


def build_shards(
    datasets: Sequence[Dataset], encoder: RecordEncoder, render: Render | None, worker: Worker, meter: Meter
) -> None:
    """Build the shards that no worker has built or builds. Raises PreparationError or OSError.

    Worker 0 returns when all are complete, another one when it has nothing left to begin.
    """
    claims = Claims()
    left = _order(datasets, worker)
    refused = set[Path]()
    while True:
        for dataset, number in left:
            shard = shards.records_file(dataset.work, number)
            if shard in refused and not _is_reached(dataset, number):
                continue
            try:
                build = partial(_build, dataset, number, claims, _owner(worker, dataset.source))
                if not _is_taken(dataset, number, partial(build, encoder, render, meter)):
                    claims.release(shard)
                    refused.add(shard)
            except FileNotFoundError:
                # Worker 0 joined the shards, and removed them, while this one was at the last.
                if not dataset.done.is_file():
                    raise
        left = [(dataset, number) for dataset, number in left if not _is_built(dataset, number)]
        if worker.index or not left:
            return
        meter.refresh()
        time.sleep(_WAIT_SECONDS)


def _owner(worker: Worker, source: Source) -> str:
    """The name of a worker in its claims, also once it is started again: others may have its source."""
    return f"{worker.index} {os.environ.get(ENV_RUN_ID, '')} {source.output}"


def _is_built(dataset: Dataset, number: int) -> bool:
    return dataset.done.is_file() or shards.lengths_file(dataset.work, number).is_file()


def _is_taken(dataset: Dataset, number: int, build: Callable[[], None]) -> bool:
    """Build a shard. Returns False if it cannot be read, and it is not known whether it has to be.

    What is wrong may be behind the documents that the source's limit takes.
    """
    try:
        build()
    except PreparationError:
        if dataset.source.documents is None:
            raise
        if not _is_reached(dataset, number):
            return False
        # Shards before it may have become complete meanwhile.
        build()
    return True


def _is_reached(dataset: Dataset, number: int) -> bool:
    """Whether it is known how many documents of a shard are taken: all before it are complete, or suffice."""
    limit = dataset.source.documents
    if limit is None or shards.documents_before(dataset.work, number, limit) >= limit:
        return True
    return all(_is_built(dataset, before) for before in range(number))


def _build(
    dataset: Dataset,
    number: int,
    claims: Claims,
    owner: str,
    encoder: RecordEncoder,
    render: Render | None,
    meter: Meter,
) -> None:
    """Build a shard, unless it is there or another worker builds it."""
    shard = shards.records_file(dataset.work, number)
    if _is_built(dataset, number) or not claims.take(shard, owner):
        return
    # A network file system may have shown what was before; to write in the folder updates it.
    if not _is_built(dataset, number):
        limit = dataset.source.documents
        if limit is not None:
            limit = max(0, limit - shards.documents_before(dataset.work, number, limit))
        position = Position()
        texts = read_documents(dataset.source, dataset.divided[number], render, position)
        texts = claims.kept(shard, owner, meter.watched(texts, position))
        shards.write_shard(dataset.work, number, texts, encoder, limit)
    claims.release(shard)


def repair(dataset: Dataset, encoder: RecordEncoder, render: Render | None, meter: Meter) -> None:
    """Build again the shards whose files were cut by a node that lost power."""
    try:
        broken = shards.remove_broken(dataset.work, len(dataset.divided), encoder)
    except FileNotFoundError:
        # Worker 0 of another recipe with this source is joining them.
        return
    if broken:
        log(f"{dataset.source.name}: {len(broken)} shards are not whole, and are built again")
        build_shards([dataset], encoder, render, Worker(0, 1), meter)


def _join(dataset: Dataset, encoder: TokenEncoder) -> None:
    source = dataset.source
    part = shards.temporary(dataset.folder / "data")
    documents, tokens = shards.join(dataset.work, len(dataset.divided), part, encoder, source.documents)
    if not tokens:
        raise source.refuse("path", f"the files of {source.path} contain no text; correct the path")
    if content_digest(source, find_files(source), dataset.tokenizer, encoder.eod) != dataset.folder.name:
        problem = f"the files of {source.path} changed while they were prepared"
        raise source.refuse("path", f"{problem}; wait until they are complete, then edit the recipe")
    if source.documents is not None and documents < source.documents:
        log(f"{source.name}.documents: all {documents:,} are taken, which is fewer than the limit")
    sizes = []
    for suffix in (".bin", ".idx"):
        made = Path(f"{part}{suffix}")
        sizes.append(made.stat().st_size)
        made.replace(dataset.folder / f"data{suffix}")
    mark = shards.temporary(dataset.done)
    mark.write_text(json.dumps([documents, tokens, *sizes]), encoding="utf-8")
    mark.replace(dataset.done)


def _finish(dataset: Dataset, encoder: TokenEncoder) -> tuple[int, int, int, int]:
    """Join the shards if nobody has. Returns the counts of the result."""
    dataset.finish(lambda: _join(dataset, encoder), ".data.*")
    counts = dataset.counts()
    assert counts is not None, "the dataset was joined"
    documents, tokens, bin_bytes, idx_bytes = counts
    return documents, tokens, bin_bytes, idx_bytes


def _link(dataset: Dataset) -> None:
    """Give the dataset the name by which the run reads it."""
    for suffix in (".bin", ".idx"):
        target = dataset.folder / f"data{suffix}"
        link = dataset.source.output.with_name(f"{dataset.source.output.name}{suffix}")
        link.parent.mkdir(parents=True, exist_ok=True)
        new = shards.temporary(link)
        new.unlink(missing_ok=True)
        new.symlink_to(os.path.relpath(target, link.parent))
        new.replace(link)
