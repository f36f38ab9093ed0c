"""A first recipe: chosen as the catalog publishes it, and planned."""

from dataclasses import dataclass, replace
from typing import Any

from megatron_operator.api.errors import FieldError, InvalidRecipeError, PlanningLimitError
from megatron_operator.api.platform import PlatformConfig
from megatron_operator.api.recipe import AcceleratorSpec
from megatron_operator.api.validation import parse_recipe
from megatron_operator.catalog import Catalog, Entry, PublishedLayout
from megatron_operator.catalog.accelerator import select_accelerator
from megatron_operator.cli import starter_file
from megatron_operator.cli.errors import CommandError
from megatron_operator.cli.limits import planning_limits
from megatron_operator.cli.planning import refusals
from megatron_operator.planner import PlannedRun, admit
from megatron_operator.planner.batch_for_count import lacks_only_a_batch, with_suitable_batch
from megatron_operator.planner.candidates import Query
from megatron_operator.planner.instead import names_one_model, what_fits
from megatron_operator.planner.notes import beyond_memory, lacks_memory
from megatron_operator.planner.recommend import recommend

_DOUBLINGS = 11
"""Counts that are tried where none is published: one node to 1,024."""


@dataclass(frozen=True, slots=True)
class Request:
    """What to start with, as on the command line; None lets the catalog or the platform decide."""

    model: str | None
    gpus: int | None
    accelerator: str | None
    mode: str | None


def starter(request: Request, platform: PlatformConfig, catalog: Catalog) -> str:
    """A commented recipe that is admitted on this platform. Without a number of GPUs it is for the smallest
    published one or, where none is published, the smallest on which a layout fits.

    Raises InvalidRecipeError if the operator would refuse it, CommandError if no recipe can be chosen.
    """
    name, entry = _recipe(request, platform, catalog)
    accelerator, counts = _accelerators(request, entry, catalog.function(name), platform)
    entry = entry.on(platform.accelerators[accelerator])
    failed: list[FieldError] = []
    known_as = platform.accelerators[accelerator].known_as(accelerator)
    published = {layout.count for layout in entry.layouts if known_as in layout.accelerators}
    for count in counts:
        body = starter_file.resource(name, entry, accelerator, count)
        try:
            planned, batch = _admitted(
                body, entry, platform, catalog, count=count if request.gpus is not None else None
            )
        except PlanningLimitError:
            raise
        except InvalidRecipeError as invalid:
            failed = failed or invalid.errors
            continue
        if request.gpus is None and count not in published and (beyond := beyond_memory(planned.plan)):
            failed = failed or [FieldError("spec.accelerator.count", f"{count} {beyond}", "give --gpus")]
            continue
        if refused := refusals(planned):
            raise InvalidRecipeError(refused)
        remark = _unusual(entry, known_as, count)
        return starter_file.text(name, entry, accelerator, planned, remark, batch)
    if request.gpus is not None:
        failed += _instead(request, entry, request.gpus, failed, platform, catalog)
    raise InvalidRecipeError(failed)


def _admitted(
    body: dict[str, Any], entry: Entry, platform: PlatformConfig, catalog: Catalog, *, count: int | None
) -> tuple[PlannedRun, int | None]:
    """The planned recipe, and the global batch size that it sets because the catalog's suits no layout.

    `count` is the number of accelerators that was asked for; without one the batch stays the catalog's.
    Raises InvalidRecipeError.
    """

    def planned() -> PlannedRun:
        with planning_limits():
            return admit(entry.name, parse_recipe(body), platform, catalog, "default")

    try:
        return planned(), None
    except InvalidRecipeError as refused:
        if count is None or not lacks_only_a_batch(refused):
            raise

        def with_batch(batch: int) -> PlannedRun:
            body["spec"]["training"] = {"globalBatchSize": batch}
            return planned()

        return with_suitable_batch(entry, count, refused, with_batch)


def _instead(
    request: Request,
    entry: Entry,
    gpus: int,
    failed: list[FieldError],
    platform: PlatformConfig,
    catalog: Catalog,
) -> list[FieldError]:
    """What fits where a recipe that was named does not, as one error; none where nothing does."""
    mode = request.mode or entry.modes[0]
    query = Query(entry.name, gpus, request.accelerator, mode, None)
    try:
        found = recommend(query, platform, catalog, planning_limits)
    except InvalidRecipeError:
        return []
    fits = what_fits(query, found, platform, catalog, planning_limits)
    message = f"{'does not fit' if lacks_memory(map(str, failed)) else 'cannot run'} on {gpus}"
    return [FieldError(entry.name, message, f"take {', or '.join(fits)}")] if fits else []


