"""Reading recipe files as kubectl reads them."""

import re
import sys
from pathlib import Path
from typing import Any

import yaml

from megatron_operator.api.errors import FieldError, InvalidRecipeError
from megatron_operator.api.labels import KIND


class _Loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
    """YAML as kubectl has it: `3e-4` is a number, dates are text."""


_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if not tag.endswith((":float", ":timestamp"))]
    for first, resolvers in _Loader.yaml_implicit_resolvers.items()
}
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"^[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?$|^[-+]?\.inf$|^\.nan$"),
    list("-+0123456789."),
)


def value(text: str) -> Any:
    """One YAML value, as after `--set path=`."""
    return _load(text, "--set")


def read(path: Path) -> Any:
    """The one YAML document of a file."""
    return _load(_text(path), str(path))


def recipes(path: Path) -> list[dict[str, Any]]:
    """All MegatronRecipe objects of a file (`-` is standard input). Raises InvalidRecipeError for none."""
    text = _text(path)
    try:
        documents = [document for document in yaml.load_all(text, Loader=_Loader) if document is not None]
    except yaml.YAMLError as problem:
        raise InvalidRecipeError([_no_yaml(str(path), problem)]) from None
    found = [d for d in documents if isinstance(d, dict) and d.get("kind") == KIND]
    if found:
        return found
    kinds = ", ".join(str(d.get("kind")) if isinstance(d, dict) else type(d).__name__ for d in documents)
    raise InvalidRecipeError(
        [FieldError(str(path), f"has no {KIND} (it has: {kinds or 'nothing'})", "give a recipe file")]
    )


def _text(path: Path) -> str:
    try:
        return sys.stdin.read() if str(path) == "-" else path.read_text()
    except (OSError, UnicodeDecodeError) as problem:
        reason = problem.strerror if isinstance(problem, OSError) and problem.strerror else "is not text"
        raise InvalidRecipeError([FieldError(str(path), reason.lower(), "name a readable file")]) from None


def _load(text: str, where: str) -> Any:
    try:
        return yaml.load(text, Loader=_Loader)
    except yaml.YAMLError as problem:
        raise InvalidRecipeError([_no_yaml(where, problem)]) from None


def _no_yaml(where: str, problem: yaml.YAMLError) -> FieldError:
    mark = getattr(problem, "problem_mark", None)
    at = f" in line {mark.line + 1}" if mark else ""
    return FieldError(where, f"is no YAML{at}: {getattr(problem, 'problem', problem)}", "mend the file")
