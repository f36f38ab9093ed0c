"""Which recipe suits a model, a mode and the accelerators there are."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from megatron_operator.api.errors import FieldError, InvalidRecipeError
from megatron_operator.api.platform import PlatformConfig
from megatron_operator.api.recipe import AcceleratorSpec, MegatronRecipeSpec
from megatron_operator.api.status import Plan
from megatron_operator.catalog import Catalog, Entry, Layout
from megatron_operator.catalog.accelerator import pick
from megatron_operator.planner.admission import admit
from megatron_operator.planner.matching import (
    Match,
    generation,
    is_of_another_size,
    match,
    reads_text_alone,
    size_of,
)

WEIGHED = 4
"""Recipes that are planned: the best and three others."""
LONG = 8192
"""Tokens of a sample above which a variant for long sequences comes before its base."""
SAME = 0.2
"""Logarithm of the ratio of two sizes that count as one: 7B and 8B."""
COMFORTABLE = ((128, None), (16, 80e9), (8, 16e9), (4, 8e9), (1, 4e9))
"""Without a name: for at least so many accelerators dense models up to so many parameters, as
Megatron-Bridge's index recommends (8B-16B on a node, 70B on 16 to 64, 405B from 128); twice that for experts,
and for LoRA.
"""


@dataclass(frozen=True, slots=True)
class Wish:
    """What is there and what it is for. `model` is a name, a family, a size such as 8b, or a kind: moe."""

    model: str | None
    gpus: int
    accelerator: str | None
    mode: str
    seq_length: int | None


@dataclass(frozen=True, slots=True)
class Choice:
    """A recipe that was weighed."""

    entry: Entry
    parameters: int | None
    plan: Plan | None
    """None where it cannot run; `reasons` say why."""
    published: bool
    """Its layout for exactly these accelerators is published."""
    reasons: tuple[str, ...]


def recommend(wish: Wish, platform: PlatformConfig, catalog: Catalog) -> list[Choice]:
    """Recipes that suit, the best first.

    Those whose name is asked for come before those of like size; what can run before what cannot, what has a
    published layout for these accelerators before what is planned, larger models before smaller ones.
    Raises InvalidRecipeError when the catalog has nothing of the kind, or the platform not this accelerator.
    """
    picked = pick(AcceleratorSpec(type=wish.accelerator, count=wish.gpus), platform)
    if isinstance(picked, FieldError):
        raise InvalidRecipeError([FieldError("--accelerator", picked.message, picked.fix)])
    name, profile = picked
    hardware = profile.known_as(name)
    candidates = list(_candidates(wish, hardware, catalog))
    if not candidates:
        raise InvalidRecipeError([_nothing(wish, catalog)])
    candidates.sort(key=lambda each: each.order)
    choices = [_weigh(wish, candidate, platform, catalog) for candidate in candidates[:WEIGHED]]
    choices.sort(key=lambda choice: choice.plan is None)
    best, *others = choices
    if best.plan is None and (hint := _other_mode(wish, hardware, catalog)):
        best = replace(best, reasons=(*best.reasons, hint))
    return [best, *others]


@dataclass(frozen=True, slots=True)
class _Candidate:
    entry: Entry
    parameters: int | None
    match: Match
    layout: Layout | None
    """The largest published one for this hardware that divides the count."""
    order: tuple[object, ...]


def _candidates(wish: Wish, hardware: str, catalog: Catalog) -> Iterator[_Candidate]:
    for entry in _of_mode(wish, catalog):
        size = size_of(entry)
        found = match(wish.model, entry, size)
        if found is None:
            continue
        layout = _layout(entry, hardware, wish.gpus)
        exact = layout is not None and layout.count == wish.gpus
        least = min((each.count for each in entry.layouts), default=None)
        suits = layout is not None or least is None or least <= wish.gpus
        if found.by == "kind":
            suits = suits and _is_comfortable(wish, entry, size)
        stretched = _distance(entry, wish.seq_length)
        # The variant for these sequences is the recipe that was named, as much as its base is.
        rank = max(found.rank, 1) if (wish.seq_length or 0) > LONG else found.rank
        order = (
            rank,
            not reads_text_alone(entry) and (found.by != "kind" or wish.model is None),
            found.factor,
            not suits,
            # Where no model is named, one that this operator can start.
            wish.model is None and entry.engine != "megatron",
            stretched,
            not exact and found.by != "kind",
            -(size or 0) if found.by == "kind" else 0,
            not exact,
            layout is None,
            entry.engine != "megatron",
            *generation(entry.name),
        )
        yield _Candidate(entry, size, found, layout, order)


def _of_mode(wish: Wish, catalog: Catalog) -> list[Entry]:
    """Entries of the mode: those whose name begins as asked where they are enough, else all of like size."""

    def of(names: Iterable[str]) -> list[Entry]:
        return [entry for entry in map(catalog.get, names) if wish.mode in entry.modes]

    names, model = catalog.names(), wish.model
    if model is None:
        return of(names)
    named = of(name for name in names if name.startswith(model.lower()))
    return named if len(named) >= WEIGHED else of(n for n in names if not is_of_another_size(model, n))


def _layout(entry: Entry, hardware: str, gpus: int) -> Layout | None:
    fitting = [each for each in entry.layouts if hardware in each.accelerators and gpus % each.count == 0]
    return max(fitting, key=lambda each: each.count, default=None)


def _distance(entry: Entry, wanted: int | None) -> int:
    """How far the entry's sequences are from those asked for; long ones only matter when asked for."""
    own = entry.training.seq_length or 0
    if wanted is None:
        return 1 if own > LONG and _is_variant(entry) else 0
    return abs(own - wanted) if wanted > LONG else int(own > LONG)


