"""The ledgers of many runs added up by namespace, for people and programs."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from megatron_operator.api.times import timestamp
from megatron_operator.cli.run_ledger import RunAccount, run_account
from megatron_operator.lifecycle.ledger_weeks import TICKS
from megatron_operator.lifecycle.time_ledger import USEFUL, by_category

DELETED: Final = "Runs that were deleted are not counted: the cluster no longer has their ledgers."
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

    def add(self, run: RunAccount) -> None:
        self.runs += 1
        for whole, part in (
            (self.ticks, run.account.ticks),
            (self.accelerator_ticks, run.account.accelerator_ticks),
        ):
            for name, ticks in part.items():
                whole[name] = whole.get(name, 0) + ticks
        held = run.account.held
        if run.price is None:
            self.unpriced_ticks += held
        else:
            self.cost = (self.cost or 0.0) + held / TICKS / _HOUR * run.price

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
            "categories": [
                {"category": name, "seconds": value, "gpuHours": round(held.get(name, 0.0) / _HOUR, 4)}
                for name, value in seconds.items()
                if value
            ],
        }


def fleet_ledger(recipes: Sequence[dict[str, Any]], now: float, price: float | None) -> dict[str, Any]:
    """Seconds, accelerator-hours and cost of all runs since their creation, by namespace and in total.

    Each run counts as in `run_ledger` with the same arguments. Runs without a ledger are named in
    `withoutLedger`; `unpricedGpuHours` are those of runs whose price is not known, which `cost` lacks.
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
    return {
        "until": timestamp(now),
        "namespaces": [{"namespace": name} | each.entry() for name, each in sorted(sums.items())],
        "total": total.entry(),
        "withoutLedger": sorted(without),
        "notCounted": DELETED,
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
    return [*notes, found["notCounted"]]


def _hours(ticks: int) -> float:
    return round(ticks / TICKS / _HOUR, 4)
