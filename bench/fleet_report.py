"""The tables of `make bench-fleet`."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, fields
from statistics import mean, median
from typing import Any, Final

from megatron_operator.api.times import seconds
from megatron_operator.cli.run_ledger import run_account
from megatron_operator.lifecycle.ledger_weeks import TICKS
from megatron_operator.lifecycle.time_ledger import CATEGORIES

from bench.fleet_trainer import FleetTime, Trainer, fleet_time
from bench.wall_time import Scale
from testkit.api_server import Object

MIB: Final = 2**20


@dataclass(slots=True)
class Measured:
    """What one run of the bench has found."""

    seconds: float
    """By the clock, from the first run's arrival to the end."""
    trainers: list[Trainer]
    recipes: dict[str, Object]
    reconciles: float
    failed_reconciles: float
    writes: int
    reads: int
    cores: float
    rss: int
    pods_left: list[str]
    """Pods that are active in the end."""
    errors: list[str]
    """Of the bench itself."""

    @property
    def stuck(self) -> dict[str, str]:
        """Run -> phase and condition, of those that have not ended."""
        return {
            name: f"{_status(each).get('phase')}: {_running(each)}"
            for name, each in sorted(self.recipes.items())
            if _status(each).get("phase") not in ("Succeeded", "Failed")
        }

    @property
    def failed(self) -> dict[str, str]:
        """Run -> why it has failed."""
        return {
            name: _condition(each, "Failed")
            for name, each in sorted(self.recipes.items())
            if _status(each).get("phase") == "Failed"
        }


def table(found: Measured) -> list[str]:
    """Lines of Markdown."""
    return [
        *_classes(found), "", *_lost(found), "", *_ledgers(found), "", *_interruptions(found), "",
        *_operator(found),
    ]  # fmt: skip


def _classes(found: Measured) -> Iterator[str]:
    yield "| class | runs | nodes | interruptions | queued, median / longest | goodput, mean / lowest |"
    yield "|---|---|---|---|---|---|"
    kinds = sorted({each.plan.kind for each in found.trainers})
    for kind in [*kinds, None]:
        of = [each for each in found.trainers if kind in (each.plan.kind, None)]
        times = [fleet_time(each, Scale()) for each in of]
        queued = [each.times.queued * each.factor / 3600 for each in of]
        goodputs = [each.goodput for each in times]
        nodes = str(of[0].plan.nodes) if kind else f"{sum(each.plan.nodes for each in of)}"
        faults = sum(len(each.interruptions) for each in of)
        waits = f"{median(queued):.1f} / {max(queued):.1f} h"
        shares = f"{mean(goodputs):.2%} / {min(goodputs):.2%}"
        yield f"| {kind or 'all'} | {len(of)} | {nodes} | {faults} | {waits} | {shares} |"


def _lost(found: Measured) -> Iterator[str]:
    """Node-hours by category on the fleet's clock."""
    yield "| fleet's clock, from a run's first start | node-hours | share |"
    yield "|---|---|---|"
    hours: Counter[str] = Counter()
    for trainer in found.trainers:
        time = fleet_time(trainer, Scale())
        for each in fields(FleetTime):
            hours[each.name] += getattr(time, each.name) * trainer.plan.nodes
    whole = sum(hours.values()) or 1.0
    for each in fields(FleetTime):
        yield f"| {each.name} | {hours[each.name]:,.1f} | {hours[each.name] / whole:.2%} |"


def _ledgers(found: Measured) -> Iterator[str]:
    """Seconds by category as the operator's own ledgers have them, by the clock."""
    yield "| operator's ledgers, by the clock | seconds of all runs |"
    yield "|---|---|"
    ticks: Counter[str] = Counter()
    worst = 0.0
    for recipe in found.recipes.values():
        ended = _ended_at(recipe)
        account = None if ended is None else run_account(recipe, ended, None)
        if account is None or ended is None:
            continue
        ticks.update(account.account.ticks)
        wall = ended - (seconds(recipe["metadata"]["creationTimestamp"]) or 0.0)
        worst = max(worst, abs(sum(account.account.ticks.values()) / TICKS - wall) / max(wall, 1.0))
    for category in CATEGORIES:
        if ticks[category]:
            yield f"| {category} | {ticks[category] / TICKS:,.0f} |"
    yield f"| largest difference from the wall clock of a run that has ended | {worst:.2%} |"


def _interruptions(found: Measured) -> Iterator[str]:
    yield "| interruption | number | until ranks met again, median / longest | ended by |"
    yield "|---|---|---|---|"
    all_of = [each for trainer in found.trainers for each in trainer.interruptions]
    for injection in sorted({each.fault.injection for each in all_of}):
        of = [each for each in all_of if each.fault.injection is injection]
        took = [each.ended - each.began for each in of if each.ended is not None]
        times = f"{median(took):.0f} / {max(took):.0f} s" if took else "-"
        ended = Counter(each.outcome for each in of)
        how = ", ".join(f"{outcome} {number}" for outcome, number in ended.most_common())
        yield f"| {injection} | {len(of)} | {times} | {how} |"
    kinds: Counter[str] = Counter()
    for recipe in found.recipes.values():
        kinds.update((_status(recipe).get("recovery") or {}).get("restartsByKind") or {})
    counted = ", ".join(f"{kind} {number}" for kind, number in kinds.most_common() if number)
    yield f"| as the statuses count them | {kinds.total()} | | {counted} |"


def _operator(found: Measured) -> Iterator[str]:
    rate = 1 / found.seconds
    yield "| operator | value |"
    yield "|---|---|"
    yield f"| seconds by the clock | {found.seconds:.0f} |"
    yield f"| reconciles | {found.reconciles:,.0f}, {found.reconciles * rate:.1f} a second |"
    yield f"| reconciles that failed and were retried | {found.failed_reconciles:,.0f} |"
    yield f"| reads / writes a second | {found.reads * rate:.1f} / {found.writes * rate:.1f} |"
    yield f"| CPU, memory | {found.cores:.2f} cores, {found.rss / MIB:.0f} MiB |"
    ended = len(found.recipes) - len(found.stuck)
    yield f"| runs that ended / failed | {ended} of {len(found.recipes)} / {len(found.failed)} |"
    for name, why in found.failed.items():
        yield f"| failed: {name} | {why} |"
    yield f"| stuck | {len(found.stuck) or 'nothing'} |"
    for name, why in found.stuck.items():
        yield f"| stuck: {name} | {why} |"
    yield f"| pods left | {', '.join(found.pods_left) or 'none'} |"
    for error in found.errors[:5]:
        yield f"| error of the bench | {error} |"


def _status(recipe: Object) -> Any:
    return recipe.get("status") or {}


def _condition(recipe: Object, kind: str) -> str:
    found = [each for each in _status(recipe).get("conditions") or [] if each["type"] == kind]
    return f"{found[0]['reason']}: {found[0]['message']}" if found else "-"


def _running(recipe: Object) -> str:
    return _condition(recipe, "Running")


def _ended_at(recipe: Object) -> float | None:
    for each in _status(recipe).get("conditions") or []:
        if each["type"] in ("Succeeded", "Failed") and each["status"] == "True":
            return seconds(each["lastTransitionTime"])
    return None