def _is_comfortable(wish: Wish, entry: Entry, size: int | None) -> bool:
    most = next(most for least, most in COMFORTABLE if wish.gpus >= least)
    if most is None:
        return True
    return (size or 0) <= most * (2 if entry.model.num_experts else 1) * (2 if wish.mode == "lora" else 1)


def _is_variant(entry: Entry) -> bool:
    return entry.name.endswith("k") and entry.name.rpartition("-")[2][:-1].isdigit()


def _weigh(wish: Wish, candidate: _Candidate, platform: PlatformConfig, catalog: Catalog) -> Choice:
    entry, layout = candidate.entry, candidate.layout
    spec: dict[str, object] = {
        "recipe": entry.name,
        "accelerator": {"count": wish.gpus} | ({"type": wish.accelerator} if wish.accelerator else {}),
        "data": {"mockData": True},
    }
    stretched = wish.seq_length is not None and wish.seq_length != entry.training.seq_length
    if wish.seq_length is not None and stretched:
        spec["training"] = {"seqLength": wish.seq_length}
        if entry.engine == "megatron":
            longest = max(wish.seq_length, entry.model.max_position_embeddings or 0)
            spec["model"] = {"maxPositionEmbeddings": longest}
    try:
        found = admit(entry.name, MegatronRecipeSpec.model_validate(spec), platform, catalog).plan
    except InvalidRecipeError as refused:
        reasons = tuple(str(error) for error in refused.errors)
        return Choice(entry, candidate.parameters, None, False, reasons)
    published = not stretched and layout is not None and layout.count == wish.gpus
    reasons = tuple(_reasons(wish, entry, found, layout, published))
    return Choice(entry, candidate.parameters, found, published, reasons)


def _reasons(wish: Wish, entry: Entry, found: Plan, layout: Layout | None, published: bool) -> Iterator[str]:
    if published:
        yield "its layout for these accelerators is published"
    elif layout is not None and layout.count != wish.gpus:
        yield f"its layout is planned; one for {layout.title} is published"
    else:
        yield "its layout is planned"
    if found.context_parallel_size > 1:
        yield f"context parallelism {found.context_parallel_size} splits the long sequence"
    if found.expert_model_parallel_size > 1:
        yield f"expert parallelism {found.expert_model_parallel_size} splits the experts"
    if found.expected is not None and found.train_iters:
        days = found.expected.step_seconds * found.train_iters / 86400
        yield f"{days:,.1f} days for its tokens, as estimated"
    if entry.engine != "megatron":
        yield "run by Megatron-Bridge, whose loop this operator does not start yet"


def _other_mode(wish: Wish, hardware: str, catalog: Catalog) -> str | None:
    """Fine-tuning needs fewer accelerators: how the same model can be trained where it cannot as asked."""
    for mode in {"pretrain": ("sft", "lora"), "sft": ("lora",)}.get(wish.mode, ()):
        other = replace(wish, mode=mode)
        fitting = [each for each in _candidates(other, hardware, catalog) if each.layout is not None]
        fitting = [each for each in fitting if reads_text_alone(each.entry) and each.match.factor <= SAME]
        if wish.model is not None and fitting:
            return f"--mode {mode} fits: {min(fitting, key=lambda each: each.order).entry.name}"
    return None


def _nothing(wish: Wish, catalog: Catalog) -> FieldError:
    of = f" like {wish.model!r}" if wish.model else ""
    return FieldError(
        "--model" if wish.model else "--mode",
        f"the catalog has no {wish.mode} recipe{of}",
        f"name one of its {len(catalog)} recipes (megatron recipes list), a family, or a size such as 8b",
    )
