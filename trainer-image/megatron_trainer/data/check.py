"""Proves that prepared datasets suffice for a run, before any accelerator is taken.

Megatron itself finds a token id above the vocabulary as an error of a device, repeats documents silently, and
never returns where a split that it reads has no document.
"""

import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import batched, pairwise
from pathlib import Path
from typing import Any

import numpy as np
from megatron_contract.exit_codes import ExitCode

from megatron_trainer.data.indexed_files import Entry
from megatron_trainer.data.preparation_error import PreparationError
from megatron_trainer.data.shards import Encoder, TokenEncoder, count_tokens
from megatron_trainer.read_errors import is_temporary

_BLOCK = 8 << 20
_MODEL = "data.tokenizer.tokenizerModel"
_SPLITS = ("training", "validation", "test")
_ALL_TO_TRAIN_ON = "100,0,0"


@dataclass(frozen=True)
class Needs:
    """What a run reads. `samples` are those of the training, each of `seq_length` tokens and one more."""

    vocab_size: int | None
    seq_length: int
    samples: int
    max_epochs: int | None
    """How often a dataset may be read; None for any number of times."""
    split: str
    evaluates: bool
    weights: Mapping[str, float]
    """Prefix of a dataset to train on -> its weight."""
    validation: Collection[str] = ()
    """Prefixes of datasets that are only evaluated on. `split` then gives all others to training."""


@dataclass(frozen=True)
class Prepared:
    """A dataset of the run: prefix of its files, and the number of documents in them."""

    source: Entry
    prefix: Path
    documents: int


def parse_needs(flags: Sequence[str], vocab_size: int | None, max_epochs: int | None) -> Needs | None:
    """Read the needs from Megatron's flags of a run; None where they do not have its length."""
    values = dict(_values(flags))
    try:
        seq_length = int(values["seq-length"][0])
        if "train-samples" in values:
            samples = int(values["train-samples"][0])
        else:
            samples = int(values["train-iters"][0]) * int(values["global-batch-size"][0])
        evaluates = int(values.get("eval-iters", ["100"])[0]) > 0
        alone = "valid-data-path" in values
        weights = _mix(values["train-data-path" if alone else "data-path"])
        validation = tuple(_mix(values["valid-data-path"])) if alone else ()
    except (KeyError, IndexError, ValueError):
        return None
    split = _ALL_TO_TRAIN_ON if alone else values.get("split", ["969,30,1"])[0]
    return Needs(vocab_size, seq_length, samples, max_epochs, split, evaluates, weights, validation)


def _mix(words: Sequence[str]) -> dict[str, float]:
    """Prefix -> weight, of a list of Megatron's, which may have a prefix twice.

    Raises IndexError and ValueError.
    """
    pairs = [("1", words[0])] if len(words) == 1 else list(batched(words, 2))
    weights: dict[str, float] = {}
    for pair in pairs:
        weights[pair[1]] = weights.get(pair[1], 0.0) + float(pair[0])
    return weights


def _values(flags: Sequence[str]) -> Iterator[tuple[str, list[str]]]:
    name, values = "", list[str]()
    for word in [*flags, "--"]:
        if not word.startswith("--"):
            values.append(word)
            continue
        if name:
            yield name, values
        name, _, value = word[2:].partition("=")
        values = [value] if value else []


def load_offline(folder: Path, *, trust_remote_code: bool = False) -> Any:
    """Return the tokenizer of a folder as Megatron has transformers load it.

    `trust_remote_code`: code of the folder may be run, as with Megatron's flag of this name. Raises
    PreparationError, and what a volume raises that cannot be read for a while.
    """
    if not folder.is_dir():
        text = f"{_MODEL}: {folder} is not a folder; copy the tokenizer there (save_pretrained)"
        raise PreparationError(ExitCode.BAD_DATA, text)
    try:
        return _load(str(folder), trust_remote_code=trust_remote_code)
    except Exception as error:  # of many kinds
        if is_temporary(error):
            raise
        text = f"{_MODEL}: transformers cannot load {folder} offline: {_reason(error)}"
        raise PreparationError(ExitCode.BAD_DATA, f"{text}; save it with save_pretrained") from error


