"""Loads the catalog's YAML files; the operator's own are parsed lazily.

A file:

    family: llama3                 # default: the file's name
    templates: {NAME: {...}}       # may be extended, are not recipes themselves
    entries: {NAME: {extends: NAME, ...}}
    functions: {ENTRY: TABLE}      # Megatron-Bridge's functions of any entry, see `bridge_tables`

The names in the operator's own files are found by a text scan, which takes a tenth of the time of parsing.
The scan depends on the format of these files (two spaces, aliases in brackets on one line); a test compares
it with the parser.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Final

from megatron_operator.api import yaml_documents
from megatron_operator.api.errors import FieldError, shown, shown_key

_FILE_KEYS: Final = {"family", "templates", "entries", "functions"}
_LINE: Final = re.compile(
    r"^(?:(?P<section>templates|entries|functions):"
    r"|  (?P<name>[^\s#:]+):"
    r"|    aliases: \[(?P<aliases>[^\]]*)\]"
    r"|    (?P<function>\w+_config)\b(?:.*\balso=(?P<also>\S+))?)",
    re.MULTILINE,
)


class CatalogFile:
    """One YAML file, parsed when its content is first asked for."""

    def __init__(self, path: Path) -> None:
        self.path: Final = path

    @cached_property
    def content(self) -> dict[str, Any]:
        """The parsed document. Raises YamlError, OSError or UnicodeDecodeError."""
        content: dict[str, Any] = yaml_documents.load(self.path.read_text())
        return content

    def section(self, name: str) -> Mapping[str, Any]:
        """Bodies of a section by name."""
        return self.content.get(name) or {}


@dataclass(frozen=True, slots=True)
class EntrySource:
    """An entry or template as written in its file."""

    name: str
    file: CatalogFile
    template: bool
    aliases: tuple[str, ...] = ()

    @property
    def body(self) -> Mapping[str, Any]:
        """Its body in the file."""
        body: Mapping[str, Any] = self.file.section("templates" if self.template else "entries")[self.name]
        return body

    @property
    def family(self) -> str:
        """Model family: that of the file, by default the file's name."""
        return str(self.file.content.get("family", self.file.path.stem))

    def problem(self, leaf: str, message: str, fix: str) -> FieldError:
        """An error of one of its settings."""
        where = f"{self.file.path.name}: {shown_key(self.name)}" + (f".{leaf}" if leaf else "")
        return FieldError(where, message, fix)


@dataclass(frozen=True, slots=True)
class FunctionTable:
    """The table of functions of one entry."""

    entry: str
    file: CatalogFile
    functions: tuple[str, ...]
    """All names, including the additional ones."""

    @property
    def text(self) -> str:
        """The table."""
        return str(self.file.section("functions")[self.entry])

    def problem(self, message: str, fix: str) -> FieldError:
        """An error of the table."""
        return FieldError(f"{self.file.path.name}: functions.{shown_key(self.entry)}", message, fix)


@dataclass(slots=True)
class CatalogFiles:
    """Contents of the files of a directory."""

    sources: dict[str, EntrySource] = field(default_factory=dict)
    tables: dict[str, FunctionTable] = field(default_factory=dict)
    problems: list[FieldError] = field(default_factory=list)

    def add(self, source: EntrySource) -> None:
        """Add an entry or template; a duplicate name is a problem."""
        if source.name in self.sources:
            existing = self.sources[source.name].file.path.name
            self.problems.append(source.problem("", f"already exists in {existing}", "rename one of them"))
        else:
            self.sources[source.name] = source

    def add_table(self, table: FunctionTable) -> None:
        """Add a table; a second one for the same entry is a problem."""
        if table.entry in self.tables:
            existing = self.tables[table.entry].file.path.name
            self.problems.append(table.problem(f"already has a table in {existing}", "merge the two"))
        else:
            self.tables[table.entry] = table


def scan(directory: Path) -> CatalogFiles:
    """The names in the operator's own files, without parsing them."""
    found = CatalogFiles()
    for path in sorted(directory.glob("*.yaml")):
        file, section, name = CatalogFile(path), "", ""
        aliases: dict[str, tuple[str, ...]] = {}
        functions: dict[str, list[str]] = {}
        names: list[tuple[str, str]] = []
        for line in _LINE.finditer(path.read_text()):
            if line["section"]:
                section = line["section"]
            elif line["name"]:
                name = line["name"]
                names.append((section, name))
            elif line["aliases"] is not None:
                aliases[name] = tuple(alias.strip() for alias in line["aliases"].split(","))
            elif section == "functions":
                functions.setdefault(name, []).extend([line["function"], *_split(line["also"])])
        for section, name in names:
            if section == "functions":
                found.add_table(FunctionTable(name, file, tuple(functions.get(name, ()))))
            elif section:
                found.add(EntrySource(name, file, section == "templates", aliases.get(name, ())))
    return found


def parse(directory: Path) -> CatalogFiles:
    """Parse the YAML files of a directory; `problems` has those that cannot be read."""
    found = CatalogFiles()
    if not directory.is_dir():
        found.problems.append(
            FieldError(str(directory), "is not a directory", "name a directory with YAML files")
        )
        return found
    for path in sorted(directory.iterdir()):
        if path.suffix in (".yaml", ".yml") and not path.name.startswith(".") and path.is_file():
            _parse(CatalogFile(path), found)
    return found


def _parse(file: CatalogFile, found: CatalogFiles) -> None:
    path = file.path
    try:
        content = file.content
    except (yaml_documents.YamlError, OSError, UnicodeDecodeError) as error:
        found.problems.append(FieldError(path.name, " ".join(str(error).split()), "correct the file"))
        return
    if not isinstance(content, dict) or not content.keys() <= _FILE_KEYS:
        keys = ", ".join(sorted(_FILE_KEYS))
        found.problems.append(FieldError(path.name, "is not a catalog file", f"write a map with {keys}"))
        return
    for section in ("templates", "entries", "functions"):
        if not isinstance(content.get(section) or {}, dict):
            message, fix = f"{shown(content[section])} is not a map", "write it as `name: ...` lines"
            found.problems.append(FieldError(f"{path.name}: {section}", message, fix))
            return
    for source in _sources(file):
        if isinstance(source.body, dict):
            found.add(source)
        else:
            fix = "write it as `setting: value` lines"
            found.problems.append(source.problem("", "is not a map", fix))
    for entry, text in file.section("functions").items():
        lines = [line.split() for line in str(text).splitlines() if line.strip()]
        named = [name for words in lines[1:] for name in (words[0], *_also(words))]
        found.add_table(FunctionTable(str(entry), file, tuple(named)))


def _sources(file: CatalogFile) -> Iterator[EntrySource]:
    for kind in ("templates", "entries"):
        for name, body in file.section(kind).items():
            aliases = body.get("aliases") if isinstance(body, dict) and kind == "entries" else None
            # Only valid aliases; validation of the entry reports the others.
            kept = [alias for alias in aliases if isinstance(alias, str)] if isinstance(aliases, list) else []
            yield EntrySource(str(name), file, kind == "templates", tuple(kept))


def _also(words: list[str]) -> list[str]:
    return [name for word in words if word.startswith("also=") for name in _split(word[5:])]


def _split(names: str | None) -> list[str]:
    return names.split(",") if names else []
