"""The catalog: entries that extend others, found by name, alias or function; clear words about broken ones.

`model`, `training`, `parallelism`, `data` and `megatronArgs` are laid over those of the extended entry, leaf
by leaf; a null takes a leaf away. `engine` and `modes` are inherited whole. A template's `corrections` come
before the entry's own. Everything else is the entry's own.
"""

import difflib
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any, Final

from pydantic import ValidationError

from megatron_operator.api.errors import FieldError, InvalidRecipeError
from megatron_operator.catalog import bridge_tables, loader
from megatron_operator.catalog.entry import Entry, PublishedLayout
from megatron_operator.catalog.loader import CatalogFiles, EntrySource
from megatron_operator.catalog.merge import SECTIONS, overlay

DATA_DIR: Final = Path(__file__).with_name("data")
LIST_COMMAND: Final = "megatron recipes"

_INHERITED: Final = ("engine", "modes")


class Catalog:
    """The recipes there are. An entry is put together when it is asked for.

    A broken file or entry costs only itself: `problems` has what is wrong with whole files, `get` refuses a
    broken entry, `check` goes through everything.
    """

    def __init__(self, found: CatalogFiles) -> None:
        self._sources = found.sources
        self._tables = found.tables
        self._entries: dict[str, Entry] = {}
        self._aliases: dict[str, str] = {}
        self._functions: dict[str, str] = {}
        self.problems: Final = list(found.problems)
        for source in found.sources.values():
            for alias in source.aliases if not source.template else ():
                taken = self._aliases.get(alias, alias if alias in found.sources else None)
                if taken:
                    self.problems.append(source.problem("aliases", f"{alias} is {taken} already", "drop it"))
                else:
                    self._aliases[alias] = source.name
        for table in found.tables.values():
            entry = found.sources.get(table.entry)
            if entry is None or entry.template:
                self.problems.append(table.problem("is no entry", "name an entry that is there"))
                continue
            for function in table.functions:
                if function in self._functions:
                    taken = self._functions[function]
                    self.problems.append(table.problem(f"{function} is {taken}'s already", "drop it"))
                else:
                    self._functions[function] = table.entry

    def names(self) -> list[str]:
        """Names of all entries, sorted; aliases not counted."""
        return sorted(name for name, source in self._sources.items() if not source.template)

    def functions(self) -> dict[str, str]:
        """Megatron-Bridge's function names -> the entry that has each."""
        return dict(self._functions)

    def __iter__(self) -> Iterator[Entry]:
        return (self.get(name) for name in self.names())

    def __len__(self) -> int:
        return len(self.names())

    def get(self, name: str) -> Entry:
        """The entry of this name, alias or function of Megatron-Bridge.

        Raises InvalidRecipeError for a name that is not there (with the nearest ones) and for a broken entry.
        """
        name = self._aliases.get(name) or self._functions.get(name) or name
        if name in self._entries:
            return self._entries[name]
        source = self._sources.get(name)
        if source is None or source.template:
            raise InvalidRecipeError([self._unknown(name)])
        body = self._add_functions(source, self._inherit(source, ()))
        try:
            entry = Entry.model_validate(body | {"name": name, "family": source.family})
        except ValidationError as error:
            raise InvalidRecipeError(
                [
                    source.problem(".".join(map(str, e["loc"])), e["msg"], _fix_for(e["type"]))
                    for e in error.errors()
                ]
            ) from None
        return self._entries.setdefault(name, entry)

    def function(self, name: str) -> PublishedLayout | None:
        """Layout that the function of this name sets, or None. Raises InvalidRecipeError as `get` does."""
        return self.get(name).function(name) if name in self._functions else None

    def check(self) -> list[FieldError]:
        """Everything that is wrong with any file or entry."""
        found = list(self.problems)
        for name in self.names():
            try:
                self.get(name)
            except InvalidRecipeError as refused:
                found += refused.errors
        return found

    def _add_functions(self, source: EntrySource, body: dict[str, Any]) -> dict[str, Any]:
        """The body with its table: published layouts of a Bridge entry, further ones of another."""
        table = self._tables.get(source.name)
        if table is None:
            return body
        try:
            made = list(bridge_tables.layouts(table.text))
        except ValueError as error:
            raise InvalidRecipeError(
                [table.problem(str(error), "write it as the other tables are")]
            ) from None
        if body.get("engine") != "bridge":
            return body | {"functions": made}
        # What the entry says without a layout is what its first function sets.
        training = overlay("training", body.get("training") or {}, made[0]["training"])
        return body | {"layouts": made, "training": training}

    def _inherit(self, source: EntrySource, below: tuple[str, ...]) -> dict[str, Any]:
        """The body with what it extends below it; `below` are the names that led here."""
        own = {leaf: value for leaf, value in source.body.items() if leaf != "extends"}
        parent_name = source.body.get("extends")
        for section in SECTIONS:
            if not isinstance(own.get(section, {}), Mapping):
                raise InvalidRecipeError(
                    [source.problem(section, "is not a map", "write it as `setting: value` lines")]
                )
        if parent_name is None:
            return own
        chain = (*below, source.name)
        parent = self._sources.get(parent_name) if isinstance(parent_name, str) else None
        if parent is None:
            raise InvalidRecipeError(
                [source.problem("extends", f"{parent_name} is not there", "name an entry that is")]
            )
        if parent.name in chain:
            circle = " -> ".join((*chain, parent.name))
            raise InvalidRecipeError(
                [source.problem("extends", f"goes in a circle: {circle}", "let one stand alone")]
            )
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
        known = [*self.names(), *self._aliases, *self._functions]
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
    shipped = _shipped()
    if extra_dir is None:
        return Catalog(shipped)
    found = CatalogFiles(dict(shipped.sources), dict(shipped.tables), list(shipped.problems))
    extra = loader.parse(extra_dir)
    found.problems += extra.problems
    for source in extra.sources.values():
        if source.name in shipped.sources:
            taken = shipped.sources[source.name].file.path.name
            message, fix = f"the name is taken by {taken}", f"extend {source.name} by another name"
            found.problems.append(source.problem("", message, fix))
        else:
            found.sources[source.name] = source
    for table in extra.tables.values():
        found.add_table(table)
    return Catalog(found)


@cache
def _shipped() -> CatalogFiles:
    return loader.scan(DATA_DIR)


def _fix_for(kind: str) -> str:
    if kind == "extra_forbidden":
        return "use Megatron's setting name in camelCase, or megatronArgs for one that is not typed"
    return "give the field" if kind == "missing" else "mend the value"