def load_cached(name: str, *, trust_remote_code: bool = False) -> Any:
    """Return the tokenizer of this name on a hub from the cache, as a run that asks no hub loads it.

    Raises PreparationError, and what a volume raises that cannot be read for a while.
    """
    fix = 'set a folder on the data volume, or env: {HF_HUB_OFFLINE: "0"} to have the trainers ask the hub'
    try:
        return _load(name, trust_remote_code=trust_remote_code)
    except OSError as error:
        if is_temporary(error):
            raise
        text = f"{name} is a name on a hub, which the run does not ask, and not in the image's cache"
        raise PreparationError(ExitCode.BAD_DATA, f"{_MODEL}: {text}; {fix}") from error
    except Exception as error:  # of many kinds
        if is_temporary(error):
            raise
        text = f"{_MODEL}: transformers cannot load {name} from the cache: {_reason(error)}"
        raise PreparationError(ExitCode.BAD_DATA, f"{text}; {fix}") from error


def _load(model: str, *, trust_remote_code: bool) -> Any:
    os.environ["HF_HUB_OFFLINE"] = "1"
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(model, local_files_only=True, trust_remote_code=trust_remote_code)


def _reason(error: Exception) -> str:
    return " ".join(str(error).split())[:200]


def check_tokenizer(folder: Path, encoder: Encoder, *, trust_remote_code: bool = False) -> None:
    """Raise PreparationError unless transformers, as Megatron calls it, loads the tokenizer offline."""
    loaded = load_offline(folder, trust_remote_code=trust_remote_code)
    if encoder.eod is not None and loaded.eos_token_id != encoder.eod:
        raise PreparationError(
            ExitCode.BAD_DATA,
            f"data.tokenizer.tokenizerModel: the end token of {folder} is {encoder.eod}, but "
            f"{loaded.eos_token_id} for transformers, and so for Megatron; save the tokenizer again with "
            "save_pretrained",
        )


def check_vocabulary(folder: Path, encoder: Encoder, vocab_size: int | None) -> None:
    """Raise PreparationError for a tokenizer whose own ids exceed the model; added tokens may be unused."""
    own = max(encoder.tokenizer.get_vocab(with_added_tokens=False).values(), default=0)
    if vocab_size is not None and own >= vocab_size:
        raise PreparationError(
            ExitCode.BAD_DATA,
            f"data.tokenizer.tokenizerModel: {folder} has token ids up to {own:,}, and model.vocabSize is "
            f"{vocab_size:,}; set model.vocabSize: {encoder.vocabulary}, or name the model's own tokenizer",
        )


def check_datasets(datasets: Sequence[Prepared], encoder: TokenEncoder, needs: Needs) -> None:
    """Raise PreparationError unless ids are below the vocabulary and the samples suffice."""
    for dataset in datasets:
        if needs.vocab_size is not None and encoder.vocabulary > needs.vocab_size:
            _check_ids(dataset, encoder, needs.vocab_size)
    check_samples(datasets, needs)


def check_samples(datasets: Sequence[Prepared], needs: Needs) -> dict[str, float]:
    """Raise PreparationError unless each split has a sample, and no dataset is read too often.

    Returns how often the run reads each dataset that it trains on, by its prefix.
    """
    times = dict[str, float]()
    total = sum(needs.weights.values())
    for dataset in datasets:
        weight = needs.weights.get(str(dataset.source.output))
        if weight:
            times[str(dataset.source.output)] = _check_samples(dataset, needs, weight / total)
        elif str(dataset.source.output) in needs.validation:
            _check_one_sample(dataset, needs.seq_length, 0, dataset.documents, "it")
    return times


