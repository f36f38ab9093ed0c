"""Files of samples that Megatron-Bridge reads: a chat template is checked, and errors name the line."""

import json
from pathlib import Path
from typing import Any

from megatron_contract.exit_codes import ExitCode

from megatron_trainer.bridge import configuration
from megatron_trainer.bridge.chat_tokens import AnswerError, ids_of, tokenize
from megatron_trainer.errors import TrainerError
from megatron_trainer.read_errors import is_temporary
from megatron_trainer.worker.failures import RankError


class SampleLineError(TrainerError):
    """A line of a file is no sample, or the template does not take it. The text begins with file and line."""


def check(config: Any) -> None:
    """Check the first line of each file that a run on chats reads.

    Raises RankError with BAD_DATA if the tokenizer has no chat template, or the line is not read as meant.
    """
    from megatron.bridge.data.sft_processing import ChatSFTPreprocessingConfig

    dataset = config.dataset
    root = getattr(dataset, "dataset_root", None)
    if configuration.reads_images(config):
        _check_images(dataset)
        return
    if root is None or not isinstance(getattr(dataset, "preprocessing", None), ChatSFTPreprocessingConfig):
        return
    from transformers import AutoTokenizer

    folder = config.tokenizer.tokenizer_model
    tokenizer: Any = AutoTokenizer.from_pretrained(
        str(folder), local_files_only=True, trust_remote_code=False
    )
    for name in ("training", *(["validation"] if dataset.do_validation else [])):
        path = Path(root) / f"{name}.jsonl"
        if path.is_file():
            _check_line(path, tokenizer)


def _check_line(path: Path, tokenizer: Any) -> None:
    with path.open(encoding="utf-8") as stream:
        line = stream.readline()
    try:
        record = json.loads(line)
        if ids_of(record) is not None:
            return
        if not tokenizer.chat_template:
            folder = tokenizer.name_or_path
            text = f"{folder} has no chat template; add chat_template.jinja there"
            raise RankError(ExitCode.BAD_DATA, f"data.tokenizer.tokenizerModel: {text}")
        tokenize(record, tokenizer)
    except (AnswerError, ValueError) as error:
        raise RankError(ExitCode.BAD_DATA, f"{path}:1: {error}") from error


def _check_images(dataset: Any) -> None:
    """Check the first sample of each file: the model's processor and collator take it, within its length."""
    from megatron_trainer.bridge import image_text

    try:
        processor = image_text.load_processor(dataset.processor_path)
    except (OSError, ValueError, ImportError) as error:
        if is_temporary(error):
            raise
        text = f"init.modelFolder: {dataset.processor_path} has no processor of its samples: {error}"
        raise RankError(ExitCode.BAD_DATA, f"{text}; copy preprocessor_config.json there") from error
    if dataset.dataset_root is None:
        return
    for name in image_text.FILES[: 2 if dataset.do_validation else 1]:
        path = Path(dataset.dataset_root) / name
        try:
            image_text.count_tokens(image_text.sample(path, 0), processor)
        except SampleLineError as error:
            raise RankError(ExitCode.BAD_DATA, str(error)) from error
        except Exception as error:  # whatever a processor raises
            if is_temporary(error):
                raise
            raise RankError(ExitCode.BAD_DATA, f"{path}:1: {' '.join(str(error).split())}") from error


def name_lines() -> None:
    """Have Bridge's datasets raise SampleLineError for a line of which they make no sample."""
    from megatron.bridge.data.datasets.gpt_sft import GPTSFTDataset

    inner = GPTSFTDataset.__getitem__

    def get(dataset: Any, index: Any) -> Any:
        try:
            return inner(dataset, index)
        except Exception as error:  # whatever a template of the user raises
            if is_temporary(error):
                raise
            reason = " ".join(str(error).split()) or type(error).__name__
            raise SampleLineError(f"{dataset.file_path}:{_line(dataset, index)}: {reason}") from error

    GPTSFTDataset.__getitem__ = get


def _line(dataset: Any, index: Any) -> int:
    if dataset.samples_mapping is not None:
        index = dataset.samples_mapping[index][0]
    return int(index) % len(dataset.indexed_dataset) + 1


def place_and_reason(error: SampleLineError) -> str:
    """Return the text of an error, which a loader's process has sent with its traceback."""
    return str(error).splitlines()[-1].rpartition(f"{SampleLineError.__name__}: ")[2]
