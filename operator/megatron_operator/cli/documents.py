"""Reads the YAML files that commands take."""

import json
import re
import shlex
import sys
from pathlib import Path
from typing import Any, Final

import click

from megatron_operator.api import yaml_documents
from megatron_operator.api.errors import LONGEST_SHOWN, shown
from megatron_operator.api.labels import KIND
from megatron_operator.cli.errors import CommandError

_LISTS = ("List", f"{KIND}List")
_MEANT_AS_YAML: Final = re.compile(r"[-+.\d\[{'\"]")
"""How lists, maps, numbers and texts in quotes begin."""
_STANDARD_INPUT: Final = f"{__name__}.standard_input"
"""Key of the context's meta, which the contexts of one command line share."""
_WORDS = {str: "text", list: "a list", int: "a number", float: "a number", bool: "a truth value"}
"""What a document that is no object is called."""


def parse_value(path: str, text: str) -> Any:
    """One YAML value of `--set PATH=VALUE`. Raises CommandError."""
    try:
        return yaml_documents.load(text)
    except yaml_documents.YamlError as problem:
        fix = "correct the value"
        if len(text) <= LONGEST_SHOWN and not _MEANT_AS_YAML.match(text):
            override = f"{path}={json.dumps(text, ensure_ascii=False)}"
            fix = f"write a text in quotes: --set {shlex.quote(override)}"
        raise CommandError(f"--set {path:.200}", f"{shown(text)}: {problem}", fix) from None


def read_yaml(path: Path) -> Any:
    """The only YAML document of a file (`-` is standard input). Raises CommandError."""
    text = _read(path)
    try:
        return yaml_documents.load(text)
    except yaml_documents.YamlError as problem:
        raise _invalid(path, problem) from None


def read_recipes(path: Path) -> list[dict[str, Any]]:
    """All MegatronRecipe objects of a file (`-` is standard input) and of its Lists.

    Raises CommandError if there are none.
    """
    text = _read(path)
    try:
        documents = [each for document in yaml_documents.load_all(text) for each in _objects(document)]
    except yaml_documents.YamlError as problem:
        raise _invalid(path, problem) from None
    found = [d for d in documents if isinstance(d, dict) and d.get("kind") == KIND]
    if found:
        _check_names(path, found)
        return found
    kinds = ", ".join(_kind(document) for document in documents[:8])
    raise CommandError(_label(path), f"has no {KIND} (found: {kinds or 'nothing'})", "give a recipe file")


def _objects(document: Any) -> list[Any]:
    """The items of a List; else the document, unless it is empty."""
    if isinstance(document, dict) and document.get("kind") in _LISTS:
        items = document.get("items")
        if isinstance(items, list):
            return items
    return [] if document is None else [document]


def _check_names(path: Path, recipes: list[dict[str, Any]]) -> None:
    """Raise CommandError where two recipes are one object: the later one would replace the other."""
    seen = set()
    for recipe in recipes:
        metadata = recipe.get("metadata")
        if isinstance(metadata, dict) and isinstance(metadata.get("name"), str):
            key = str(metadata.get("namespace")), metadata["name"]
            if key in seen:
                which = f"has two recipes {metadata['name']!r:.80} in one namespace"
                raise CommandError(_label(path), f"{which}, of which kubectl keeps the last", "rename one")
            seen.add(key)


def _kind(document: object) -> str:
    if not isinstance(document, dict):
        return _WORDS.get(type(document), "a value")
    return f"{document['kind']!s:.40}" if document.get("kind") else "an object without kind"


def _read(path: Path) -> str:
    if str(path) == "-" and sys.stdin is None:
        raise CommandError("standard input", "is closed", "give the recipe on it, or -f FILE")
    try:
        return _standard_input() if str(path) == "-" else path.read_text()
    except (OSError, UnicodeDecodeError) as problem:
        reason = problem.strerror if isinstance(problem, OSError) and problem.strerror else "not a text file"
        raise CommandError(_label(path), reason.lower(), "give a readable file") from None


def _standard_input() -> str:
    """The text of standard input, which a command may need again: for the platform of each plan."""
    context = click.get_current_context(silent=True)
    if context is None:
        return sys.stdin.read()
    read = context.meta
    if _STANDARD_INPUT not in read:
        read[_STANDARD_INPUT] = sys.stdin.read()
    text: str = read[_STANDARD_INPUT]
    return text


def _invalid(path: Path, problem: yaml_documents.YamlError) -> CommandError:
    return CommandError(_label(path), str(problem), "correct the file")


def _label(path: Path) -> str:
    return "standard input" if str(path) == "-" else str(path)
