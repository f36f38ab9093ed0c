"""The catalog: entries that may extend others, found by name, alias or function of Megatron-Bridge.

`model`, `training`, `parallelism`, `data` and `megatronArgs` are merged into those of the extended entry,
leaf by leaf; a null removes a leaf. `engine`, `modes` and `plannedOnly` are inherited unless set. A
template's `corrections` precede the entry's own. Nothing else is inherited.
"""

import difflib
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any, Final

from pydantic import ValidationError

from megatron_operator.api.errors import FieldError, InvalidRecipeError, shown, shown_key
from megatron_operator.api.text_checks import character_errors
from megatron_operator.catalog import bridge_tables, hugging_face, loader, unsupported_models
from megatron_operator.catalog.entry import Entry, PublishedLayout
from megatron_operator.catalog.loader import CatalogFiles, EntrySource
from megatron_operator.catalog.merge import SECTIONS, overlay

DATA_DIR: Final = Path(__file__).with_name("data")
LIST_COMMAND: Final = "megatron recipes"

_INHERITED: Final = ("engine", "modes", "plannedOnly")
_TUNED: Final = ("-sft", "-lora")


class Catalog:
    """All recipes. An entry is built when it is first used.

    An invalid file or entry does not affect the others: `problems` has the errors of files, `get` raises for
    an invalid entry, `check` validates everything.
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
                    self.problems.append(
                        source.problem(
                            "aliases",
                            f"{shown_key(alias)} already belongs to {shown_key(taken)}",
                            "remove it",
                        )
                    )
                else:
                    self._aliases[alias] = source.name
        for table in found.tables.values():
            entry = found.sources.get(table.entry)
            if entry is None or entry.template:
                self.problems.append(table.problem("is not an entry", "name an existing entry"))
                continue
            for function in table.functions:
                if function in self._functions:
                    taken = self._functions[function]
                    self.problems.append(
                        table.problem(
                            f"{shown_key(function)} already belongs to {shown_key(taken)}", "remove it"
                        )
                    )
                else:
                    self._functions[function] = table.entry

    def names(self) -> list[str]:
        """Names of all entries, sorted, without aliases."""
        return sorted(name for name, source in self._sources.items() if not source.template)

    def tuned(self, family: str) -> list[str]:
        """Names of the entries of a family that fine-tune, which end with their mode."""
        return [
            name for name in self.names() if self._sources[name].family == family and name.endswith(_TUNED)
        ]

    def functions(self) -> dict[str, str]:
        """Name of each Megatron-Bridge function -> its entry."""
        return dict(self._functions)

    def __iter__(self) -> Iterator[Entry]:
        return (self.get(name) for name in self.names())

    def __len__(self) -> int:
        return len(self.names())

    def get(self, name: str) -> Entry:
        """The entry of this name, alias or function of Megatron-Bridge.

        Raises InvalidRecipeError for an unknown name (with the closest ones) and for an invalid entry.
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
                    source.problem(
                        ".".join(shown_key(str(part)) for part in e["loc"]), e["msg"], _fix_for(e["type"])
                    )
                    for e in error.errors()
                ]
            ) from None
        if unprintable := character_errors(body, f"{source.file.path.name}: {shown_key(name)}"):
            raise InvalidRecipeError(unprintable)
        return self._entries.setdefault(name, entry)

    def function(self, name: str) -> PublishedLayout | None:
        """Layout that the function of this name sets, or None. Raises InvalidRecipeError as `get` does."""
        return self.get(name).function(name) if name in self._functions else None

    def check(self) -> list[FieldError]:
        """Errors of all files and entries."""
        found = list(self.problems)
        for name in self.names():
            try:
                self.get(name)
            except InvalidRecipeError as refused:
                found += refused.errors
        return found

    def _add_functions(self, source: EntrySource, body: dict[str, Any]) -> dict[str, Any]:
        """The body with its table of functions: layouts of a Bridge entry, `functions` of any other."""
        table = self._tables.get(source.name)
        if table is None:
            return body
        try:
            made = list(bridge_tables.layouts(table.text))
        except ValueError as error:
            raise InvalidRecipeError(
                [table.problem(str(error), "follow the format of the other tables")]
            ) from None
        if body.get("engine") != "bridge":
            return body | {"functions": made}
        for layout in made:
            layout["training"].setdefault("weightDecay", bridge_tables.WEIGHT_DECAY)
        # Without a layout, the settings are those of the first function.
        training = overlay("training", body.get("training") or {}, made[0]["training"])
        return body | {"layouts": made, "training": training}

    def _inherit(self, source: EntrySource, below: tuple[str, ...]) -> dict[str, Any]:
        """The body merged with what it extends; `below` are the entries that extend it."""
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
                [source.problem("extends", f"{parent_name} does not exist", "name an existing entry")]
            )
        if parent.name in chain:
            circle = " -> ".join((*chain, parent.name))
            raise InvalidRecipeError(
                [source.problem("extends", f"is circular: {circle}", "remove one extends")]
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
        message = f"the catalog has no recipe {shown(name)}"
        all_of_them = f"`{LIST_COMMAND}` lists all {len(self)}"
        if reason := unsupported_models.why_unsupported(name):
            return FieldError("spec.recipe", f"{message}: {reason}", f"name another one; {all_of_them}")
        known = [*self.names(), *self._aliases, *self._functions]
        trained_by = hugging_face.entry_of(name)
        # Recipes that pretrain have the model's name alone.
        alone = name.lower().removesuffix("-pretrain")
        of_that_model = [each for each in (trained_by, alone) if each in known][:1]
        near = of_that_model or difflib.get_close_matches(name[:100].lower(), known, n=3, cutoff=0.5)
        hint = f"did you mean {' or '.join(near)}? " if near else ""
        broken = "".join(f"; {problem}" for problem in self.problems)
        return FieldError(
            "spec.recipe",
            f"{message}{broken}",
            f"{hint}{all_of_them}; or set model and training completely",
        )


def load(extra_dir: Path | None = None) -> Catalog:
    """The operator's catalog and the entries of the YAML files in `extra_dir`.

    An entry of `extra_dir` has the same format, may extend any other entry and must have a new name.
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
            message, fix = f"the name exists in {taken}", f"extend {source.name} under another name"
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
    return "set the field" if kind == "missing" else "correct the value"