def _check_one_sample(dataset: Prepared, seq_length: int, first: int, last: int, what: str) -> int:
    """Return the samples in an epoch of documents `first` to `last`. Raises PreparationError for none."""
    tokens = count_tokens(Path(f"{dataset.prefix}.idx"), first, last)
    samples = (tokens - 1) // seq_length
    if samples < 1:
        problem = f"{what} has {tokens:,} tokens, and a sample has {seq_length + 1:,}"
        raise dataset.source.refuse("path", f"{problem}; add documents, or set training.seqLength lower")
    return samples


def _check_ids(dataset: Prepared, encoder: TokenEncoder, vocab_size: int) -> None:
    with Path(f"{dataset.prefix}.bin").open("rb") as stream:
        while data := stream.read(_BLOCK):
            largest = int(np.frombuffer(data, dtype=encoder.dtype).max())
            if largest >= vocab_size:
                problem = f"has token id {largest:,}, and model.vocabSize is {vocab_size:,}"
                fix = f"set model.vocabSize: {encoder.vocabulary}, or remove these tokens from the documents"
                raise dataset.source.refuse("path", f"{dataset.source.path} {problem}; {fix}")


def split_bounds(split: str, documents: int) -> list[tuple[int, int]]:
    """Return first and last document, exclusive, of each split, as Megatron rounds them.

    `documents` is the number of documents to split; `split` has the weights of training, validation and test,
    such as 969,30,1; those left out are 0.
    """
    parts = [float(part) for part in split.replace("/", ",").split(",")][: len(_SPLITS)]
    parts += [0.0] * (len(_SPLITS) - len(parts))
    sums = [sum(parts[:count]) / sum(parts) for count in range(len(parts) + 1)]
    ends = [round(share * float(documents)) for share in sums]
    return list(pairwise(ends))


def empty_split(needs: Needs, documents: int) -> str | None:
    """Return what is wrong with a split that the run reads and that has no document, and the fix.

    None where each has one. `documents` is the number of documents to split.
    """
    shares = [float(part) > 0 for part in needs.split.split(",")] + [False] * len(_SPLITS)
    read = (True, needs.evaluates and shares[1], needs.evaluates and shares[2])
    for name, (first, last), used in zip(_SPLITS, split_bounds(needs.split, documents), read, strict=True):
        if used and first == last:
            fix = "set another data.split, or 100,0,0 with training.evalIters: 0"
            if name == "training":
                fix = "add documents, or set data.split to give it some"
            return f"data.split {needs.split} leaves none of its {documents:,} documents to {name}; {fix}"
    return None


def _check_samples(dataset: Prepared, needs: Needs, share: float) -> float:
    """Return how often the run reads its training split."""
    source = dataset.source
    if problem := empty_split(needs, dataset.documents):
        raise source.refuse("path", problem)
    first, last = split_bounds(needs.split, dataset.documents)[0]
    samples = _check_one_sample(dataset, needs.seq_length, first, last, "its training split")
    required = -(-needs.samples * share // 1)
    epochs = -(-required // samples)
    if needs.max_epochs is not None and epochs > needs.max_epochs:
        problem = (
            f"the run reads {required:,.0f} samples of it ({share:.3g} of {needs.samples:,}), an epoch has "
            f"{samples:,} of {needs.seq_length:,} tokens: {epochs:,.0f} epochs, at most {needs.max_epochs}"
        )
        fix = f"set data.maxEpochs: {epochs:.0f}, a smaller weight or training.trainIters, or add documents"
        raise source.refuse("weight", f"{problem}; {fix}")
    return float(required / samples)


def times_read(prefix: Path, documents: int, needs: Needs) -> float:
    """Return how often a run reads the tokens of the only dataset that it reads, of `documents`."""
    first, last = split_bounds(needs.split, documents)[0]
    tokens = count_tokens(Path(f"{prefix}.idx"), first, last)
    return needs.samples * needs.seq_length / max(tokens, 1)


def show_times(times: float) -> str:
    """Return how often something is read, with two digits: 2.4 times."""
    text = f"{times:,.0f}" if times >= 10 else f"{times:.2g}"
    return "once" if text == "1" else f"{text} times"
