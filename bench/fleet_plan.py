"""The fleet of `make bench-fleet`: which runs arrive when, and what fails in them, all of it from a seed.

Rates: Llama 3 405B had 466 interruptions in 54 days on 16,384 GPUs (`bench.interruptions`), one in 45,567
GPU-hours. ByteRobust's incidents (`bench.fleet_incidents`) are not published by GPU-hour, so the rate is
Llama 3's for both mixes.
"""

import random
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from bench.fleet_incidents import CAUSES
from bench.interruptions import DAYS, INTERRUPTIONS, PER_POD, PLANNED, UNEXPECTED, Cause, Effect

GPU_HOURS_BETWEEN: Final = DAYS * 24 * 2048 * PER_POD / INTERRUPTIONS
"""GPU-hours of training between two interruptions."""
LOAD: Final = 0.8
"""GPU-hours of all runs, over those that the fleet has."""
ARRIVAL: Final = 0.6
"""Share of the days within which runs arrive; a third of them is there from the start."""


class Injection(StrEnum):
    """What the bench does to a run."""

    RANK_DIES = "a rank dies, and restarts in its pod"
    POD_FAILS = "a pod ends with exit code 138"
    DEVICE_FAILS = "a device fails, until its node is repaired"
    NODE_DIES = "a node falls silent, until it is repaired"
    RANKS_HANG = "ranks hang, which the trainer finds"
    LAUNCHERS_HANG = "ranks and launchers hang, which the operator finds"
    POD_EVICTED = "a pod is evicted, and its node repaired"


_HOW: Final = {
    Effect.RANK: (Injection.RANK_DIES, Injection.POD_FAILS),
    Effect.ACCELERATOR: (Injection.DEVICE_FAILS,),
    Effect.NODE: (Injection.NODE_DIES,),
    Effect.HANG: (Injection.RANKS_HANG, Injection.RANKS_HANG, Injection.LAUNCHERS_HANG),
    Effect.DRAIN: (Injection.POD_EVICTED,),
}
"""Each of them is as likely. The papers have no such split: it is an assumption."""
MIXES: Final[dict[str, tuple[Cause, ...]]] = {
    "llama3": (*UNEXPECTED, PLANNED),
    "byterobust": CAUSES,
}
"""Name -> causes with their counts, which are their weights."""


@dataclass(frozen=True, slots=True)
class RunClass:
    """Runs of one kind."""

    name: str
    share: float
    """Share of the runs."""
    units: int
    """Nodes, in units: the largest power of two that is at most nodes / runs."""
    elastic: bool = False
    """Whether a quarter of the nodes is enough."""


CLASSES: Final = (
    RunClass("large", 0.1, 8),
    RunClass("medium", 0.3, 4),
    RunClass("small", 0.4, 1),
    RunClass("elastic", 0.2, 4, elastic=True),
)


@dataclass(frozen=True, slots=True)
class RunPlan:
    """One run of the fleet. Hours are those of the fleet, not of the bench."""

    name: str
    kind: str
    nodes: int
    least_nodes: int | None
    """None for a run that is not elastic."""
    hours: float
    """Training without interruption, on all of its nodes."""
    arrives: float
    """Hours after the beginning."""


@dataclass(frozen=True, slots=True)
class PlannedFault:
    """The next fault of a run."""

    gpu_hours: float
    """Of training by the run since its start, when it happens."""
    cause: str
    injection: Injection
    place: float
    """Which pod it hits: 0 is the first, 1 beyond the last."""


def plan_runs(runs: int, nodes: int, days: float, seed: int) -> list[RunPlan]:
    """The runs in the order of their arrival; their work is LOAD of what the fleet can do.

    Raises ValueError when the nodes are too few for the largest class.
    """
    unit = 1
    while unit * 2 <= nodes / runs:
        unit *= 2
    largest = max(each.units for each in CLASSES) * unit
    if largest > nodes:
        raise ValueError(f"{nodes} nodes have no room for a run of {largest}; use at least {largest} nodes")
    chance = random.Random(seed)
    kinds = [each for each in CLASSES for _ in range(max(1, round(each.share * runs)))][:runs]
    kinds += [CLASSES[2]] * (runs - len(kinds))
    chance.shuffle(kinds)
    lengths = [chance.uniform(0.2, 1.0) for _ in kinds]
    work = sum(kind.units * unit * length for kind, length in zip(kinds, lengths, strict=True))
    scale = min(LOAD * nodes * days * 24 / work, 0.5 * days * 24)
    planned = []
    for number, (kind, length) in enumerate(zip(kinds, lengths, strict=True)):
        count = kind.units * unit
        arrives = 0.0 if number % 3 == 0 else chance.uniform(0.0, ARRIVAL * days * 24)
        least = max(1, count // 4) if kind.elastic else None
        name = f"{kind.name}-{number}"
        planned.append(RunPlan(name, kind.name, count, least, length * scale, arrives))
    return sorted(planned, key=lambda each: each.arrives)


def faults(run: str, mix: str, rate: float, seed: int) -> Iterator[PlannedFault]:
    """The faults of a run, without end: a Poisson process over its GPU-hours.

    `rate` is in multiples of the published one, `mix` a name of MIXES.
    """
    chance = random.Random(f"{seed}/{run}")
    causes = MIXES[mix]
    weights = [cause.count for cause in causes]
    at = 0.0
    while True:
        at += chance.expovariate(rate / GPU_HOURS_BETWEEN)
        (cause,) = chance.choices(causes, weights)
        yield PlannedFault(at, cause.component, chance.choice(_HOW[cause.effect]), chance.random())
