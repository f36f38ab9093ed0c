"""What the templates show of a run, from its status: plain values, which the templates escape."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from markupsafe import Markup

from megatron_operator.api.recovery_status import Incident, LostSeconds
from megatron_operator.api.status import Evaluation, MegatronRecipeStatus, MemoryPerGpu
from megatron_operator.api.times import seconds
from megatron_operator.cli.attention import attention
from megatron_operator.cli.deleted_runs import DeletedRuns
from megatron_operator.cli.fleet_ledger import fleet_ledger, left_out
from megatron_operator.cli.run_ledger import run_ledger
from megatron_operator.cli.run_status import is_outdated
from megatron_operator.cli.timeline import KINDS, format_duration, incident_cost, timeline
from megatron_operator.cli.weekly_ledger import EARLIER, weekly_ledger
from megatron_operator.lifecycle.status_reading import read_status
from megatron_operator.ui.charts import Line, Mark, Part, bar, line_chart, short
from megatron_operator.ui.history import RunHistory
from megatron_operator.ui.points import Point, peak_tflops
from megatron_operator.ui.run_list import age, row, utc
from megatron_operator.ui.runs import RunLogs

Object = dict[str, Any]
MAX_EVENTS: Final = 500
"""Entries of a timeline, the newest."""
_GIB: Final = 2**30
GLYPHS: Final = {
    "Training": "▶", "Evaluating": "▶", "Recovering": "▲", "Failed": "✕", "Refused": "✕",
    "Succeeded": "✓", "Suspended": "‖",
}  # fmt: skip
"""A sign for each phase beside its name, so that colour is not needed; others have `…`."""
_TITLES: Final = (
    ("lm_loss", "Loss", ""),
    ("learning_rate", "Learning rate", ""),
    ("tokens_per_second", "Tokens per second", ""),
    ("mfu", "MFU", ""),
)


@dataclass(frozen=True, slots=True)
class Comparison:
    """One figure of plan against reality."""

    name: str
    planned: str
    measured: str
    ratio: str


@dataclass(frozen=True, slots=True)
class Chart:
    """A chart with the values that it is drawn from."""

    title: str
    svg: Markup
    table: tuple[tuple[str, ...], ...]
    """Iteration and value of each run, at most 20 rows."""
    validation: tuple[tuple[str, str, bool], ...] = ()
    """Iteration and loss of the evaluations that are drawn, and whether it is the lowest."""


@dataclass(frozen=True, slots=True)
class Interruption:
    """An incident with what it cost by phase."""

    number: int
    time: str
    kind: str
    cause: str
    cost: str
    bar: Markup
    phases: tuple[tuple[str, str], ...]


def checkpoints(history: RunHistory) -> list[tuple[str, str]]:
    """Iteration and time of the newest complete checkpoints that were seen, newest first."""
    return [(f"{each:,}", utc(time)) for each, time in reversed(history.checkpoints[-20:])]


def facts(recipe: Object, now: float, *, ago: str = "ago") -> list[tuple[str, str]]:
    """The first lines of a run's page; `now`, in Unix seconds, and `ago` are as for `run_list.row`."""
    status, one = read_status(recipe.get("status"))[0], row(recipe, now, ago=ago)
    progress, recovery, plan = status.progress, status.recovery, status.plan
    found = [("Recipe", one.recipe), ("Progress", one.iteration)]
    if progress is not None and progress.lm_loss is not None:
        found.append(("Loss", one.loss))
    if progress is not None and progress.tokens_per_second is not None:
        size = 0 if plan is None else plan.world_size
        each = f" ({progress.tokens_per_second / size:,.0f} per accelerator)" if size else ""
        found.append(("Tokens/s", f"{progress.tokens_per_second:,.0f}{each}"))
    if one.eta != "–" and progress is not None:
        found.append(("End", f"{one.eta}, {utc(progress.eta)}"))
    if (checkpoint := status.checkpoint) is not None and checkpoint.iteration is not None:
        saved = seconds(checkpoint.time)
        since = f", {age(saved, now, ago)}" if saved is not None else ""
        found.append(("Newest checkpoint", f"iteration {checkpoint.iteration:,}{since}"))
    if recovery is not None:
        inside = f", and {recovery.rank_restarts:,} of ranks inside pods" if recovery.rank_restarts else ""
        found.append(("Restarts", f"{recovery.restarts:,}{inside}"))
        if recovery.goodput is not None:
            found.append(("Goodput", f"{recovery.goodput:.1%} of wall time since the first start"))
        if recovery.elastic is not None:
            found.append(("Resized", f"{recovery.elastic.count} accelerators: {recovery.elastic.reason}"))
        if recovery.nodes_avoided:
            found.append(("Avoided nodes", ", ".join(recovery.nodes_avoided)))
    if is_outdated(recipe):
        found.append(("Note", "the newest edit of the recipe is not observed yet"))
    return found


