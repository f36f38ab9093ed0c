"""Recommends recipes for a model, a mode and the available accelerators."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass, replace
from functools import partial

from megatron_operator.api.errors import FieldError, InvalidRecipeError
from megatron_operator.api.platform import PlatformConfig
from megatron_operator.api.recipe import AcceleratorSpec, MegatronRecipeSpec
from megatron_operator.api.status import Plan
from megatron_operator.catalog import Catalog, Entry, PublishedLayout, hugging_face
from megatron_operator.catalog.accelerator import select_accelerator
from megatron_operator.planner.admission import PlannedRun, admit
from megatron_operator.planner.batch import full_steps
from megatron_operator.planner.batch_for_count import (
    lacks_only_a_batch,
    smaller_micro_batch,
    with_suitable_batch,
)
from megatron_operator.planner.candidates import MAX_RECOMMENDATIONS, Candidate, Query, candidates
from megatron_operator.planner.durations import duration
from megatron_operator.planner.estimate.hardware import GIB
from megatron_operator.planner.matching import is_language_model, size_of
from megatron_operator.planner.model_names import catalog_name
from megatron_operator.planner.no_match import no_match
from megatron_operator.planner.notes import beyond_memory, layout_warnings
from megatron_operator.planner.search.too_large import MEASURED

MAX_TRIED = 12
"""Recipes that are planned as long as none of them fits."""
MODES = ("pretrain", "sft", "lora")
SAME_SIZE = 0.2
"""Binary logarithm of the ratio of two sizes that count as the same: 7B and 8B."""


@dataclass(frozen=True, slots=True)
class Recommendation:
    """A recipe that was considered."""

    entry: Entry
    parameters: int | None
    plan: Plan | None
    """None where it cannot run; `reasons` has the errors."""
    published: bool
    """Whether its layout for exactly these accelerators is published."""
    reasons: tuple[str, ...]
    batch: int | None = None
    """The global batch size, where the recipe's own does not suit the count."""

    @property
    def runnable(self) -> bool:
        """Whether the operator can start it."""
        return self.plan is not None and self.entry.starts

    @property
    def fits(self) -> bool:
        """Whether its memory is believed to suffice: a published layout runs whose estimate is above it."""
        memory = self.plan.memory_per_gpu if self.plan else None
        return memory is None or memory.capacity is None or memory.total <= MEASURED * memory.capacity


Limits = Callable[[], AbstractContextManager[None]]
"""Makes a context in which one recipe is planned; it raises InvalidRecipeError where that takes too much."""


def recommend(
    query: Query, platform: PlatformConfig, catalog: Catalog, limits: Limits = nullcontext
) -> list[Recommendation]:
    """Matching recipes, the best first. A recipe that exceeds `limits` is one that cannot run.

    A model that is named stays first, also if it cannot run. Otherwise: what the operator can start,
    published layouts for these accelerators, larger models.
    Raises InvalidRecipeError when nothing in the catalog matches, or the platform lacks the accelerator.
    """
    picked = select_accelerator(AcceleratorSpec(type=query.accelerator, count=query.gpus), platform)
    if isinstance(picked, FieldError):
        raise InvalidRecipeError([FieldError("--accelerator", picked.message, picked.fix)])
    name, profile = picked
    hardware = profile.known_as(name)
    asked = query.model
    if asked is not None:
        query = replace(query, model=catalog_name(asked, catalog))
    ordered = sorted(candidates(query, hardware, catalog), key=lambda each: each.order)
    missing = not ordered or ordered[0].match.rank > 1
    if missing and (error := _of_another_mode(query, asked, hardware, catalog)):
        raise InvalidRecipeError([error])
    if not ordered:
        raise InvalidRecipeError([no_match(query.model, query.mode, asked, catalog)])
    found: list[tuple[Candidate, Recommendation]] = []
    for candidate in (replace(each, entry=each.entry.on(profile)) for each in ordered[:MAX_TRIED]):
        if len(found) >= MAX_RECOMMENDATIONS and any(made.plan and made.fits for _, made in found):
            break
        tried = replace(candidate, stands_in=missing and candidate.match.rank == 2)
        found.append((tried, _recommendation(query, tried, platform, catalog, limits)))
    found.sort(
        key=lambda each: (
            _identity(query, each[0]),
            not each[1].runnable,
            each[1].plan is None,
            not each[1].fits,
        )
    )
    best, *others = [made for _, made in found]
    if asked is not None and hugging_face.is_other_release(asked):
        same = f"{asked} has the layers of {query.model}"
        best = replace(best, reasons=(same, *best.reasons))
    if best.plan is None:
        admitted = partial(_admitted, platform=platform, catalog=catalog, limits=limits)
        would = _what_would(query, best.entry, hardware, catalog, admitted)
        best = replace(best, reasons=(*best.reasons, *would))
    return [best, *others[: MAX_RECOMMENDATIONS - 1]]