def _recipe(request: Request, platform: PlatformConfig, catalog: Catalog) -> tuple[str, Entry]:
    """Value of `spec.recipe` and its entry: the named one, or the recommended one."""
    unknown: InvalidRecipeError | None = None
    if request.model is not None:
        try:
            entry = catalog.get(request.model)
        except InvalidRecipeError as error:
            unknown = error
        else:
            if request.mode is None or request.mode in entry.modes:
                return (request.model if catalog.function(request.model) else entry.name), entry
    if request.gpus is None:
        if unknown is not None and names_one_model(request.model):
            [problem] = unknown.errors
            fix = problem.fix.partition("; or set model")[0]
            raise InvalidRecipeError([replace(problem, field="MODEL", fix=fix)])
        what = "no MODEL is named" if request.model is None else f"{request.model} is not for {request.mode}"
        if request.model is not None and not names_one_model(request.model):
            what = f"{request.model} stands for many models"
        raise CommandError(
            "--gpus", f"is not given, and {what}", "give --gpus N to have a recipe recommended"
        )
    query = Query(request.model, request.gpus, request.accelerator, request.mode or "pretrain", None)
    try:
        found = recommend(query, platform, catalog, planning_limits)
    except InvalidRecipeError as nothing:
        raise InvalidRecipeError(
            [replace(e, field="MODEL" if e.field == "--model" else e.field) for e in nothing.errors]
        ) from None
    best = found[0]
    if not names_one_model(request.model):
        # No model is named: take the first that the operator can start.
        best = next((each for each in found if each.runnable), best)
        if not best.runnable:
            message = f"no recipe that the operator can start fits on {request.gpus} GPUs"
            fits = what_fits(query, found, platform, catalog, planning_limits)
            starts = any(each.entry.starts for each in found)
            more = "give more GPUs" if starts else f"{best.entry.name} is run by Megatron-Bridge alone"
            fix = f"take {', or '.join(fits)}" if fits else f"{more}; see megatron recommend"
            raise CommandError(request.model or "--gpus", message, fix)
    if best.plan is None:
        raise CommandError(
            request.model or "megatron init",
            f"nothing fits; nearest: {best.entry.name}: {best.reasons[0]}",
            "see megatron recommend",
        )
    return best.entry.name, best.entry


def _accelerators(
    request: Request, entry: Entry, function: PublishedLayout | None, platform: PlatformConfig
) -> tuple[str, list[int]]:
    """The profile of the platform, and the counts to try in order: published ones, then one node and more."""
    layouts = [function] if function else entry.layouts
    asked = request.accelerator
    if asked is None:
        published = {each for layout in layouts for each in layout.accelerators}
        fitting = [
            name for name, profile in platform.accelerators.items() if profile.known_as(name) in published
        ]
        if fitting and platform.default_accelerator not in fitting:
            asked = fitting[0]
    picked = select_accelerator(AcceleratorSpec(type=asked, count=request.gpus or 1), platform)
    if isinstance(picked, FieldError):
        raise InvalidRecipeError([FieldError("--accelerator", picked.message, picked.fix)])
    name, profile = picked
    if request.gpus is not None:
        return name, [request.gpus]
    hardware = profile.known_as(name)
    counts = sorted({layout.count for layout in layouts if hardware in layout.accelerators})
    return name, [*counts, *(profile.per_node * 2**k for k in range(_DOUBLINGS))]


def _is_power_of_two(number: int) -> bool:
    return number & (number - 1) == 0


def _unusual(entry: Entry, hardware: str, count: int) -> str | None:
    """That the count is no published one, nor twice, four times or more of one; None where it is."""
    counts = sorted({layout.count for layout in entry.layouts if hardware in layout.accelerators})
    if any(count % each == 0 and _is_power_of_two(count // each) for each in counts or [1]):
        return None
    published = ", ".join(map(str, counts)) or "none"
    return f"No layout is published for {count} x {hardware} (published: {published}); this one is planned."
