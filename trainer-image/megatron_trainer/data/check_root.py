"""Checks a folder of samples to fine-tune on, or of latents (`data.datasetRoot`), against a run.

Each line is read by Megatron-Bridge's own function, so what passes here the run reads too.
"""

import codecs
import json
import math
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from megatron_contract.environment import DATA_DIR
from megatron_contract.exit_codes import ExitCode

from megatron_trainer.data import check
from megatron_trainer.data.chat import ConversationError, require_whole_weight
from megatron_trainer.data.check_meter import CheckMeter
from megatron_trainer.data.line_ends import write_line_ends
from megatron_trainer.data.log import log
from megatron_trainer.data.preparation_error import PreparationError
from megatron_trainer.volume_paths import left_volume

_FIELD: Final = "data.datasetRoot"
_MODEL: Final = "data.tokenizer.tokenizerModel"
_TRAINING: Final = "training.jsonl"
_VALIDATION: Final = "validation.jsonl"
_TURNS: Final = ("messages", "conversation", "conversations")
"""Keys of a chat in the order in which Bridge takes one."""
TOKENIZED: Final = 10_000
"""Lines of a file that are tokenized; all would take as long as an epoch of the loader."""

_LOST: Final = {
    "chat": "their end",
    "questionAndAnswer": "the end of the question, and what then does not fit of the answer",
}
"""What is cut off a sample that is too long."""


@dataclass(frozen=True)
class Root:
    """A folder, and what a run reads of it: `samples` in all of training, `batch` in an iteration.

    `lines` is questionAndAnswer, chat or latents; latents have no tokenizer.
    """

    path: Path
    lines: str
    tokenizer: Path | None
    batch: int
    samples: int
    max_epochs: int | None
    """How often a sample may be read; None for any number of times."""
    evaluates: bool
    vocab_size: int | None
    ends: Path | None = None
    """Folder for the ends of lines."""
    seq_length: int | None = None
    """Tokens of a sample, behind which it is cut; None for an unknown number."""


def check_root(root: Root, meter: CheckMeter) -> str:
    """Check the folder. Returns a line that describes the end. Raises PreparationError and OSError."""
    if problem := left_volume(root.path):
        raise _refuse(problem)
    if not root.path.is_dir():
        raise _refuse(f"{root.path} is not a folder; copy the samples there, or correct the path")
    if root.lines == "latents":
        return _check_latents(root)
    tokenizer = _tokenizer(root)
    names = [_TRAINING, *([_VALIDATION] if root.evaluates else [])]
    files = [_file(root, name) for name in names]
    meter.begin(sum(path.stat().st_size for path in files))
    readers = [_reader(root, tokenizer) for _ in files]
    counts = [_check_lines(path, reader, meter) for path, reader in zip(files, readers, strict=True)]
    if root.lines != "chat" and 0 < readers[0].tokenized == readers[0].cut:
        problem = f"all of the first {readers[0].cut:,} lines of {files[0]} are longer than {_length(root)}"
        fix = "set a larger training.seqLength, or shorten them"
        raise _refuse(f"{problem}, and would lose {_LOST[root.lines]}; {fix}")
    for path, count in zip(files, counts, strict=True):
        if count < root.batch:
            problem = f"{path} has {count:,} samples, and an iteration takes {root.batch:,}"
            fix = "add samples, or set a smaller training.globalBatchSize"
            fix += ", or training.evalIters: 0" if path.name == _VALIDATION else ""
            raise _refuse(f"{problem}; {fix}")
    times = _check_epochs(root, counts[0])
    for path in files if root.ends is not None and left_volume(root.ends) is None else ():
        write_line_ends(path, root.ends)
    evaluated = f", {counts[1]:,} for validation" if root.evaluates else ""
    text = f"{root.path} is checked: {counts[0]:,} samples for training{evaluated}"
    text += f"; those for training are read {times}"
    tokenized = max(each.tokenized for each in readers)
    if root.lines == "chat" and tokenizer is not None:
        text += f"; the chat template takes the first {tokenized:,} lines of a file"
        if unanswered := sum(each.unanswered for each in readers):
            text += f", and the loss counts no token of {unanswered:,} of them"
    if cut := sum(each.cut for each in readers):
        text += f"; warning: of the first {tokenized:,} lines of each file, {cut:,} are longer than"
        text += f" {_length(root)} and lose {_LOST[root.lines]}"
    return text


