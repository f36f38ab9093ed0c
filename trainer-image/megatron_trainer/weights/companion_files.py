"""Configuration, tokenizer and templates beside the weights of a folder, compared with those of another."""

import json
from pathlib import Path
from typing import Any, Final

from megatron_trainer.weights.huggingface_folder import CONFIG, small_files
from megatron_trainer.weights.quantized import CONFIG_FIELD

_FOR_PEOPLE: Final = ("", ".md", ".pdf", ".png", ".jpg", ".svg")
"""Suffixes of what a model does not depend on: a model card, a licence, `.gitattributes`."""
_WRITTEN: Final = frozenset({"dtype", "torch_dtype", CONFIG_FIELD})
"""Fields of config.json that a conversion writes itself."""


def differing(base: Path, converted: Path) -> list[str]:
    """Return the names of files of `base` that `converted` lacks, or has with other content."""
    return [
        file.name
        for file in small_files(base)
        if file.suffix not in _FOR_PEOPLE and not _equal(file, converted / file.name)
    ]


def _equal(file: Path, other: Path) -> bool:
    if not other.is_file():
        return False
    before, after = file.read_bytes(), other.read_bytes()
    if before == after or file.name != CONFIG:
        return before == after
    try:
        return bool(_described(json.loads(before)) == _described(json.loads(after)))
    except ValueError:
        return False


def _described(config: Any) -> Any:
    """A configuration without what a conversion writes itself, in all of its parts."""
    if isinstance(config, list):
        return [_described(each) for each in config]
    if not isinstance(config, dict):
        return config
    return {name: _described(value) for name, value in config.items() if name not in _WRITTEN}
