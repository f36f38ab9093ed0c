"""Which recipe suits a model, a mode and the accelerators there are."""

import re
from dataclasses import dataclass

from megatron_operator import catalog as library
from megatron_operator.api.errors import FieldError, Refused
from megatron_operator.api.platform import PlatformConfig
from megatron_operator.api.recipe import MegatronRecipeSpec
from megatron_operator.api.status import Plan
from megatron_operator.catalog import Catalog, Entry
from megatron_operator.planner.architecture import architecture
from megatron_operator.planner.parameters import parameters
from megatron_operator.planner.plan import plan

NEAR = 1.6
"""A model of another size is offered when it is no more than this factor away."""


@dataclass(frozen=True, slots=True)
class Wish:
    """What is there and what it is for. `model` is a name, a family or a size such as 8b."""

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
    Raises Refused when the catalog has nothing of the kind.
    """
    sized = [(entry, _size(entry)) for entry in catalog if wish.mode in entry.modes]
    matched = [
        (_match(wish.model, entry, size), entry, size)
        for entry, size in sized
        if _match(wish.model, entry, size) is not None
    ]
    if not matched:
        raise Refused([_nothing(wish, catalog)])
    best = min(match for match, _, _ in matched if match is not None)
    choices = [
        (match, _weigh(wish, entry, size, platform, catalog))
        for match, entry, size in sorted(matched, key=lambda found: found[0] or 0.0)[:12]
        if match is not None and match < best + 1
    ]
    choices.sort(
        key=lambda pair: (pair[1].plan is None, pair[0], not pair[1].published, -(pair[1].parameters or 0))
    )
    return [choice for _, choice in choices]


def _size(entry: Entry) -> int | None:
    a = architecture(entry.model, [])
    return parameters(a, a.vocab) if a else None


def _match(model: str | None, entry: Entry, size: int | None) -> float | None:
    """0 for the very name, 1 for its beginning or family, 2 and more for a like size; none for no match."""
    if model is None:
        return 0.0
    text = model.lower()
    if text == entry.name or text in entry.aliases:
        return 0.0
    if entry.name.startswith(text) or text == entry.family:
        return 1.0
    asked = _billions(text)
    if asked is None or size is None:
        return None
    factor = max(asked / size, size / asked)
    return 2.0 + (factor - 1) / NEAR if factor <= NEAR else None


def _billions(text: str) -> float | None:
    found = re.fullmatch(r".*?(\d+(?:\.\d+)?)([bmt])", text)
    return float(found[1]) * {"m": 1e6, "b": 1e9, "t": 1e12}[found[2]] if found else None


def _weigh(wish: Wish, entry: Entry, size: int | None, platform: PlatformConfig, catalog: Catalog) -> Choice:
    spec = {
        "recipe": entry.name,
        "accelerator": {"count": wish.gpus} | ({"type": wish.accelerator} if wish.accelerator else {}),
        "data": {"mockData": True},
    }
    if wish.seq_length is not None:
        longest = max(wish.seq_length, entry.model.max_position_embeddings or 0)
        spec |= {"training": {"seqLength": wish.seq_length}, "model": {"maxPositionEmbeddings": longest}}
    try:
        resolved = library.resolve(MegatronRecipeSpec.model_validate(spec), platform, catalog)
        found = plan(resolved)
    except Refused as refused:
        return Choice(entry, size, None, False, tuple(str(error) for error in refused.errors))
    hardware = resolved.profile.hardware or resolved.accelerator_type
    published = wish.seq_length is None and entry.layout_for(hardware, wish.gpus) is not None
    return Choice(entry, size, found, published, tuple(_reasons(found, published)))


def _reasons(found: Plan, published: bool) -> list[str]:
    reasons = ["its layout for these accelerators is published" if published else "its layout is planned"]
    if found.context_parallel_size > 1:
        reasons.append(f"context parallelism {found.context_parallel_size} splits the long sequence")
    if found.expected is not None and found.train_iters:
        days = found.expected.step_seconds * found.train_iters / 86400
        reasons.append(f"{days:,.1f} days for its tokens, as estimated")
    return reasons


def _nothing(wish: Wish, catalog: Catalog) -> FieldError:
    of = f" like {wish.model!r}" if wish.model else ""
    return FieldError(
        "--model" if wish.model else "--mode",
        f"the catalog has no {wish.mode} recipe{of}",
        f"name one of its {len(catalog)} recipes (megatron recipes list), a family, or a size such as 8b",
    )
