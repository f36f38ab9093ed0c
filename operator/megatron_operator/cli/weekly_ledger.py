"""The ledgers of many runs added up by namespace and week, for people and programs."""

from collections.abc import Sequence
from typing import Any, Final

from megatron_operator.api.times import timestamp
from megatron_operator.cli.deleted_runs import UNKNOWN, DeletedRuns
from megatron_operator.lifecycle import usage_records
from megatron_operator.lifecycle.ledger_weeks import TICKS, WeekSum
from megatron_operator.lifecycle.run_account import run_account
from megatron_operator.lifecycle.time_ledger import USEFUL
from megatron_operator.lifecycle.usage_records import NamespaceUse

EARLIER: Final = "earlier"
"""Instead of a week: what was settled by a release that kept no weeks, or is older than the weeks kept."""
_HOUR: Final = 3600.0


class _Sum:
    """Accelerator time of one namespace in one week, in hundredths of a second."""

    def __init__(self) -> None:
        self.runs = self.ticks = self.lost = self.unpriced = 0
        self.deleted_runs = self.deleted_ticks = 0
        self.cost: float | None = None

    def add(self, of_run: WeekSum, price: float | None) -> None:
        self.runs += 1
        self.ticks += of_run.ticks
        self.lost += of_run.lost
        if price is None:
            self.unpriced += of_run.ticks
        else:
            self.cost = (self.cost or 0.0) + _hours(of_run.ticks) * price

    def add_deleted(self, deleted: usage_records.WeekSum, price: float | None) -> None:
        ticks = round(deleted.seconds * TICKS)
        self.runs += deleted.runs
        self.deleted_runs += deleted.runs
        self.ticks += ticks
        self.deleted_ticks += ticks
        self.lost += round(deleted.lost * TICKS)
        cost = deleted.cost if price is None else _hours(ticks) * price
        self.unpriced += round(deleted.unpriced * TICKS) if price is None else 0
        if cost is not None:
            self.cost = (self.cost or 0.0) + cost

    def entry(self) -> dict[str, Any]:
        return {
            "runs": self.runs,
            "gpuHours": round(_hours(self.ticks), 4),
            "lostGpuHours": round(_hours(self.lost), 4),
            "lostShare": round(self.lost / self.ticks, 6) if self.ticks else 0.0,
            "cost": None if self.cost is None else round(self.cost, 2),
            "unpricedGpuHours": round(_hours(self.unpriced), 4),
            "deletedRuns": self.deleted_runs,
            "deletedGpuHours": round(_hours(self.deleted_ticks), 4),
        }


def weekly_ledger(
    recipes: Sequence[dict[str, Any]], now: float, price: float | None, deleted: DeletedRuns = UNKNOWN
) -> dict[str, Any]:
    """Accelerator-hours and cost of runs by namespace and week, the newest week first.

    A week is named by the date of its Monday, UTC; EARLIER comes last. `now` is in seconds since the epoch,
    and `price` is that of an accelerator and hour; default that of each run's plan. A run counts in each week
    in which it held accelerators. Runs without a ledger are named in `withoutLedger`.
    """
    sums: dict[tuple[str, str], _Sum] = {}
    without = []
    for recipe in recipes:
        namespace, name = recipe["metadata"]["namespace"], recipe["metadata"]["name"]
        run = run_account(recipe, now, price)
        if run is None:
            without.append(f"{namespace}/{name}")
            continue
        weeks = dict(run.account.weeks)
        earlier = WeekSum(run.account.held - _total(weeks).ticks, run.account.held_lost - _total(weeks).lost)
        if earlier.ticks > 0:
            weeks[EARLIER] = earlier
        for week, of_run in weeks.items():
            sums.setdefault((week, namespace), _Sum()).add(of_run, run.price)
    for namespace, use in deleted.by_namespace.items():
        for week, of_deleted in _weeks_of(use).items():
            sums.setdefault((week, namespace), _Sum()).add_deleted(of_deleted, price)
    order = sorted(sums, key=lambda key: key[1])
    order.sort(key=lambda key: "" if key[0] == EARLIER else key[0], reverse=True)
    return {
        "until": timestamp(now),
        "weeks": [{"week": key[0], "namespace": key[1]} | sums[key].entry() for key in order],
        "withoutLedger": sorted(without),
        "notCounted": deleted.not_counted,
    }


def _total(weeks: dict[str, WeekSum]) -> WeekSum:
    return WeekSum(sum(each.ticks for each in weeks.values()), sum(each.lost for each in weeks.values()))


def _weeks_of(use: NamespaceUse) -> dict[str, usage_records.WeekSum]:
    """The weeks of deleted runs, with what none of them has as EARLIER."""
    found = dict(use.weeks)
    held = sum(use.accelerator_seconds.values()) - sum(each.seconds for each in found.values())
    if round(held * TICKS) > 0:
        wasted = sum(value for name, value in use.accelerator_seconds.items() if name not in USEFUL)
        costs = [each.cost for each in found.values() if each.cost is not None]
        found[EARLIER] = usage_records.WeekSum(
            0,
            held,
            wasted - sum(each.lost for each in found.values()),
            None if use.cost is None else use.cost - sum(costs),
            use.unpriced - sum(each.unpriced for each in found.values()),
        )
    return found


def _hours(ticks: int) -> float:
    return ticks / TICKS / _HOUR
