"""Recipes of the catalog that match what is asked for, in the order in which they are tried."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from megatron_operator.catalog import Catalog, Entry, PublishedLayout, hugging_face
from megatron_operator.planner.matching import (
    Match,
    generation,
    has_other_size,
    is_comfortable,
    is_language_model,
    match,
    size_of,
)

MAX_RECOMMENDATIONS = 4
"""Recipes that are planned: the best and three others."""
LONG = 8192
"""Tokens of a sample above which a long-sequence variant is preferred to its base."""


@dataclass(frozen=True, slots=True)
class Query:
    """What to recommend for.

    `model` is a name, also that of Hugging Face, a family, a size such as 8b, or a kind such as moe.
    """

    model: str | None
    gpus: int
    accelerator: str | None
    mode: str
    seq_length: int | None


@dataclass(frozen=True, slots=True)
class Candidate:
    """A recipe that matches."""

    entry: Entry
    parameters: int | None
    match: Match
    layout: PublishedLayout | None
    """The largest published one for this hardware that divides the count."""
    order: tuple[object, ...]
    """What candidates are sorted by; the first is the closest."""
    stands_in: bool = False
    """Whether it is of the family that was asked for, in a size that the catalog lacks."""


def candidates(query: Query, hardware: str, catalog: Catalog) -> Iterator[Candidate]:
    """Recipes of the mode that match, in any order; `hardware` is that of the accelerators."""
    for entry in _of_mode(query, catalog):
        size = size_of(entry)
        found = match(query.model, entry, size)
        if found is None:
            continue
        layout = _layout(entry, hardware, query.gpus)
        exact = layout is not None and layout.count == query.gpus
        least = min((each.count for each in entry.usable_layouts), default=None)
        suits = layout is not None or least is None or least <= query.gpus
        if found.by == "kind":
            suits = suits and is_comfortable(entry, size, query.gpus, query.mode)
        stretched = _distance(entry, query.seq_length)
        # A long-sequence variant matches a name as well as its base does.
        rank = max(found.rank, 1) if (query.seq_length or 0) > LONG else found.rank
        order = (
            rank,
            not is_language_model(entry) and (found.by != "kind" or query.model is None),
            found.factor,
            stretched,
            # Many models are of a kind: those that the operator can start come first.
            found.by == "kind" and query.model is not None and not entry.starts,
            not suits,
            # A name decides by itself; otherwise prefer what this operator can start.
            found.by != "name" and not entry.starts,
            not exact,
            # A plain size is that of a dense model that people know.
            found.by == "size" and bool(entry.model.num_experts),
            found.by == "size" and not hugging_face.is_known(entry.name),
            # Of a kind the largest that suits the accelerators; where none does, the smallest.
            (-(size or 0) if suits else size or 0) if found.by == "kind" else 0,
            layout is None,
            # Of a family, the member whose layout uses the most of these accelerators.
            -layout.count if layout is not None and found.by == "name" else 0,
            not entry.starts,
            *generation(entry.name),
        )
        yield Candidate(entry, size, found, layout, order)


def _of_mode(query: Query, catalog: Catalog) -> list[Entry]:
    """Entries of the mode: those with this prefix if they are enough, else all of similar size."""

    def of(names: Iterable[str]) -> list[Entry]:
        return [entry for entry in map(catalog.get, names) if query.mode in entry.modes]

    names, model = catalog.names(), query.model
    if model is None:
        return of(names)
    named = of(name for name in names if name.startswith(model.lower()))
    return (
        named if len(named) >= MAX_RECOMMENDATIONS else of(n for n in names if not has_other_size(model, n))
    )


def _layout(entry: Entry, hardware: str, gpus: int) -> PublishedLayout | None:
    usable = [each for each in entry.usable_layouts if hardware in each.accelerators]
    fitting = [each for each in usable if gpus % each.count == 0]
    return max(fitting, key=lambda each: each.count, default=None)


def _distance(entry: Entry, requested: int | None) -> int:
    """Distance in tokens from the requested sequence length; only long sequences count."""
    own = entry.training.seq_length or 0
    if requested is None:
        return 1 if own > LONG and _is_variant(entry) else 0
    return abs(own - requested) if requested > LONG else int(own > LONG)


def _is_variant(entry: Entry) -> bool:
    return entry.name.endswith("k") and entry.name.rpartition("-")[2][:-1].isdigit()
