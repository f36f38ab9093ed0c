"""The ledgers of many runs added up by namespace, for people and programs."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from megatron_operator.api.times import timestamp
from megatron_operator.cli.deleted_runs import UNKNOWN, DeletedRuns
from megatron_operator.lifecycle.ledger_weeks import TICKS
from megatron_operator.lifecycle.run_account import RunAccount, run_account
from megatron_operator.lifecycle.time_ledger import USEFUL, by_category
from megatron_operator.lifecycle.usage_records import NamespaceUse

MAX_NAMES: Final = 20
"""Number of runs without a ledger that a sentence names."""
_HOUR: Final = 3600.0


@dataclass(slots=True)
class _Sum:
    """Times in hundredths of a second, so that nothing is rounded before the end."""

    runs: int = 0
    ticks: dict[str, int] = field(default_factory=dict)
    accelerator_ticks: dict[str, int] = field(default_factory=dict)
    cost: float | None = None
    unpriced_ticks: int = 0
    """Accelerator time of runs without a price."""
    deleted_runs: int = 0
    deleted_ticks: int = 0
    """Accelerator time of deleted runs."""

    def add(self, run: RunAccount) -> None:
        self.runs += 1
        self._add_times(run.account.ticks, run.account.accelerator_ticks)
        held = run.account.held
        if run.price is None:
            self.unpriced_ticks += held
        else:
            self.cost = (self.cost or 0.0) + held / TICKS / _HOUR * run.price

    def add_deleted(self, use: NamespaceUse, price: float | None) -> None:
        self.runs += use.runs
        self.deleted_runs += use.runs
        held = {name: round(value * TICKS) for name, value in use.accelerator_seconds.items()}
        self._add_times({name: round(value * TICKS) for name, value in use.seconds.items()}, held)
        self.deleted_ticks += sum(held.values())
        if price is not None:
            self.cost = (self.cost or 0.0) + sum(held.values()) / TICKS / _HOUR * price
            return
        self.unpriced_ticks += round(use.unpriced * TICKS)
        if use.cost is not None:
            self.cost = (self.cost or 0.0) + use.cost

    def _add_times(self, ticks: dict[str, int], accelerator_ticks: dict[str, int]) -> None:
        for whole, part in ((self.ticks, ticks), (self.accelerator_ticks, accelerator_ticks)):
            for name, value in part.items():
                whole[name] = whole.get(name, 0) + value

    def entry(self) -> dict[str, Any]:
        seconds, held = by_category(self.ticks), by_category(self.accelerator_ticks)
        whole = sum(self.accelerator_ticks.values())
        lost = sum(ticks for name, ticks in self.accelerator_ticks.items() if name not in USEFUL)
        return {
            "runs": self.runs,
            "seconds": sum(self.ticks.values()) / TICKS,
            "gpuHours": _hours(whole),
            "lostGpuHours": _hours(lost),
            "lostShare": round(lost / whole, 6) if whole else 0.0,
            "cost": None if self.cost is None else round(self.cost, 2),
            "unpricedGpuHours": _hours(self.unpriced_ticks),
            "deletedRuns": self.deleted_runs,
            "deletedGpuHours": _hours(self.deleted_ticks),
            "categories": [
                {"category": name, "seconds": value, "gpuHours": round(held.get(name, 0.0) / _HOUR, 4)}
                for name, value in seconds.items()
                if value
            ],
        }


def fleet_ledger(
    recipes: Sequence[dict[str, Any]], now: float, price: float | None, deleted: DeletedRuns = UNKNOWN
) -> dict[str, Any]:
    """Seconds, accelerator-hours and cost of all runs since their creation, by namespace and in total.

    Each run counts as in `run_ledger` with the same arguments. Runs without a ledger are named in
    `withoutLedger`; `unpricedGpuHours` are those of runs whose price is not known, which `cost` lacks.
    `deletedRuns` and `deletedGpuHours` are parts of `runs` and `gpuHours`.
    """
    sums: dict[str, _Sum] = {}
    total, without = _Sum(), []
    for recipe in recipes:
        namespace, name = recipe["metadata"]["namespace"], recipe["metadata"]["name"]
        run = run_account(recipe, now, price)
        if run is None:
            without.append(f"{namespace}/{name}")
            continue
        sums.setdefault(namespace, _Sum()).add(run)
        total.add(run)
    for namespace, use in deleted.by_namespace.items():
        sums.setdefault(namespace, _Sum()).add_deleted(use, price)
        total.add_deleted(use, price)
    return {
        "until": timestamp(now),
        "namespaces": [{"namespace": name} | each.entry() for name, each in sorted(sums.items())],
        "total": total.entry(),
        "withoutLedger": sorted(without),
        "notCounted": deleted.not_counted,
    }


def left_out(found: dict[str, Any]) -> list[str]:
    """Sentences about what the result of `fleet_ledger` or `weekly_ledger` does not include."""
    sums = [found["total"]] if "total" in found else found["weeks"]
    notes, unpriced = [], sum(each["unpricedGpuHours"] for each in sums)
    if unpriced and any(each["cost"] is not None for each in sums):
        notes.append(f"Without a price, so not in the cost: {unpriced:,.1f} GPU hours.")
    if without := found["withoutLedger"]:
        shown = ", ".join(without[:MAX_NAMES])
        more = f" and {len(without) - MAX_NAMES:,} more" if len(without) > MAX_NAMES else ""
        notes.append(f"Without a ledger yet: {shown}{more}.")
    return [*notes, *([] if found["notCounted"] is None else [found["notCounted"]])]


def _hours(ticks: int) -> float:
    return round(ticks / TICKS / _HOUR, 4)