def _length(root: Root) -> str:
    return f"training.seqLength {root.seq_length:,}"


def _check_epochs(root: Root, count: int) -> str:
    """Return how often the samples are read. Raises PreparationError for more than is allowed."""
    of_epoch = count // root.batch * root.batch
    epochs = -(-root.samples // of_epoch)
    if root.max_epochs is not None and epochs > root.max_epochs:
        problem = f"the run reads {root.samples:,} samples, and {count:,} are there: {epochs:,} epochs"
        fix = f"set data.maxEpochs: {epochs}, a smaller training.trainIters, or add samples"
        text = f"data.maxEpochs: {problem}, at most {root.max_epochs:,}; {fix}"
        raise PreparationError(ExitCode.BAD_DATA, text)
    return check.show_times(root.samples / of_epoch)


def _tokenizer(root: Root) -> Any:
    """Return the tokenizer; None for one on a volume that is not mounted here. Raises PreparationError."""
    folder = root.tokenizer
    if folder is None or not (folder.exists() or folder.is_relative_to(DATA_DIR)):
        log(f"{_MODEL} {folder} is not on the data volume, and is not checked")
        return None
    if problem := left_volume(folder):
        raise PreparationError(ExitCode.BAD_DATA, f"{_MODEL}: {problem}")
    loaded = check.load_offline(folder)
    if root.lines == "chat" and not loaded.chat_template:
        text = f"{_MODEL}: {folder} has no chat template; add chat_template.jinja there"
        raise PreparationError(ExitCode.BAD_DATA, text)
    if root.vocab_size is not None and loaded.vocab_size > root.vocab_size:
        problem = f"{folder} has {loaded.vocab_size:,} ids, and model.vocabSize is {root.vocab_size:,}"
        raise PreparationError(ExitCode.BAD_DATA, f"{_MODEL}: {problem}; name the model's own tokenizer")
    return loaded


def _file(root: Root, name: str) -> Path:
    path = root.path / name
    fix = f"write {name} there, a sample a line"
    if name == _VALIDATION:
        fix += ", or set training.evalIters: 0"
    if problem := left_volume(path):
        raise _refuse(problem)
    if not path.is_file():
        found = sorted(entry.name for entry in root.path.iterdir() if not entry.name.startswith("."))
        raise _refuse(f"{root.path} has no {name}, it has {', '.join(found[:4]) or 'nothing'}; {fix}")
    if not os.access(path, os.R_OK):
        raise _refuse(f"{path} is not readable for user {os.getuid()} of the pods; change its mode or owner")
    if not path.stat().st_size:
        raise _refuse(f"{path} is empty; {fix}")
    return path


class _Reader:
    """Reads the samples of a file as Bridge does. `tokenizer`: None for lines that are not tokenized."""

    def __init__(self, form: Any, tokenizer: Any, seq_length: int | None, *, chats: bool) -> None:
        self._form = form
        self._tokenizer = tokenizer
        self._seq_length = seq_length
        self._chats = chats
        self._count = self._tokens_of_chat if chats else self._tokens_of_answer
        self.tokenized = 0
        self.unanswered = 0
        """Of those that are tokenized, the chats that a run reads, and of which the loss counts no token."""
        self.cut = 0
        """Of those that are tokenized, the samples with more tokens than a run reads."""

    def read(self, record: dict[str, Any]) -> None:
        """Raise ValueError for a sample that Bridge does not read."""
        from megatron.bridge.data.sft_processing import normalize_sft_example

        normalize_sft_example(record, self._form)
        if self._chats:
            _require_whole_weights(record)
        if self._tokenizer is None or self.tokenized == TOKENIZED:
            return
        self.tokenized += 1
        if self._count(record) > (self._seq_length or math.inf):
            self.cut += 1

    def _tokens_of_chat(self, record: dict[str, Any]) -> int:
        """Return the tokens of a chat, 0 for one of which the loss counts none."""
        from megatron_trainer.bridge.chat_tokens import AnswerError, NothingToLearnError, tokenize

        try:
            return len(tokenize(record, self._tokenizer)[0])
        except NothingToLearnError as error:
            # All of a file without answers would train nothing.
            if self.tokenized == 1:
                raise ValueError(str(error)) from error
            self.unanswered += 1
            return 0
        except AnswerError as error:
            raise ValueError(str(error)) from error

    def _tokens_of_answer(self, record: dict[str, Any]) -> int:
        """Return the tokens of a question with its answer."""
        from megatron.bridge.data.sft_processing import tokenize_prompt_completion_example

        return len(tokenize_prompt_completion_example(record, self._tokenizer, self._form).input_ids)


def _require_whole_weights(record: dict[str, Any]) -> None:
    """Raise ValueError for a chat with an answer that is not to be learned, which Bridge would count."""
    turns = next((record[key] for key in _TURNS if record.get(key) is not None), ())
    try:
        for turn in turns:
            require_whole_weight(turn)
    except ConversationError as error:
        raise ValueError(str(error)) from error


def _reader(root: Root, tokenizer: Any) -> _Reader:
    from megatron_trainer.weights import cpu_model

    cpu_model.import_bridge()
    from megatron_trainer.bridge.configuration import preprocessing

    chats = root.lines == "chat"
    # A run may take another token for a missing one for the end.
    if not chats and (root.seq_length is None or getattr(tokenizer, "eos_token_id", None) is None):
        tokenizer = None
    return _Reader(preprocessing(chats=chats), tokenizer, root.seq_length, chats=chats)


def _check_lines(path: Path, reader: _Reader, meter: CheckMeter) -> int:
    """Return the number of samples of a file. Raises PreparationError for a line that Bridge cannot read."""
    count = 0
    with path.open("rb") as stream:
        for number, line in enumerate(stream, start=1):
            meter.step(len(line))
            # Bridge drops empty lines at the end of a file, and only there.
            if line == b"\n":
                continue
            if number > count + 1:
                raise _refuse(f"{path}:{count + 1}: the line is empty; remove it")
            # Bridge parses text. Of bytes, json takes the mark, and UTF-16 too.
            if line.startswith(codecs.BOM_UTF8):
                problem = f"{path}:{number}: the line begins with a byte order mark"
                raise _refuse(f"{problem}; write the file as UTF-8 without one")
            try:
                record = json.loads(line.decode())
                if not isinstance(record, dict):
                    raise ValueError("it is not an object")
                reader.read(record)
            except ValueError as error:
                reason = " ".join(str(error).split())[:300]
                raise _refuse(f"{path}:{number}: {reason}; correct the line, or remove it") from error
            count = number
    return count


def _check_latents(root: Root) -> str:
    """Check the headers of all tar files, and the first sample of each folder."""
    from megatron_trainer.bridge import latent_shards
    from megatron_trainer.bridge.latents import VALIDATION
    from megatron_trainer.bridge.sample_files import SampleLineError

    counts = []
    for folder in (root.path, *([root.path / VALIDATION] if root.evaluates else [])):
        try:
            places = latent_shards.find(folder)
            if not places:
                fix = "set training.evalIters: 0" if folder != root.path else "correct the path"
                raise _refuse(f"{folder} has no tar files with samples of latents; copy them there, or {fix}")
            latent_shards.read(places[0])
        except SampleLineError as error:
            raise _refuse(str(error)) from error
        counts.append(len(places))
    evaluated = f", {counts[1]:,} for validation" if root.evaluates else ""
    return f"{root.path} is checked: {counts[0]:,} samples of latents for training{evaluated}"


def _refuse(problem: str) -> PreparationError:
    return PreparationError(ExitCode.BAD_DATA, f"{_FIELD}: {problem}")
