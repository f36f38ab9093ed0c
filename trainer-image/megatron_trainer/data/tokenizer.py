"""The tokenizer of a prepared corpus: trained as byte-level BPE, or loaded from a directory.

The directory is what Megatron's HuggingFaceTokenizer loads offline: `tokenizer.json` and
`tokenizer_config.json`.
"""

import json
import os
from collections.abc import Iterator
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

from megatron_trainer.data.shards import temporary
from megatron_trainer.errors import TrainerError
from megatron_trainer.read_errors import is_temporary

END_OF_TEXT = "<|endoftext|>"


class TokenizerError(TrainerError):
    """The tokenizer directory has no usable tokenizer. The text names the remedy."""


def train(texts: Iterator[str], vocabulary: int, directory: Path) -> None:
    """Train byte-level BPE (Sennrich et al. 2016; bytes as in GPT-2) with at most `vocabulary` entries.

    `tokenizer.json`, which marks the directory as complete, is written last. One that another pod has trained
    meanwhile, also for another recipe, stays: data may have been encoded with it already.
    """
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        special_tokens=[END_OF_TEXT],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    directory.mkdir(parents=True, exist_ok=True)
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": END_OF_TEXT,
        "bos_token": END_OF_TEXT,
        "unk_token": END_OF_TEXT,
        "clean_up_tokenization_spaces": False,
    }
    _create(directory / "tokenizer_config.json", json.dumps(config, indent=2) + "\n")
    _create(directory / "tokenizer.json", tokenizer.to_str())


def _create(path: Path, text: str) -> None:
    """Write the whole file, unless it exists."""
    new = temporary(path)
    new.write_text(text, encoding="utf-8")
    try:
        os.link(new, path)
    except FileExistsError:
        pass
    except OSError:  # a volume without hard links
        if not path.exists():
            new.replace(path)
    finally:
        new.unlink(missing_ok=True)


def exists(directory: Path) -> bool:
    """Return whether the directory has a tokenizer. Raises TokenizerError if it has one of another format."""
    if (directory / "tokenizer.json").is_file():
        return True
    others = sorted(entry.name for entry in directory.glob("*") if entry.name != "tokenizer_config.json")
    others = [name for name in others if not name.startswith(".")] if directory.is_dir() else []
    if others:
        raise TokenizerError(
            f"{directory} has {', '.join(others[:4])} but no tokenizer.json; save the tokenizer there in the "
            "fast format, or use an empty directory to train one"
        )
    return False


def load(directory: Path) -> tuple[Tokenizer, int | None]:
    """Return the tokenizer and the id of its end-of-text token, if any.

    Raises TokenizerError, and OSError for a volume that cannot be read for a while. What the file has of
    truncation and padding is for inference, and is not applied.
    """
    try:
        # An exception of the library does not have the error of the volume.
        tokenizer = Tokenizer.from_str((directory / "tokenizer.json").read_text(encoding="utf-8"))
    except Exception as error:  # the library raises plain Exception
        if is_temporary(error):
            raise
        raise TokenizerError(f"{directory}/tokenizer.json cannot be read: {error}") from error
    tokenizer.no_truncation()
    tokenizer.no_padding()
    named = _end_token(directory)
    return tokenizer, None if named is None else tokenizer.token_to_id(named)


def _end_token(directory: Path) -> str | None:
    """The name of eos_token where transformers reads it."""
    found = False
    for name in ("tokenizer_config.json", "special_tokens_map.json"):
        try:
            config = json.loads((directory / name).read_text(encoding="utf-8"))
        except OSError as error:
            if is_temporary(error):
                raise
            continue
        except ValueError as error:
            raise TokenizerError(f"{directory}/{name} is not JSON: {error}") from error
        found = True
        named = config.get("eos_token") if isinstance(config, dict) else None
        named = named.get("content") if isinstance(named, dict) else named
        if isinstance(named, str):
            return named
    return None if found else END_OF_TEXT
