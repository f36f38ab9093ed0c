"""Reading the catalog: YAML files by family, entries that extend others, clear words about broken ones.

A file:

    family: llama3                 # default: the file's name
    templates: {NAME: {...}}       # may be extended, are no recipes themselves
    entries: {NAME: {extends: NAME, ...}}

`model`, `training`, `parallelism`, `data` and `megatronArgs` are laid over those of the extended entry, leaf
by leaf; a null takes a leaf away. `engine` and `modes` are inherited whole. A template's `corrections` come
before the entry's own. Everything else is the entry's own.
"""

import difflib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final

import yaml
from pydantic import ValidationError

from megatron_operator.api.errors import FieldError, Refused
from megatron_operator.catalog.entry import Entry
from megatron_operator.catalog.overlay import SECTIONS, overlay

DATA_DIR: Final = Path(__file__).with_name("data")
LIST_COMMAND: Final = "megatron recipes"

_INHERITED: Final = ("engine", "modes")
_FILE_KEYS: Final = {"family", "templates", "entries"}
_Loader: Final = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


@dataclass(frozen=True, slots=True)
class _Source:
    """An entry or template as its file has it."""

    name: str
    file: str
    family: str
    body: Mapping[str, Any]
    template: bool


class Catalog:
    """The recipes there are. Files are read at once, an entry is put together when it is asked for.

    A broken file or entry costs only itself: `problems` has what is wrong with whole files, `get` refuses a
    broken entry, `check` goes through everything.
    """

    def __init__(self, sources: Mapping[str, _Source], problems: list[FieldError]) -> None:
        self._sources = sources
        self._entries: dict[str, Entry] = {}
        self._aliases: dict[str, str] = {}
        self.problems: Final = list(problems)
        for source in sources.values():
            for alias in _aliases(source):
                taken = self._aliases.get(alias, alias if alias in sources else None)
                if taken:
                    self.problems.append(
                        _problem(source, "aliases", f"{alias} is {taken} already", "drop it")
                    )
                else:
                    self._aliases[alias] = source.name

    def names(self) -> list[str]:
        """Names of all entries, sorted; aliases not counted."""
        return sorted(name for name, source in self._sources.items() if not source.template)

    def __iter__(self) -> Iterator[Entry]:
        return (self.get(name) for name in self.names())

    def __len__(self) -> int:
        return len(self.names())

    def get(self, name: str) -> Entry:
        """The entry of this name or alias.

        Raises Refused for a name that is not there (with the nearest ones) and for a broken entry.
        """
        name = self._aliases.get(name, name)
        if name in self._entries:
            return self._entries[name]
        source = self._sources.get(name)
        if source is None or source.template:
            raise Refused([self._unknown(name)])
        body = self._inherit(source, ())
        try:
            entry = Entry.model_validate(body | {"name": name, "family": source.family})
        except ValidationError as error:
            raise Refused(
                [
                    _problem(source, ".".join(map(str, e["loc"])), e["msg"], _mend(e["type"]))
                    for e in error.errors()
                ]
            ) from None
        return self._entries.setdefault(name, entry)

    def check(self) -> list[FieldError]:
        """Everything that is wrong with any file or entry."""
        found = list(self.problems)
        for name in self.names():
            try:
                self.get(name)
            except Refused as refused:
                found += refused.errors
        return found

    def _inherit(self, source: _Source, below: tuple[str, ...]) -> dict[str, Any]:
        """The body with what it extends below it; `below` are the names that led here."""
        own = {leaf: value for leaf, value in source.body.items() if leaf != "extends"}
        parent_name = source.body.get("extends")
        for section in SECTIONS:
            if not isinstance(own.get(section, {}), Mapping):
                raise Refused(
                    [_problem(source, section, "is not a map", "write it as `setting: value` lines")]
                )
        if parent_name is None:
            return own
        chain = (*below, source.name)
        parent = self._sources.get(parent_name) if isinstance(parent_name, str) else None
        if parent is None:
            raise Refused(
                [_problem(source, "extends", f"{parent_name} is not there", "name an entry that is")]
            )
        if parent.name in chain:
            circle = " -> ".join((*chain, parent.name))
            raise Refused([_problem(source, "extends", f"goes in a circle: {circle}", "let one stand alone")])
        inherited = self._inherit(parent, chain)
        for section in SECTIONS:
            merged = overlay(section, inherited.get(section) or {}, own.get(section) or {})
            if merged:
                own[section] = merged
        for leaf in _INHERITED:
            if leaf in inherited:
                own.setdefault(leaf, inherited[leaf])
        if parent.template and "corrections" in inherited:
            own["corrections"] = [*inherited["corrections"], *own.get("corrections", [])]
        return own

    def _unknown(self, name: str) -> FieldError:
        known = [*self.names(), *self._aliases]
        near = difflib.get_close_matches(name, known, n=3, cutoff=0.5)
        hint = f"did you mean {' or '.join(near)}? " if near else ""
        broken = "".join(f"; {problem}" for problem in self.problems)
        return FieldError(
            "spec.recipe",
            f"the catalog has no recipe {name!r}{broken}",
            f"{hint}`{LIST_COMMAND}` lists all {len(self)}; or give model and training in full",
        )