def _identity(query: Query, candidate: Candidate) -> int:
    """0 for the model that is named and its variants, then its family, then models of similar size."""
    return 0 if candidate.match.by == "kind" or query.model is None else max(candidate.match.rank - 1, 0)


def _recommendation(
    query: Query, candidate: Candidate, platform: PlatformConfig, catalog: Catalog, limits: Limits
) -> Recommendation:
    entry, layout = candidate.entry, candidate.layout
    spec = _spec(entry.name, query)
    stretched = query.seq_length is not None and query.seq_length != entry.training.seq_length
    if query.seq_length is not None and stretched:
        spec["training"] = {"seqLength": query.seq_length}
        if entry.engine == "megatron":
            longest = max(query.seq_length, entry.model.max_position_embeddings or 0)
            spec["model"] = {"maxPositionEmbeddings": longest}
    batch = None

    def run(**settings: int) -> PlannedRun:
        training = settings | dict(spec.get("training") or {})  # type: ignore[call-overload]
        return _run(entry.name, spec | {"training": training}, platform, catalog, limits)

    try:
        found = _run(entry.name, spec, platform, catalog, limits).plan
    except InvalidRecipeError as refused:
        try:
            if not lacks_only_a_batch(refused):
                raise
            suited, batch = with_suitable_batch(
                entry, query.gpus, refused, lambda size: run(globalBatchSize=size)
            )
            found = suited.plan
        except InvalidRecipeError as decisive:
            # What is wrong with a batch that suits the count as well, or with more than the batch.
            reasons = tuple(str(error) for error in decisive.errors)
            return Recommendation(entry, candidate.parameters, None, False, reasons)
    published = not stretched and layout is not None and layout.count == query.gpus and batch is None
    own = {} if batch is None else {"globalBatchSize": batch}
    smaller = smaller_micro_batch(found, lambda size: run(microBatchSize=size, **own))
    reasons = tuple(_reasons(query, candidate, found, published, batch, smaller))
    return Recommendation(entry, candidate.parameters, found, published, reasons, batch)


def _spec(name: str, query: Query) -> dict[str, object]:
    accelerator = {"count": query.gpus} | ({"type": query.accelerator} if query.accelerator else {})
    return {"recipe": name, "accelerator": accelerator, "data": {"mockData": True}}


def _run(
    name: str, spec: dict[str, object], platform: PlatformConfig, catalog: Catalog, limits: Limits
) -> PlannedRun:
    with limits():
        return admit(name, MegatronRecipeSpec.model_validate(spec), platform, catalog)


def _reasons(
    query: Query,
    candidate: Candidate,
    found: Plan,
    published: bool,
    batch: int | None,
    smaller: str | None,
) -> Iterator[str]:
    entry, layout = candidate.entry, candidate.layout
    if candidate.match.by == "size":
        size = f"{(candidate.parameters or 0) / 1e9:.1f} billion parameters"
        missing = f"the catalog has no {query.model}; closest of its family: "
        yield f"{missing if candidate.stands_in else ''}{size}"
    if published:
        yield "its layout for these accelerators is published"
    elif layout is not None and layout.count != query.gpus:
        yield f"its layout is planned; one for {layout.title} is published"
    else:
        yield "its layout is planned"
    memory = found.memory_per_gpu
    if memory is not None and memory.capacity and memory.total > memory.capacity:
        needs = f"{memory.total / GIB:.1f} of {memory.capacity / GIB:.1f} GiB, as estimated"
        yield f"memory may not suffice: {needs}{f'; {smaller}' if smaller else ''}"
    else:
        yield from layout_warnings(found)
    if split := _splitting_function(entry, query.seq_length):
        yield (
            f"{split.function} is published for these sequences, with CP "
            f"{split.parallelism.context_parallel_size} on {split.title}; the operator does not start it,"
            " as it splits samples over ranks"
        )
    if found.context_parallel_size > 1:
        yield f"context parallelism {found.context_parallel_size} splits the long sequence"
    if found.expert_model_parallel_size > 1:
        yield f"expert parallelism {found.expert_model_parallel_size} splits the experts"
    if batch is not None:
        own = entry.training.global_batch_size
        yield f"globalBatchSize {batch}: its {own} cannot be divided over {found.data_parallel_size} ranks"
    if found.expected is not None and found.train_iters and (steps := full_steps(found)):
        seconds = found.expected.step_seconds * steps
        yield f"{duration(seconds)} for its {found.train_iters:,} iterations, as estimated"
    if not entry.starts:
        yield f"planned only, and not started: {entry.obstacle}"


