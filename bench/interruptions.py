"""Interruptions of the pre-training of Llama 3 405B, as faults of a simulated run.

Source: The Llama 3 Herd of Models (arXiv:2407.21783), section 3.3.4 and table 5: 54 days on 16,384 H100, 466
interruptions, 47 of them planned, effective training time over 90 %.
"""

import random
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

DAYS: Final = 54
PER_POD: Final = 8
"""Accelerators of a node: 2,048 pods are 16,384."""
INTERRUPTIONS: Final = 466
PUBLISHED_GOODPUT: Final = 0.90
"""At least."""


class Effect(StrEnum):
    """Effect of a cause on the run. The mapping from causes is an assumption: the paper has none."""

    RANK = "rank"
    """A rank dies and can restart in place."""
    ACCELERATOR = "accelerator"
    """A rank dies, again at each start on the node until the node is repaired."""
    NODE = "node"
    """The node is lost."""
    HANG = "hang"
    """A collective does not return."""
    DRAIN = "drain"
    """A node is drained, with a grace period."""


@dataclass(frozen=True, slots=True)
class Cause:
    """A row of table 5."""

    component: str
    count: int
    effect: Effect


UNEXPECTED: Final = (
    Cause("Faulty GPU", 148, Effect.ACCELERATOR),
    Cause("GPU HBM3 Memory", 72, Effect.ACCELERATOR),
    Cause("Software Bug", 54, Effect.RANK),
    Cause("Network Switch/Cable", 35, Effect.HANG),
    Cause("Host Maintenance", 32, Effect.NODE),
    Cause("GPU SRAM Memory", 19, Effect.RANK),
    Cause("GPU System Processor", 17, Effect.ACCELERATOR),
    Cause("NIC", 7, Effect.NODE),
    Cause("NCCL Watchdog Timeouts", 7, Effect.HANG),
    Cause("Silent Data Corruption", 6, Effect.ACCELERATOR),
    Cause("GPU Thermal Interface + Sensor", 6, Effect.ACCELERATOR),
    Cause("SSD", 3, Effect.NODE),
    Cause("Power Supply", 3, Effect.NODE),
    Cause("Server Chassis", 2, Effect.NODE),
    Cause("IO Expansion Board", 2, Effect.NODE),
    Cause("Dependency", 2, Effect.RANK),
    Cause("CPU", 2, Effect.NODE),
    Cause("System Memory", 2, Effect.NODE),
)
PLANNED: Final = Cause("planned: firmware, configuration", 47, Effect.DRAIN)


@dataclass(frozen=True, slots=True)
class Fault:
    """One interruption: when, in seconds since the start, and which pod it hits."""

    time: float
    pod: int
    cause: Cause


def interruptions(seed: int, pods: int, seconds: float) -> list[Fault]:
    """All 466, at random times over the run (a Poisson process, given its count), in order."""
    chance = random.Random(seed)
    causes = [cause for cause in (*UNEXPECTED, PLANNED) for _ in range(cause.count)]
    chance.shuffle(causes)
    times = sorted(chance.uniform(0.0, seconds) for _ in causes)
    return [Fault(time, chance.randrange(pods), cause) for time, cause in zip(times, causes, strict=True)]