def load(extra_dir: Path | None = None) -> Catalog:
    """The catalog of this operator, and the entries of `extra_dir`'s YAML files beside them.

    An entry of `extra_dir` has the same form, may extend any other and may not take a name that is there.
    """
    shipped, problems = _shipped()
    sources = dict(shipped)
    problems = list(problems)
    if extra_dir is not None:
        for source in _read_dir(extra_dir, problems):
            if source.name in sources:
                taken = sources[source.name].file
                problems.append(
                    _problem(
                        source, "", f"the name is taken by {taken}", f"extend {source.name} by another name"
                    )
                )
            else:
                sources[source.name] = source
    return Catalog(sources, problems)


@cache
def _shipped() -> tuple[dict[str, _Source], list[FieldError]]:
    problems: list[FieldError] = []
    return {source.name: source for source in _read_dir(DATA_DIR, problems)}, problems


def _read_dir(directory: Path, problems: list[FieldError]) -> Iterator[_Source]:
    """Every entry and template of a directory's YAML files; what cannot be read is added to `problems`."""
    if not directory.is_dir():
        problems.append(FieldError(str(directory), "is not a directory", "name one that has YAML files"))
        return
    seen: dict[str, str] = {}
    for path in sorted(directory.iterdir()):
        if path.suffix not in (".yaml", ".yml") or path.name.startswith(".") or not path.is_file():
            continue
        try:
            content = yaml.load(path.read_bytes(), Loader=_Loader)
        except (yaml.YAMLError, OSError, UnicodeDecodeError) as error:
            problems.append(FieldError(path.name, " ".join(str(error).split()), "mend the file"))
            continue
        if not isinstance(content, dict) or not content.keys() <= _FILE_KEYS:
            keys = ", ".join(sorted(_FILE_KEYS))
            problems.append(FieldError(path.name, "is not a catalog file", f"give a map of {keys}"))
            continue
        family = content.get("family", path.stem)
        for kind in ("templates", "entries"):
            for name, body in (content.get(kind) or {}).items():
                source = _Source(str(name), path.name, family, body, template=kind == "templates")
                if not isinstance(body, dict):
                    problems.append(
                        _problem(source, "", "is not a map", "write it as `setting: value` lines")
                    )
                elif source.name in seen:
                    there = seen[source.name]
                    problems.append(_problem(source, "", f"is in {there} already", "rename one of them"))
                else:
                    seen[source.name] = path.name
                    yield source


def _aliases(source: _Source) -> list[str]:
    """The aliases, as far as they have the right form; the entry's own check tells of the others."""
    aliases = source.body.get("aliases")
    if source.template or not isinstance(aliases, list):
        return []
    return [alias for alias in aliases if isinstance(alias, str)]


def _problem(source: _Source, field: str, message: str, fix: str) -> FieldError:
    where = f"{source.file}: {source.name}" + (f".{field}" if field else "")
    return FieldError(where, message, fix)


def _mend(kind: str) -> str:
    if kind == "extra_forbidden":
        return "use Megatron's setting name in camelCase, or megatronArgs for one that is not typed"
    return "give the field" if kind == "missing" else "mend the value"
