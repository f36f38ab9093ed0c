"""Filters of `megatron recipes list`, and what to print when nothing passes them."""

import difflib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from megatron_operator.api.hardware import canonical
from megatron_operator.catalog import Entry, PublishedLayout, bridge_support
from megatron_operator.cli.errors import CommandError


@dataclass(frozen=True, slots=True)
class Filter:
    """One option of the command line."""

    text: str
    """The option as it was typed: `--family llama3`."""
    value: str
    keeps: Callable[[Entry], bool] = lambda _: True
    layout: Callable[[PublishedLayout], bool] | None = None
    """What one published layout of the recipe must have; several filters mean the same layout."""
    known: tuple[str, ...] = ()
    """Values that some recipe has, for spelling suggestions."""


@dataclass(frozen=True, slots=True)
class Options:
    """The options of `megatron recipes list` that filter; None where one is not given."""

    family: str | None = None
    mode: str | None = None
    engine: str | None = None
    gpus: int | None = None
    accelerator: str | None = None
    search: str | None = None


def offered_layouts(entry: Entry) -> list[PublishedLayout]:
    """The published layouts of a recipe without those of functions that start no recipe, if others do."""
    offered = [x for x in entry.layouts if x.function not in bridge_support.OF_FUNCTION]
    return offered or list(entry.layouts)


def filters(entries: Sequence[Entry], options: Options) -> list[Filter]:
    """The filters of the options that are set."""
    family, mode, engine = options.family, options.mode, options.engine
    gpus, accelerator, search = options.gpus, options.accelerator, options.search
    found = []
    if family is not None:
        families = tuple(sorted({e.family for e in entries}))
        found.append(
            Filter(f"--family {family}", family, lambda e: e.family == family.lower(), known=families)
        )
    if mode is not None:
        found.append(Filter(f"--mode {mode}", mode, lambda e: mode in e.modes))
    if engine is not None:
        found.append(Filter(f"--engine {engine}", engine, lambda e: e.engine == engine))
    layouts = [layout for e in entries for layout in offered_layouts(e)]
    if gpus is not None:
        counts = tuple(str(count) for count in sorted({x.count for x in layouts}))
        found.append(Filter(f"--gpus {gpus}", str(gpus), layout=lambda x: x.count == gpus, known=counts))
    if accelerator is not None:
        hardware = canonical(accelerator.lower())
        known = tuple(sorted({name for x in layouts for name in x.accelerators}))
        text = f"--accelerator {accelerator}"
        found.append(Filter(text, accelerator, layout=lambda x: hardware in x.accelerators, known=known))
    if search is not None:
        words = search.lower().split()
        found.append(Filter(f"--search {search}", search, lambda e: all(w in _words(e) for w in words)))
    return found


def matching(entries: Sequence[Entry], chosen: Sequence[Filter]) -> list[Entry]:
    """The entries that pass all filters. Raises CommandError, with the filter to drop, if there are none."""
    kept = [e for e in entries if _passes(e, chosen)]
    if kept or not chosen:
        return kept
    where = " ".join(each.text for each in chosen)
    raise CommandError(where, "no recipe matches", _advice(entries, chosen))


def _advice(entries: Sequence[Entry], chosen: Sequence[Filter]) -> str:
    for each in chosen:  # one that nothing passes by itself: dropping another does not help
        if not any(_passes(e, [each]) for e in entries):
            return f"drop {each.text}, which no recipe has{_suggestion(each)}"
    left = [(_count(entries, [x for x in chosen if x is not each]), each.text) for each in chosen]
    useful = sorted(((n, text) for n, text in left if n), reverse=True)
    if not useful:
        return "drop two of them: no single one is in the way"
    without = [f"{text} ({n} recipe{'s' if n > 1 else ''} without it)" for n, text in useful]
    return f"drop {' or '.join(without)}"


def _count(entries: Iterable[Entry], chosen: Sequence[Filter]) -> int:
    return sum(_passes(e, chosen) for e in entries)


def _suggestion(each: Filter) -> str:
    if not each.known:
        return ""
    if each.value.isdecimal():
        near = sorted(each.known, key=lambda known: abs(int(known) - int(each.value)))[:2]
    else:
        near = difflib.get_close_matches(each.value.lower()[:100], each.known, n=2, cutoff=0.5)
    return f"; near: {', '.join(near)}" if near else f"; there are {', '.join(each.known)}"


def _passes(entry: Entry, chosen: Sequence[Filter]) -> bool:
    layout = [each.layout for each in chosen if each.layout is not None]
    return all(each.keeps(entry) for each in chosen) and (
        not layout or any(all(has(x) for has in layout) for x in offered_layouts(entry))
    )


def _words(entry: Entry) -> str:
    kind = "moe" if entry.model.num_experts else ""
    return " ".join([entry.name, entry.family, *entry.aliases, entry.description, kind]).lower()
