"""Texts that are almost right: seeds changed by values of the schema, hostile values and hostile YAML."""

import copy
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import yaml
from hypothesis import strategies as st

Schema = Mapping[str, Any]
Path = tuple[str | int, ...]

STRINGS: Final = (
    "",
    "a",
    "-",
    "--load",
    "--load=/x",
    "-1",
    "-1,0",
    "128,0",
    "../..",
    "/etc/passwd",
    "a b",
    "a\nb",
    "a\0b",
    "'",
    '"',
    "$(HOME)",
    "${HOME}",
    "%s%n",
    "\u202e",
    "<script>a</script><img src=x onerror=a>\"' onload='a",
    "é" * 30,
    "x" * 300,
    "x" * 70_000,
    "1" * 5000,
    "True",
    "[1]*4",
    "+".join(["[1]"] * 3000),
    "[1]*" + "9" * 4000,
    "E(t*9999|×6)*9999L",
    "Et*4|t*4|tL",
    "(" * 2000,
    "0:8 1M:16",
    "0:8 " * 3000,
    "15T",
    "9" * 400 + "T",
    "1e999",
    "4Ti",
    "9" * 300 + "Ei",
    "0",
    "0s",
    "600s",
    "9" * 4400 + "s",
    "auto",
    "off",
    "99,1,0",
    "nan,1,0",
    "9" * 5000 + ",1,0",
    "1..2,1,0",
    "2026-01-01T00:00:00Z",
    "llama3-8b",
    "h100-sxm",
    "cpu",
    "Never",
    "mixtral-8x7b",
    "NullTokenizer",
)
"""Strings that some field accepts, and those that have broken readers."""
NUMBERS: Final = (
    0,
    1,
    2,
    3,
    7,
    8,
    64,
    127,
    128,
    4096,
    8191,
    100_000,
    10**6,
    10**7,
    10**9,
    2**31,
    2**53 + 1,
    2**63 - 1,
    2**63,
    10**30,
    10**400,
    -1,
    -(2**63),
    0.0,
    -0.0,
    0.5,
    1.0,
    1e-30,
    1e-5,
    1e15,
    1e16,
    1e300,
    5e-324,
)
SNIPPETS: Final = (
    "<<: *a",
    "a: &a [*a]",
    "x: &x [x,x,x]",
    "? [a]",
    "\t",
    "- - - -",
    "[" * 3000,
    "{a: " * 500,
    "!!python/object:os x",
    "!!binary '#'",
    "!!int ''",
    "---",
    "...",
    "%YAML 9.9",
    "&a *a",
    "a: .inf",
    "a: .nan",
    "a: 1e999",
    "1: 2",
    "null: 1",
    "a: " + "9" * 5000,
    "a: 0x" + "f" * 4000,
    "spec: 1",
    "spec: {}",
    "spec:",
    "kind: [",
    "b: &b [1,1,1,1,1,1,1,1]\nc: &c [*b,*b,*b,*b,*b,*b]\nd: &d [*c,*c,*c,*c,*c]\ne: [*d,*d,*d,*d,*d]",
)
"""YAML that may stand on a line of its own."""
NO_MESSAGES: Final = ("", "null", "[]", "1", '"a"', "NaN", "9" * 5000, "[" * 100_000, "1e999", "{}")
"""Texts in place of a JSON object."""

scalars: Final[st.SearchStrategy[Any]] = st.one_of(
    st.sampled_from(STRINGS), st.sampled_from(NUMBERS), st.sampled_from((None, True, False, [], {}))
)
hostile: Final[st.SearchStrategy[Any]] = st.one_of(
    scalars,
    scalars.map(lambda value: [value]),
    scalars.map(lambda value: [value] * 3),
    st.tuples(st.sampled_from(STRINGS), scalars).map(lambda pair: {pair[0]: pair[1]}),
)


@dataclass(frozen=True, slots=True)
class Leaf:
    """A field of a schema: its path, with 0 for items of a list, and its own schema."""

    path: Path
    schema: Schema