def charts(
    runs: Sequence[tuple[str, Sequence[Point]]],
    incidents: Sequence[Incident] = (),
    status: MegatronRecipeStatus | None = None,
) -> list[Chart]:
    """Loss, learning rate, tokens/s and MFU of one run or of two; those without a value are left out.

    `status` is that of one run: its evaluations are drawn beside the loss.
    """
    marks = [
        Mark(
            each.iteration,
            str(each.number),
            f"incident {each.number} at iteration {each.iteration}: {each.cause}",
        )
        for each in incidents
        if each.iteration is not None
    ]
    expected = None if status is None or status.plan is None else status.plan.expected
    found = []
    for attribute, title, unit in _TITLES:
        percent = attribute == "mfu"
        pairs = [
            tuple(
                (float(point.iteration), float(getattr(point, attribute)))
                for point in points
                if getattr(point, attribute) is not None
            )
            for _, points in runs
        ]
        planned = None
        if expected is not None and status is not None and status.plan is not None:
            rate = expected.tokens_per_second_per_gpu * status.plan.world_size
            planned = {"tokens_per_second": rate, "mfu": expected.mfu or None}.get(attribute)
        lines = [Line(name, each) for (name, _), each in zip(runs, pairs, strict=True)]
        evaluations = _evaluations(status) if attribute == "lm_loss" else ()
        if evaluations:
            drawn = tuple((float(each.iteration), each.loss) for each in evaluations)
            lines = [Line("training", pairs[0]), Line("validation", drawn)]
        if svg := line_chart(title, unit, lines, marks, expected=planned, percent=percent):
            found.append(Chart(title, svg, _values(pairs, percent=percent), _losses(status, evaluations)))
    return found


def _evaluations(status: MegatronRecipeStatus | None) -> Sequence[Evaluation]:
    validation = None if status is None else status.validation
    return () if validation is None else validation.evaluations or ()


def _losses(
    status: MegatronRecipeStatus | None, evaluations: Sequence[Evaluation]
) -> tuple[tuple[str, str, bool], ...]:
    best = None if status is None or status.validation is None else status.validation.best_iteration
    return tuple((f"{each.iteration:,}", f"{each.loss:.5g}", each.iteration == best) for each in evaluations)


