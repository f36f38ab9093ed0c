"""The account of a run's time, of its recipe."""

from typing import Any, NamedTuple

from megatron_operator.api.conditions import Phase
from megatron_operator.lifecycle.status_reading import read_status
from megatron_operator.lifecycle.time_ledger import Account, account, until_of


class RunAccount(NamedTuple):
    """All time of a run from its creation."""

    account: Account
    until: float
    """Seconds since the epoch."""
    price: float | None
    """Price of an accelerator and hour."""


def run_account(recipe: dict[str, Any], now: float, price: float | None) -> RunAccount | None:
    """The account of a recipe; None without a ledger.

    A run that is over ends with its last state; another one at `now`, seconds since the epoch. `price` is
    that of an accelerator and hour; default the one that the plan has of the platform.
    """
    status, _ = read_status(recipe.get("status"))
    ledger = status.ledger
    if ledger is None:
        return None
    if price is None and status.plan is not None:
        price = status.plan.price_per_gpu_hour
    ended = status.phase in (Phase.SUCCEEDED, Phase.FAILED)
    incidents = [] if status.recovery is None else status.recovery.history
    until = until_of(ledger, None if ended else now)
    return RunAccount(account(ledger, incidents, until), until, price)