def _splitting_function(entry: Entry, seq_length: int | None) -> PublishedLayout | None:
    """A function for sequences of this length that the operator does not start because of its CP."""
    for each in entry.layouts if entry.starts and seq_length else ():
        cp = each.parallelism.context_parallel_size or 1
        if cp > 1 and each.training.seq_length == seq_length and not entry.can_start(each):
            return each
    return None


def _admitted(
    name: str, query: Query, platform: PlatformConfig, catalog: Catalog, limits: Limits
) -> Plan | None:
    """The plan of a recipe for the query's accelerators; None if it is refused."""
    with suppress(InvalidRecipeError):
        return _run(name, _spec(name, query), platform, catalog, limits).plan
    return None


def _what_would(
    query: Query, entry: Entry, hardware: str, catalog: Catalog, admitted: Callable[[str, Query], Plan | None]
) -> Iterator[str]:
    """What fits where the entry does not: a count or hardware that is published for it, another mode.

    Nothing for sequences of another length than its own, for which nothing is published.
    """
    if query.seq_length not in (None, entry.training.seq_length):
        return
    counts = sorted({each.count for each in entry.usable_layouts if hardware in each.accelerators})
    if more := [count for count in counts if count > query.gpus]:
        beyond = beyond_memory(admitted(entry.name, replace(query, gpus=more[0])))
        yield f"{more[0]} x {hardware} {beyond or 'fits'}: that layout is published"
    elsewhere = {each.accelerators[0]: None for each in entry.usable_layouts if each.count == query.gpus}
    if others := [name for name in elsewhere if name != hardware]:
        yield f"{query.gpus} x {' or '.join(others)} fits: that layout is published"
    name = _other_mode(query, hardware, catalog)
    if name is not None and (plan := admitted(name, query)) is not None:
        yield f"--mode {catalog.get(name).modes[0]} {beyond_memory(plan) or 'fits'}: {name}"
    elif hint := _published_in_another_mode(query, entry, hardware, catalog):
        yield hint


def _published_in_another_mode(query: Query, entry: Entry, hardware: str, catalog: Catalog) -> str | None:
    """Another mode of the entry, and the count for which it is published; None if it is not larger."""
    for mode in {"pretrain": ("sft", "lora"), "sft": ("lora",)}.get(query.mode, ()):
        name = f"{entry.name.removesuffix('-sft')}-{mode}"
        if name in catalog.names():
            counts = [
                each.count for each in catalog.get(name).usable_layouts if hardware in each.accelerators
            ]
            if counts:
                return f"--mode {mode} is published for {min(counts)} x {hardware}: {name}"
    return None


def _other_mode(query: Query, hardware: str, catalog: Catalog) -> str | None:
    """The recipe of a mode that needs fewer accelerators, with a layout for these, of the same model."""
    for mode in {"pretrain": ("sft", "lora"), "sft": ("lora",)}.get(query.mode, ()):
        other = replace(query, mode=mode)
        fitting = [each for each in candidates(other, hardware, catalog) if each.layout is not None]
        fitting = [
            each for each in fitting if is_language_model(each.entry) and each.match.factor <= SAME_SIZE
        ]
        # A model that was named is not swapped for one of similar size.
        if any(each.match.rank <= 1 for each in candidates(query, hardware, catalog)):
            fitting = [each for each in fitting if each.match.rank <= 1]
        if query.model is not None and fitting:
            return min(fitting, key=lambda each: each.order).entry.name
    return None


def _of_another_mode(query: Query, asked: str | None, hardware: str, catalog: Catalog) -> FieldError | None:
    """The error of a model that the catalog has in other modes only; None for one that it does not have."""
    # For fine-tuning the other way of it comes first.
    modes = MODES if query.mode == "pretrain" else MODES[::-1]
    for mode in modes if asked is not None else ():
        named = list(candidates(replace(query, mode=mode), hardware, catalog))
        best = min(named, key=lambda each: each.order, default=None)
        if best is not None and best.match.rank <= 1:
            only = ", planned only" if best.entry.planned_only else ""
            fix = f"set --mode {mode}, for which it has {best.entry.name}{only}"
            if others := _of_similar_size(query, best.entry, hardware, catalog):
                fix += f", or name another model of its size: {' or '.join(others)}"
            return FieldError("--mode", f"the catalog has no {query.mode} recipe like {asked!r}", fix)
    return None


def _of_similar_size(query: Query, entry: Entry, hardware: str, catalog: Catalog) -> list[str]:
    """At most two language models of the mode that the operator starts, the closest in size first."""
    size = size_of(entry)
    if size is None or query.mode == "pretrain":
        return []
    similar = candidates(replace(query, model=f"{size / 1e9:.2g}b"), hardware, catalog)
    closest = sorted(similar, key=lambda each: each.order)
    return [each.entry.name for each in closest if each.entry.starts and is_language_model(each.entry)][:2]
