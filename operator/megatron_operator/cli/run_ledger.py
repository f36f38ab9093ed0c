"""The ledger of a run's time up to now, for people and programs."""

from typing import Any

from megatron_operator.api.times import timestamp
from megatron_operator.lifecycle.ledger_weeks import TICKS
from megatron_operator.lifecycle.run_account import run_account
from megatron_operator.lifecycle.time_ledger import MAX_LOSSES, by_category

_HOUR = 3600.0


def run_ledger(recipe: dict[str, Any], now: float, price: float | None) -> dict[str, Any] | None:
    """Seconds, accelerator-hours and cost by category, and losses by cause; None without a ledger.

    A run that is over ends with its last state; another one at `now`, seconds since the epoch. `price` is
    that of an accelerator and hour; default the one that the plan has of the platform.
    """
    result = run_account(recipe, now, price)
    if result is None:
        return None
    (found, until, price), metadata = result, recipe["metadata"]
    seconds, held = by_category(found.ticks), by_category(found.accelerator_ticks)
    whole = sum(found.ticks.values()) / TICKS
    hours = {name: value / _HOUR for name, value in held.items()}

    def entry(seconds: float, gpu_hours: float) -> dict[str, Any]:
        return {
            "seconds": seconds,
            "share": round(seconds / whole, 6) if whole else 0.0,
            "gpuHours": round(gpu_hours, 4),
            "cost": None if price is None else round(gpu_hours * price, 2),
        }

    return {
        "name": metadata["name"],
        "namespace": metadata["namespace"],
        "created": metadata["creationTimestamp"],
        "until": timestamp(until),
        "price": price,
        "total": entry(whole, sum(hours.values())),
        "categories": [
            {"category": name} | entry(value, hours.get(name, 0.0))
            for name, value in seconds.items()
            if value
        ],
        "losses": [each.model_dump() for each in found.largest_losses(MAX_LOSSES) if each.seconds],
    }