def plan_against_reality(status: MegatronRecipeStatus, logs: RunLogs) -> list[Comparison]:
    """Predicted and measured figures; none without a plan."""
    plan, progress = status.plan, status.progress
    if plan is None:
        return []
    found = []
    if (memory := plan.memory_per_gpu) is not None:
        found.append(_memory(memory, status, logs))
    if (expected := plan.expected) is not None:
        step = None if progress is None else progress.step_seconds
        speed = None if progress is None else progress.tokens_per_second
        each = None if speed is None else speed / max(1, plan.world_size)
        work = None if progress is None else progress.tflops_per_gpu
        peak = peak_tflops(plan)
        low, high = expected.tokens_per_second_per_gpu_low, expected.tokens_per_second_per_gpu_high
        within = f" ({low:,.0f} to {high:,.0f})" if low is not None and high is not None else ""
        rate = expected.tokens_per_second_per_gpu
        found += [
            _comparison("Seconds per iteration", expected.step_seconds, step, ".3g"),
            Comparison(
                "Tokens/s per accelerator", f"{rate:,.0f}{within}", _or_none(each, ",.0f"), _ratio(each, rate)
            ),
            _comparison("TFLOP/s per accelerator", expected.tflops_per_gpu, work, ",.0f"),
        ]
        if peak is not None:
            found.append(_comparison("MFU", expected.mfu, None if work is None else work / peak, ".1%"))
    return found


def _memory(planned: MemoryPerGpu, status: MegatronRecipeStatus, logs: RunLogs) -> Comparison:
    """Planned memory beside what the fullest rank has reserved.

    Pods of version 0.2 report none: then what Megatron prints, in the log that was read, of the last stage.
    """
    name, room = "Memory of the fullest accelerator", ""
    if planned.capacity:
        room = f" of {planned.capacity / _GIB:.0f}"
    predicted = f"{planned.total / _GIB:.1f}{room} GiB"
    stages = 1 if status.plan is None else status.plan.pipeline_model_parallel_size
    if status.memory is not None:
        fullest = status.memory.fullest
        measured = fullest.bytes / _GIB
        of_stage = f" of stage {fullest.stage}" if stages > 1 else ""
        text = f"{measured:.1f} GiB reserved by rank {fullest.rank}{of_stage}"
        return Comparison(name, predicted, text, _ratio(measured, planned.total / _GIB))
    if logs.memory is None:
        return Comparison(name, predicted, "not in the log that was read", _ratio(None, planned.total / _GIB))
    measured = logs.memory / _GIB
    text = f"{measured:.1f} GiB reserved" + (" by the last stage" if stages > 1 else "")
    return Comparison(name, predicted, text, _ratio(None if stages > 1 else measured, planned.total / _GIB))


def interruptions(status: MegatronRecipeStatus) -> list[Interruption]:
    """The incidents, newest first; their bars have one scale."""
    history = [] if status.recovery is None else status.recovery.history
    lost = {each.number: _phases(each.seconds) for each in history}
    whole = max((sum(part.value for part in parts) for parts in lost.values()), default=0.0)
    return [
        Interruption(
            each.number,
            utc(each.time),
            KINDS.get(each.kind, each.kind),
            each.cause,
            incident_cost(each.wire()),
            bar(lost[each.number], whole, f"incident {each.number}: seconds lost by phase"),
            tuple((part.name, format_duration(part.value)) for part in lost[each.number]),
        )
        for each in reversed(history)
    ]


def events(recipe: Object, phases: Sequence[tuple[str, str]] = ()) -> list[tuple[str, str, str]]:
    """Time, reason and message of changes of conditions and phases, and of incidents, newest first.

    `phases` are times, RFC 3339, and phases.
    """
    known = read_status(recipe.get("status"))[0]
    readable = recipe | {"status": known.wire()}
    found = [(each.time, each.reason, each.message) for each in timeline(readable, [])]
    found += [(time, "Phase", phase) for time, phase in phases]
    found.sort(key=lambda each: seconds(each[0]) or 0.0)
    return [(utc(time), reason, message) for time, reason, message in reversed(found[-MAX_EVENTS:])]


