"""What became of each run of `make bench-fleet`: a row of its CSV file."""

import csv
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from megatron_operator.api.times import seconds
from megatron_operator.lifecycle.ledger_weeks import TICKS
from megatron_operator.lifecycle.run_account import RunAccount, run_account

from bench.fleet_trainer import FleetTime, Trainer, fleet_time
from bench.wall_time import Scale
from testkit.api_server import Object


@dataclass(frozen=True, slots=True)
class RunTimes:
    """The times of a run that has ended, by the clock."""

    wall: float
    """Seconds from the recipe's creation to the end, as recipe and job have them."""
    account: RunAccount
    """The operator's own."""
    reported_after: float
    """Seconds from the job's end until the status reports the run's."""

    @property
    def ledger(self) -> float:
        """Seconds of all categories of the ledger."""
        return sum(self.account.account.ticks.values()) / TICKS

    @property
    def difference(self) -> float:
        """Seconds that the ledger has too many or too few."""
        return abs(self.ledger - self.wall)


def run_times(recipe: Object, job: Object | None) -> RunTimes | None:
    """The times of a run; None before its end.

    A run ends when its job is complete, and one without such a job with its condition.
    """
    reported = _ended_at(recipe)
    account = None if reported is None else run_account(recipe, reported, None)
    if reported is None or account is None:
        return None
    ended = seconds(((job or {}).get("status") or {}).get("completionTime")) or reported
    created = seconds(recipe["metadata"]["creationTimestamp"]) or 0.0
    return RunTimes(ended - created, account, reported - ended)


def rows(
    trainers: Iterable[Trainer], recipes: Mapping[str, Object], jobs: Mapping[str, Object]
) -> list[dict[str, Any]]:
    """A row for each run, by name. Hours are those of the fleet's clock, seconds those of the clock."""
    found = []
    for trainer in sorted(trainers, key=lambda each: each.plan.name):
        name, time = trainer.plan.name, fleet_time(trainer, Scale())
        recipe = recipes.get(name) or {}
        times = run_times(recipe, jobs.get(name)) if recipe else None
        status = recipe.get("status") or {}
        row: dict[str, Any] = {
            "run": name,
            "class": trainer.plan.kind,
            "nodes": trainer.plan.nodes,
            "phase": status.get("phase") or "",
            "interruptions": len(trainer.interruptions),
            "restarts": (status.get("recovery") or {}).get("restarts", 0),
            "goodput": f"{time.goodput:.5f}",
            "queued_hours": f"{trainer.times.queued * trainer.factor / 3600:.2f}",
        }
        row |= {f"{each.name}_hours": f"{getattr(time, each.name):.3f}" for each in fields(FleetTime)}
        row["wall_seconds"] = "" if times is None else f"{times.wall:.1f}"
        row["ledger_seconds"] = "" if times is None else f"{times.ledger:.2f}"
        row["reported_after_seconds"] = "" if times is None else f"{times.reported_after:.1f}"
        found.append(row)
    return found


def write_csv(path: Path, found: list[dict[str, Any]]) -> None:
    """Write the rows with a header."""
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(found[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(found)


def _ended_at(recipe: Object) -> float | None:
    for each in (recipe.get("status") or {}).get("conditions") or []:
        if each["type"] in ("Succeeded", "Failed") and each["status"] == "True":
            return seconds(each["lastTransitionTime"])
    return None
