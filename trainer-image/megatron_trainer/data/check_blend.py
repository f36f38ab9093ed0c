"""Checks datasets that were prepared elsewhere (`data.blend`) against a run, before any accelerator is taken.

What is found in a file is kept on the data volume, where that can be written, so that each file is read
once: an edited recipe, and another one with the same dataset, read only what has changed.
"""

import os
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
from megatron_contract.environment import DATA_DIR
from megatron_contract.exit_codes import ExitCode

from megatron_trainer.data import check, checked_ids, megatron_tokenizer
from megatron_trainer.data.check_meter import CheckMeter
from megatron_trainer.data.indexed_files import IndexedFiles, extremes, read_header
from megatron_trainer.data.log import log
from megatron_trainer.data.preparation_error import PreparationError
from megatron_trainer.flags import value_of
from megatron_trainer.volume_paths import left_volume

_MODEL: Final = "data.tokenizer.tokenizerModel"
_TOKENIZER: Final = "HuggingFaceTokenizer"
_CHECKED: Final = (_TOKENIZER, *megatron_tokenizer.SENTENCEPIECE, megatron_tokenizer.TIKTOKEN)
"""Types that are loaded here; others have no file, or are parsed by the flags of the run alone."""

_SHOWN: Final = 4
"""Datasets whose times are in the message, which becomes that of a condition."""


@dataclass(frozen=True)
class BlendPart:
    """One entry of `data.blend`."""

    name: str
    output: Path
    """The prefix of its two files."""

    @property
    def path(self) -> str:
        """The prefix too: what it was prepared from is not known."""
        return str(self.output)

    def refuse(self, setting: str, problem: str) -> PreparationError:
        """Return the error of one of its settings."""
        return PreparationError(ExitCode.BAD_DATA, f"{self.name}.{setting}: {problem}")


@dataclass(frozen=True)
class Limit:
    """The number of ids that the run takes, and what sets it."""

    ids: int
    of_tokenizer: bool = False


