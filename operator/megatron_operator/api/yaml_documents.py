"""Reads YAML that others wrote: with kubectl's types, bounded work, and duplicate keys as an error.

PyYAML with these resolvers, because kubectl's YAML is neither version: `3e-4` is a number as in YAML 1.2, but
`yes` is true and `010` is 8 as in YAML 1.1.

Events are counted before anything is built: libyaml's composer recurses in C, where deep nesting ends the
process, and a few hundred bytes of aliases stand for billions of values.
"""

import math
import re
from typing import Any, Final

import yaml

from megatron_operator.api.errors import OperatorError, shown

LONGEST_DOCUMENT: Final = 1 << 20
"""Characters of a file: a ConfigMap holds no more."""
MOST_VALUES: Final = 200_000
"""Keys and values of a file, with aliases written out."""
DEEPEST: Final = 64
"""Levels of nested lists and maps."""
LARGEST_INTEGER: Final = 2**63 - 1
"""JSON of Kubernetes has integers of 64 bits."""

_TAG: Final = "tag:yaml.org,2002:"
_ALLOWED_TAGS: Final = {None, "!", f"{_TAG}str", f"{_TAG}map", f"{_TAG}seq"}
_Parser: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class YamlError(OperatorError):
    """A text cannot be read as YAML. The message has the line."""

    def __init__(self, problem: str, mark: Any) -> None:
        line = f" in line {mark.line + 1}" if mark else ""
        super().__init__(f"invalid YAML{line}: {problem}")


class _Loader(_Parser):  # type: ignore[misc]
    """YAML as kubectl reads it: `3e-4` is a number, dates are strings."""

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
        """Raises yaml.YAMLError for a key that occurs twice; a key may override one that is merged in."""
        keys = set()
        for key, _ in node.value if isinstance(node, yaml.MappingNode) else ():
            if isinstance(key, yaml.ScalarNode) and key.tag != f"{_TAG}merge":
                if key.value in keys:
                    raise _constructor_error(f"duplicate key {shown(key.value)}", key)
                keys.add(key.value)
        mapping: dict[Any, Any] = super().construct_mapping(node, deep)
        for name in mapping:
            if not isinstance(name, str):
                raise _constructor_error(f"the key {shown(name)} is not a string; write it in quotes", node)
        return mapping

    def integer(self, node: yaml.ScalarNode) -> int:
        """An integer of 64 bits. Raises yaml.YAMLError for a larger one."""
        text: str = node.value
        if len(text) <= 80:
            try:
                number: int = self.construct_yaml_int(node)
            except ValueError:
                raise _constructor_error(f"{shown(text)} is not an integer", node) from None
            if -LARGEST_INTEGER - 1 <= number <= LARGEST_INTEGER:
                return number
        raise _constructor_error(f"the integer {shown(text)} needs more than 64 bits", node)

    def number(self, node: yaml.ScalarNode) -> float:
        """A finite number. Raises yaml.YAMLError for any other, which JSON cannot express."""
        value: float = self.construct_yaml_float(node)
        if not math.isfinite(value):
            raise _constructor_error(f"{shown(node.value)} is not a finite number", node)
        return value


def _constructor_error(problem: str, node: Any) -> yaml.constructor.ConstructorError:
    return yaml.constructor.ConstructorError(problem=problem, problem_mark=node.start_mark)


_Loader.yaml_implicit_resolvers = {
    first: [
        (tag, pattern) for tag, pattern in resolvers if not tag.endswith((":float", ":timestamp", ":int"))
    ]
    for first, resolvers in _Loader.yaml_implicit_resolvers.items()
}
_Loader.add_implicit_resolver(
    f"{_TAG}float",
    re.compile(r"^[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?$|^[-+]?\.inf$|^\.nan$"),
    list("-+0123456789."),
)
_INTEGER: Final = re.compile(r"^[-+]?(0b_*[01][01_]*|0x_*[0-9a-fA-F][0-9a-fA-F_]*|0[0-7_]*|[1-9][0-9_]*)$")
for _first in "-+0123456789":
    # Before the pattern of floats, which matches integers too.
    _Loader.yaml_implicit_resolvers.setdefault(_first, []).insert(0, (f"{_TAG}int", _INTEGER))
_Loader.add_constructor(f"{_TAG}int", _Loader.integer)
_Loader.add_constructor(f"{_TAG}float", _Loader.number)


def load(text: str) -> Any:
    """The only document of a text, None for an empty one. Raises YamlError."""
    _check(text)
    try:
        return yaml.load(text, Loader=_Loader)
    except yaml.YAMLError as problem:
        raise _translated(problem) from None


def load_all(text: str) -> list[Any]:
    """All documents of a text. Raises YamlError."""
    _check(text)
    try:
        return list(yaml.load_all(text, Loader=_Loader))
    except yaml.YAMLError as problem:
        raise _translated(problem) from None


class _Dumper(yaml.SafeDumper):
    """Quotes every string that `load` or kubectl would read as something else, such as `1e3`."""


_Dumper.yaml_implicit_resolvers = {
    first: [
        *yaml.SafeDumper.yaml_implicit_resolvers.get(first, []),
        *_Loader.yaml_implicit_resolvers.get(first, []),
    ]
    for first in yaml.SafeDumper.yaml_implicit_resolvers.keys() | _Loader.yaml_implicit_resolvers.keys()
}


def dump(value: Any) -> str:
    """A document that `load` reads as the same value: dicts, lists, strings, numbers, booleans, None."""
    return yaml.dump(value, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=110)


def _check(text: str) -> None:
    """Raise YamlError for a text that is too long, too deep, or too large with its aliases written out."""
    if len(text) > LONGEST_DOCUMENT:
        raise YamlError(f"{len(text)} characters, at most {LONGEST_DOCUMENT} are read", None)
    total, anchors, open_nodes = 0, dict[str | None, int | None](), list[tuple[str | None, int]]()
    try:
        for event in yaml.parse(text, Loader=_Parser):
            if isinstance(event, yaml.AliasEvent):
                size = anchors.get(event.anchor, 0)
                if size is None:
                    raise YamlError(f"the alias {shown(event.anchor)} contains itself", event.start_mark)
                total += size
            elif isinstance(event, yaml.NodeEvent):
                total += 1
                tag = getattr(event, "tag", None)
                if tag not in _ALLOWED_TAGS:
                    raise YamlError(f"unsupported tag {shown(tag)}", event.start_mark)
                if isinstance(event, yaml.CollectionStartEvent):
                    open_nodes.append((event.anchor, total - 1))
                    if event.anchor:
                        anchors[event.anchor] = None
                elif event.anchor:
                    anchors[event.anchor] = 1
            elif isinstance(event, yaml.CollectionEndEvent):
                anchor, before = open_nodes.pop()
                if anchor:
                    anchors[anchor] = total - before
            if total > MOST_VALUES or len(open_nodes) > DEEPEST:
                limit = f"more than {MOST_VALUES} values or {DEEPEST} levels, aliases included"
                raise YamlError(limit, event.start_mark)
    except yaml.YAMLError as problem:
        raise _translated(problem) from None
    except UnicodeEncodeError:
        raise YamlError("a character is not valid Unicode", None) from None


def _translated(problem: yaml.YAMLError) -> YamlError:
    text = getattr(problem, "problem", None) or " ".join(str(problem).split())
    if "cannot start any token" in text:
        text = "no value begins with this character; indent with spaces, and quote ` and @"
    return YamlError(text, getattr(problem, "problem_mark", None))