def ledger(recipe: Object, now: float) -> Object | None:
    """Where the time of the run went, with a bar for all; None before it has a ledger."""
    found = run_ledger(recipe, now, None)
    if found is None:
        return None
    parts = [Part(each["category"], each["seconds"]) for each in found["categories"]]
    rows = [
        (
            each["category"],
            format_duration(each["seconds"]),
            f"{each['share']:.1%}",
            f"{each['gpuHours']:,.1f}",
            None if each["cost"] is None else f"{each['cost']:,.2f}",
        )
        for each in [*found["categories"], found["total"] | {"category": "total"}]
    ]
    losses = [
        (each["category"], format_duration(each["seconds"]), each["node"] or "–", each["cause"] or "–")
        for each in found["losses"]
    ]
    picture = bar(parts, found["total"]["seconds"], "share of each category in the time since creation")
    return {"bar": picture, "rows": rows, "losses": losses, "priced": found["price"] is not None}


def fleet(recipes: Sequence[Object], now: float, deleted: DeletedRuns) -> Object:
    """GPU hours and cost of all these runs, by namespace, week and category, and what is left out."""
    found = fleet_ledger(recipes, now, None, deleted)
    total, some_deleted = found["total"], found["total"]["deletedRuns"] > 0
    of_all = [total | {"namespace": "total"}] if total["runs"] else []
    priced = total["cost"] is not None
    rows = [
        (each["namespace"], _amounts(each, priced=priced, deleted=some_deleted))
        for each in [*found["namespaces"], *of_all]
    ]
    weeks = [
        (
            "Earlier" if each["week"] == EARLIER else f"Week of {each['week']}",
            each["namespace"],
            _amounts(each, priced=priced, deleted=some_deleted),
        )
        for each in weekly_ledger(recipes, now, None, deleted)["weeks"]
    ]
    categories = [
        (each["category"], f"{each['gpuHours']:,.1f}") for each in total["categories"] if each["gpuHours"]
    ]
    return {
        "rows": rows,
        "weeks": weeks,
        "categories": categories,
        "priced": priced,
        "deleted": some_deleted,
        "notes": left_out(found),
    }


def _amounts(entry: Object, *, priced: bool, deleted: bool) -> list[str]:
    """Runs, GPU hours, lost ones, their share, the cost and the GPU hours of deleted runs.

    The last two where any row has them.
    """
    cost = "–" if entry["cost"] is None else f"{entry['cost']:,.2f}"
    return [
        f"{entry['runs']:,}",
        f"{entry['gpuHours']:,.1f}",
        f"{entry['lostGpuHours']:,.1f}",
        f"{entry['lostShare']:.1%}",
        *([cost] if priced else []),
        *([f"{entry['deletedGpuHours']:,.1f}"] if deleted else []),
    ]


def status_of(recipe: Object) -> MegatronRecipeStatus:
    """The status of a recipe, as far as this version can read it."""
    return read_status(recipe.get("status"))[0]


def problems(status: MegatronRecipeStatus) -> list[str]:
    """What needs attention, as in `megatron status`: why a run does not train, slow ranks, warnings."""
    return [text for _, text in attention(status.wire())]


def _phases(lost: LostSeconds) -> list[Part]:
    return [Part(name, value) for name in LostSeconds.model_fields if (value := getattr(lost, name))]


def _values(pairs: Sequence[Sequence[tuple[float, float]]], *, percent: bool) -> tuple[tuple[str, ...], ...]:
    """Up to 20 iterations, evenly spread, with the value of each run; `–` where a run has none."""
    maps = [dict(each) for each in pairs]
    iterations = sorted(set().union(*maps))
    stride = max(1, -(-len(iterations) // 20))
    # Counted from the end, so that the newest one is there.
    chosen = sorted(iterations[::-1][::stride])
    return tuple(
        (f"{x:,.0f}", *(short(each[x], percent=percent) if x in each else "–" for each in maps))
        for x in chosen
    )


def _comparison(name: str, planned: float, measured: float | None, form: str) -> Comparison:
    return Comparison(name, format(planned, form), _or_none(measured, form), _ratio(measured, planned))


def _or_none(value: float | None, form: str) -> str:
    return "not reported yet" if value is None else format(value, form)


def _ratio(measured: float | None, planned: float) -> str:
    return "–" if measured is None or not planned else f"{measured / planned:.2f}"
