"""The list of runs, of the cluster or of the archive."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from megatron_operator.api.conditions import TRAINS, Phase
from megatron_operator.api.times import seconds, timestamp
from megatron_operator.cli.attention import reason_to_wait
from megatron_operator.cli.timeline import KINDS, format_duration
from megatron_operator.lifecycle.status_reading import read_status
from megatron_operator.ui.archive_reads import ArchivedRun, ArchivePage
from megatron_operator.ui.charts import short
from megatron_operator.ui.shown_runs import ShownRun

Object = dict[str, Any]
BEFORE_END: Final = "before the end"
"""Follows ages of a run that was deleted."""
PAGE_SIZE: Final = 100
"""Runs of one page of the list."""
_ORDER: Final = (
    Phase.RECOVERING, Phase.FAILED, Phase.REFUSED, Phase.TRAINING, Phase.EVALUATING, Phase.STARTING,
    Phase.IMPORTING, Phase.PREPARING, Phase.CHECKING, Phase.EXPORTING, Phase.QUEUED, Phase.PENDING,
    Phase.SUSPENDED, Phase.SUCCEEDED,
)  # fmt: skip
"""Phases in the list: what needs attention first."""


@dataclass(frozen=True, slots=True)
class Row:
    """A run in the list."""

    namespace: str
    name: str
    recipe: str
    phase: str
    accelerators: str
    iteration: str
    share: float | None
    """Share of the iterations that are done, 0 to 1."""
    loss: str
    speed: str
    eta: str
    incident: str
    waits: str | None = None
    """Why it does not train."""
    query: str = ""
    """Of its page's address; not empty for a deleted run."""
    deleted: str = ""
    """When that was noticed."""


@dataclass(frozen=True, slots=True)
class RunList:
    """A page of the list, and what can be filtered by."""

    rows: tuple[Row, ...]
    total: int
    """Number of runs on all pages."""
    page: int
    """Number of this page, from 1."""
    pages: int
    """Number of pages."""
    phases: tuple[tuple[str, int], ...]
    """Each phase and the number of its runs, whatever phase is chosen."""
    namespaces: tuple[str, ...]


def run_list(recipes: Sequence[Object], phase: str, text: str, page: int, now: float) -> RunList:
    """The runs whose namespace or name has `text`, of a phase (empty: all), those with trouble first.

    `page` counts from 1; a number beyond the last page is the last one. `now` is in Unix seconds.
    """
    found = [each for each in recipes if text.lower() in "/".join(_names(each)).lower()]
    phases = Counter(_phase(each) for each in found)
    chosen = [each for each in found if phase in ("", _phase(each))]
    order = {name: number for number, name in enumerate(_ORDER)}
    chosen.sort(key=lambda each: (order.get(_phase(each), len(order)), _names(each)))  # type: ignore[call-overload]
    pages = max(1, -(-len(chosen) // PAGE_SIZE))
    page = min(max(1, page), pages)
    shown = chosen[(page - 1) * PAGE_SIZE : page * PAGE_SIZE]
    names = tuple(sorted({_names(each)[0] for each in recipes}))
    rows = tuple(row(each, now) for each in shown)
    return RunList(rows, len(chosen), page, pages, tuple(sorted(phases.items())), names)


def row(recipe: Object, now: float, *, ago: str = "ago") -> Row:
    """A run in the list; `now` is in Unix seconds. `ago` follows ages: BEFORE_END where `now` is the end."""
    status, spec = read_status(recipe.get("status"))[0], recipe.get("spec") or {}
    progress, plan, recovery = status.progress, status.plan, status.recovery
    iteration, share = "–", None
    if progress is not None and progress.iteration is not None:
        iteration = f"{progress.iteration:,}"
        if progress.train_iters:
            iteration += f" of {progress.train_iters:,}"
            share = min(1.0, progress.iteration / progress.train_iters)
    end = seconds(progress.eta) if progress is not None and status.phase in TRAINS else None
    last = None if recovery is None else recovery.last_incident
    incident = "–"
    if last is not None:
        at = seconds(last.time)
        since = "" if at is None else f" {age(at, now, ago)}"
        incident = f"{KINDS.get(last.kind, last.kind)}{since}: {last.cause}"
    namespace, name = _names(recipe)
    return Row(
        namespace,
        name,
        str(spec.get("recipe") or "own model"),
        _phase(recipe),
        "–" if plan is None else f"{plan.world_size:,}",
        iteration,
        share,
        "–" if progress is None or progress.lm_loss is None else f"{progress.lm_loss:.4g}",
        "–" if progress is None or progress.tokens_per_second is None else short(progress.tokens_per_second),
        "–" if end is None else f"in {format_duration(max(0.0, end - now))}",
        incident,
        reason_to_wait(status.wire()),
    )


def deleted_list(found: ArchivePage, page: int, namespaces: Sequence[str]) -> RunList:
    """A page of the list of deleted runs, each as it was at its end."""
    rows = []
    for each in found.runs:
        query = ShownRun(each.recipe, each).query
        shown = row(each.recipe, each.until, ago=BEFORE_END)
        rows.append(replace(shown, query=query, deleted=utc(timestamp(each.deleted))))
    pages = max(1, -(-found.total // PAGE_SIZE))
    return RunList(tuple(rows), found.total, page, pages, (), tuple(namespaces))


def deletion(archived: ArchivedRun | None) -> tuple[str, str] | None:
    """When a deletion was noticed, and of when the newest state is; None for a run that exists."""
    if archived is None:
        return None
    return utc(timestamp(archived.deleted)), utc(timestamp(archived.seen))


def age(at: float, now: float, ago: str) -> str:
    """Time from `at` to `now`, in Unix seconds, followed by `ago`."""
    return f"{format_duration(max(0.0, now - at))} {ago}"


def utc(text: str | None) -> str:
    """RFC 3339 as people read it; `–` for None."""
    return (text or "").replace("T", " ").removesuffix("Z") + " UTC" if text else "–"


def _phase(recipe: Object) -> str:
    return str((recipe.get("status") or {}).get("phase") or "not reconciled yet")


def _names(recipe: Object) -> tuple[str, str]:
    metadata = recipe["metadata"]
    return str(metadata["namespace"]), str(metadata["name"])
