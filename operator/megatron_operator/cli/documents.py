"""Reads YAML files with kubectl's types; duplicate keys are an error.

PyYAML with these resolvers, because kubectl's YAML is neither version: `3e-4` is a number as in YAML 1.2, but
`yes` is true and `010` is 8 as in YAML 1.1.
"""

import re
import sys
from pathlib import Path
from typing import Any

import yaml

from megatron_operator.api.labels import KIND
from megatron_operator.cli.errors import CommandError


class _Loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
    """YAML as kubectl reads it: `3e-4` is a number, dates are strings."""

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
        """Raises yaml.YAMLError for a key that occurs twice; a key may override one that is merged in."""
        keys = set()
        for key, _ in node.value if isinstance(node, yaml.MappingNode) else ():
            if isinstance(key, yaml.ScalarNode) and key.tag != "tag:yaml.org,2002:merge":
                if key.value in keys:
                    raise yaml.constructor.ConstructorError(
                        problem=f"duplicate key {key.value!r}", problem_mark=key.start_mark
                    )
                keys.add(key.value)
        mapping: dict[Any, Any] = super().construct_mapping(node, deep)
        return mapping


_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if not tag.endswith((":float", ":timestamp"))]
    for first, resolvers in _Loader.yaml_implicit_resolvers.items()
}
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"^[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?$|^[-+]?\.inf$|^\.nan$"),
    list("-+0123456789."),
)


def parse_value(text: str) -> Any:
    """One YAML value of `--set PATH=VALUE`. Raises CommandError."""
    return _parse(text, "--set")


def read_yaml(path: Path) -> Any:
    """The only YAML document of a file (`-` is standard input). Raises CommandError."""
    return _parse(_read(path), str(path))


def read_recipes(path: Path) -> list[dict[str, Any]]:
    """All MegatronRecipe objects of a file (`-` is standard input). Raises CommandError if there are none."""
    text = _read(path)
    try:
        documents = [document for document in yaml.load_all(text, Loader=_Loader) if document is not None]
    except yaml.YAMLError as problem:
        raise _invalid_yaml(str(path), problem) from None
    found = [d for d in documents if isinstance(d, dict) and d.get("kind") == KIND]
    if found:
        return found
    kinds = ", ".join(str(d.get("kind")) if isinstance(d, dict) else type(d).__name__ for d in documents)
    raise CommandError(str(path), f"has no {KIND} (found: {kinds or 'nothing'})", "give a recipe file")


def _read(path: Path) -> str:
    try:
        return sys.stdin.read() if str(path) == "-" else path.read_text()
    except (OSError, UnicodeDecodeError) as problem:
        reason = problem.strerror if isinstance(problem, OSError) and problem.strerror else "not a text file"
        raise CommandError(str(path), reason.lower(), "give a readable file") from None


def _parse(text: str, where: str) -> Any:
    try:
        return yaml.load(text, Loader=_Loader)
    except yaml.YAMLError as problem:
        raise _invalid_yaml(where, problem) from None


def _invalid_yaml(where: str, problem: yaml.YAMLError) -> CommandError:
    mark = getattr(problem, "problem_mark", None)
    line = f" in line {mark.line + 1}" if mark else ""
    return CommandError(
        where, f"invalid YAML{line}: {getattr(problem, 'problem', problem)}", "correct the file"
    )