def check_blend(
    prefixes: Sequence[Path],
    flags: Sequence[str],
    vocab_size: int | None,
    max_epochs: int | None,
    known: Path,
    meter: CheckMeter,
) -> str:
    """Check the datasets of a run with these flags of Megatron. Returns a line that describes the end.

    `known` is the folder with what is known of files that were checked before. Raises PreparationError or
    OSError.
    """
    parts = [
        BlendPart(f"data.blend[{number}]", prefix)
        for number, prefix in enumerate(prefixes)
        if prefix not in prefixes[:number]
    ]
    files = [read_header(part) for part in parts]
    limit = _limit(flags, vocab_size)
    needs = check.parse_needs(flags, vocab_size, max_epochs)
    times = dict[str, float]()
    if needs is not None:
        datasets = [check.Prepared(each.entry, each.entry.output, each.sequences) for each in files]
        times = check.check_samples(datasets, needs)
    read = _check_ids(files, limit, known, meter)
    tokens = sum(each.bytes // each.dtype.itemsize for each in files)
    documents = sum(each.sequences for each in files)
    what = "1 dataset is" if len(files) == 1 else f"{len(files)} datasets are"
    text = f"{what} checked: {documents:,} documents, {tokens:,} tokens"
    text += "" if read or limit is None else ", whose ids were checked before"
    return text + _times_text({part.name: times[part.path] for part in parts if part.path in times})


def _times_text(times: Mapping[str, float]) -> str:
    """How often the run reads datasets, the most read first; the log has all of many."""
    found = sorted(times.items(), key=lambda item: -item[1])
    texts = [f"{name} is read {check.show_times(count)}" for name, count in found]
    if len(texts) > _SHOWN:
        log(", ".join(texts))
        texts[_SHOWN:] = [f"{len(texts) - _SHOWN} others less often"]
    return "".join(f"{'; ' if not number else ', '}{text}" for number, text in enumerate(texts))


def _limit(flags: Sequence[str], vocab_size: int | None) -> Limit | None:
    """Check that the tokenizer loads offline. Returns the ids that a run takes; None where that is not known.

    A tokenizer on another volume than that of the data is not here to be checked. Raises PreparationError.
    """
    size = _tokenizer_size(flags)
    if vocab_size is not None:
        return Limit(vocab_size)
    return None if size is None else Limit(size, of_tokenizer=True)


def _tokenizer_size(flags: Sequence[str]) -> int | None:
    kind, model = value_of(flags, "tokenizer-type"), value_of(flags, "tokenizer-model")
    for setting, flag in (("vocabFile", "vocab-file"), ("mergeFile", "merge-file")):
        file = value_of(flags, flag)
        if file is not None and _is_on_data(file) and not Path(file).is_file():
            text = f"data.tokenizer.{setting}: {file} does not exist; copy it there, or correct the path"
            raise PreparationError(ExitCode.BAD_DATA, text)
    if model is None or kind not in _CHECKED:
        return None
    path = Path(model)
    if not path.is_absolute() and not path.exists() and kind == _TOKENIZER:
        return _size_of_name(model, flags)
    if not _is_on_data(model) and not path.exists():
        log(f"{_MODEL} {model} is not on the data volume, and is not checked")
        return None
    if problem := left_volume(path):
        raise PreparationError(ExitCode.BAD_DATA, f"{_MODEL}: {problem}")
    if kind != _TOKENIZER:
        return megatron_tokenizer.load(path, flags, append_eod=False, threads=1).vocabulary
    return len(check.load_offline(path, trust_remote_code="--trust-remote-code" in flags))


def _size_of_name(name: str, flags: Sequence[str]) -> int | None:
    """The number of ids of a tokenizer by its name on a hub; None where the run may ask the hub for it.

    The operator sets the variable for a run that asks none and finds what this pod does.
    """
    if os.environ.get("HF_HUB_OFFLINE") != "1":
        log(f"{_MODEL} {name} is a name on a hub, and is not checked")
        return None
    # As the launcher of the run does.
    os.environ.setdefault("HF_HOME", str(Path(tempfile.gettempdir()) / "huggingface"))
    return len(check.load_cached(name, trust_remote_code="--trust-remote-code" in flags))


def _is_on_data(path: str) -> bool:
    return path.startswith(f"{DATA_DIR}/")


def _check_ids(files: Sequence[IndexedFiles], limit: Limit | None, known: Path, meter: CheckMeter) -> bool:
    """Raise PreparationError for an id that the run does not take. Returns whether a file has been read."""
    if limit is None:
        log("no size of a vocabulary is known: token ids are not checked")
        return True
    unread = [each for each in files if not _fits(each, limit) and checked_ids.find(each, known) is None]
    meter.begin(sum(each.bytes for each in unread))
    for each in files:
        if _fits(each, limit):
            continue
        found = checked_ids.find(each, known)
        if found is None:
            before = checked_ids.version(each.ids_file)
            found = extremes(each, meter.step)
            if checked_ids.version(each.ids_file) != before:
                problem = f"{each.ids_file} changed while it was checked"
                raise each.entry.refuse("path", f"{problem}; wait until it is complete, then edit the recipe")
            checked_ids.keep(each, known, found)
        _check_extremes(each, found, limit)
    return bool(unread)


def _fits(files: IndexedFiles, limit: Limit) -> bool:
    """Whether no id of its type can be outside."""
    return bool(np.iinfo(files.dtype).min == 0 and np.iinfo(files.dtype).max < limit.ids)


def _check_extremes(files: IndexedFiles, found: tuple[int, int], limit: Limit) -> None:
    smallest, largest = found
    if smallest < 0:
        problem = f"{files.ids_file} has token id {smallest:,}"
        raise files.entry.refuse("path", f"{problem}; it is damaged: copy it again, or prepare it again")
    if largest < limit.ids:
        return
    if limit.of_tokenizer:
        problem = f"the tokenizer has {limit.ids:,} ids"
        fix = "name the tokenizer that it was prepared with in data.tokenizer"
    else:
        problem = f"model.vocabSize is {limit.ids:,}"
        fix = f"set model.vocabSize: {largest + 1}, or prepare it with the model's tokenizer"
    raise files.entry.refuse("path", f"{files.ids_file} has token id {largest:,}, and {problem}; {fix}")