def leaves(schema: Schema, path: Path = ()) -> Iterator[Leaf]:
    """All fields of a structural schema, objects included."""
    if path:
        yield Leaf(path, schema)
    for name, child in (schema.get("properties") or {}).items():
        yield from leaves(child, (*path, name))
    if "items" in schema:
        yield from leaves(schema["items"], (*path, 0))
    if isinstance(schema.get("additionalProperties"), Mapping):
        yield from leaves(schema["additionalProperties"], (*path, "key"))


def values(schema: Schema) -> st.SearchStrategy[Any]:
    """Values that the schema allows, mostly, and its bounds and their neighbours."""
    if "enum" in schema:
        return st.sampled_from(list(schema["enum"]))
    match schema.get("type"):
        case "boolean":
            return st.booleans()
        case "integer" | "number":
            bounds = [schema[key] for key in ("minimum", "maximum") if key in schema]
            near = [bound + step for bound in bounds for step in (-1, 0, 1)]
            return st.sampled_from([*near, *(n for n in NUMBERS if n >= 0)])
        case "string":
            return st.sampled_from(STRINGS)
        case "array":
            return st.lists(values(schema.get("items", {})), max_size=3)
        case "object":
            return st.just({})
    return hostile


@st.composite
def changed(draw: st.DrawFn, seeds: list[Any], fields: list[Leaf]) -> Any:
    """A seed with up to four fields set, most of them to values of their own type."""
    tree = copy.deepcopy(draw(st.sampled_from(seeds)))
    for _ in range(draw(st.integers(0, 4))):
        leaf = draw(st.sampled_from(fields))
        value = draw(values(leaf.schema) if draw(st.integers(0, 4)) else hostile)
        _put(tree, leaf.path, value)
    return tree


def _put(tree: Any, path: Path, value: Any) -> None:
    """Set the value at a path, and create what is missing above it."""
    for part, below in zip(path, (*path[1:], None), strict=True):
        last = below is None
        empty: Any = [] if isinstance(below, int) else {}
        if isinstance(tree, list) and isinstance(part, int):
            if not tree:
                tree.append(value if last else empty)
            elif last:
                tree[0] = value
            tree = tree[0]
        elif isinstance(tree, dict) and isinstance(part, str):
            if last:
                tree[part] = value
            elif not isinstance(tree.get(part), type(empty)):
                tree[part] = empty
            tree = tree[part]
        else:
            return


@st.composite
def yaml_texts(draw: st.DrawFn, trees: st.SearchStrategy[Any]) -> str:
    """A tree as YAML; one in five texts has a hostile line, a cut or a repeated line."""
    text = yaml.dump(draw(trees), Dumper=getattr(yaml, "CSafeDumper", yaml.SafeDumper), sort_keys=False)
    if draw(st.integers(0, 4)):
        return text
    lines = text.splitlines()
    at = draw(st.integers(0, len(lines)))
    match draw(st.sampled_from(("insert", "cut", "repeat", "garbage"))):
        case "insert":
            indent = " " * draw(st.sampled_from((0, 2, 4)))
            lines.insert(at, indent + draw(st.sampled_from(SNIPPETS)))
        case "cut":
            lines = lines[:at]
        case "repeat":
            lines[at:at] = lines[max(0, at - 1) : at]
        case _:
            lines.insert(at, draw(st.text(max_size=20)))
    return "\n".join(lines) + "\n"


@st.composite
def json_texts(draw: st.DrawFn, trees: st.SearchStrategy[Any]) -> str:
    """A tree as JSON; one in five texts is cut, nested or followed by something."""
    text = json.dumps(draw(trees))
    match draw(st.integers(0, 14)):
        case 0:
            return text[: draw(st.integers(0, len(text)))]
        case 1:
            return text + draw(st.sampled_from(("}", "\0", "[" * 100_000, "é", text)))
        case 2:
            return draw(
                st.sampled_from(
                    ("", "null", "[]", "1", '"a"', "NaN", "9" * 5000, "[" * 100_000, "1e999", "{}")
                )
            )
    return text
