"""Goodput of a simulated pre-training of Llama 3 405B: `python -m bench.goodput`.

54 days on 16,384 accelerators with 466 interruptions of the published causes (`bench.interruptions`), against
the published effective training time of over 90 %. The operator's own times are measured (`--phases`, written
by `make bench-recovery`); other times of a run of that size are assumed, and each assumption is an option.
The second column is a plain PyTorchJob under the same assumptions.
"""

import argparse
from collections.abc import Iterable
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any, Final

import yaml
from megatron_operator.api.recipe import RecoverySpec

from bench.interruptions import (
    DAYS,
    PER_POD,
    PLANNED,
    PUBLISHED_GOODPUT,
    UNEXPECTED,
    Effect,
    Fault,
    interruptions,
)
from bench.simulated_run import SimulatedRun
from bench.wall_time import Clock, Parts, Phases, Scale

SYSTEM: Final = "operator"
"""Its name in the file of measured phases."""
PHASES: Final = Path(__file__).parent / "data" / "recovery_phases.yaml"
SECONDS: Final = DAYS * 86_400.0
COLLECTIVE_TIMEOUT: Final = 600.0
"""Seconds: Megatron's --distributed-timeout-minutes, ten by default."""
PERSISTENT: Final = frozenset({Effect.ACCELERATOR, Effect.NODE})


def phases_of(document: dict[str, Any]) -> Phases:
    """The measured seconds of this operator. Raises ValueError when the file has none."""
    faults = document["systems"].get(SYSTEM, {})
    rank, pod = faults.get("rank"), faults.get("pod")
    if not rank or not pod:
        raise ValueError(f"no median of {SYSTEM} for rank and pod; run make bench-recovery")
    return Phases(
        rank_detect=rank["detect"],
        rank_start=rank["start"],
        pod_schedule=pod["schedule"],
        pod_start=pod["start"],
    )


def plain_pytorchjob(
    scale: Scale, faults: Iterable[Fault], end: float, *, start: float, person: float
) -> Clock:
    """A PyTorchJob without this operator: other ranks wait for the collective timeout, then all pods restart.

    Pods restart on a broken node until a person removes it.

    Args:
        start: Seconds from the container's start until all pods have met.
        person: Seconds until a person has removed a broken node.
    """
    clock = Clock(scale, end)
    pending = sorted(faults, key=lambda fault: fault.time)
    while clock.now < end:
        clock.train(min(pending[0].time, end) if pending else end)
        while pending and clock.now >= pending[0].time:
            broken = pending.pop(0).cause.effect in PERSISTENT
            clock.fall_back()
            until = min(pending[0].time, end) if pending else end
            _ = (
                clock.spend("detect", COLLECTIVE_TIMEOUT, until)
                and clock.spend("schedule", person if broken else 0.0, until)
                and clock.spend("start", scale.image_start + start, until)
                and clock.spend("load", scale.groups + scale.load, until)
            )
    clock.save()
    return clock


def table(columns: dict[str, Parts]) -> list[str]:
    """Hours and share of the wall time by part, one column per system."""
    lines = [f"{'':12}" + "".join(f"{name:>24}" for name in columns)]
    for part in asdict(Parts()):
        cells = [(getattr(parts, part), parts.wall) for parts in columns.values()]
        lines.append(f"{part:12}" + "".join(f"{s / 3600:>14.1f} h {s / wall:>6.2%}" for s, wall in cells))
    goodputs = "".join(f"{parts.goodput:>24.2%}" for parts in columns.values())
    return [*lines, f"{'goodput':12}{goodputs}"]


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--phases", type=Path, default=PHASES)
    parser.add_argument("--person", type=float, default=1800.0, help="plain PyTorchJob: a person's seconds")
    for each in fields(Scale):
        option = f"--{each.name.replace('_', '-')}"
        parser.add_argument(option, type=type(each.default), default=each.default)
    options = parser.parse_args()
    scale = Scale(**{each.name: getattr(options, each.name) for each in fields(Scale)})
    document = yaml.safe_load(options.phases.read_text())
    try:
        phases = phases_of(document)
    except ValueError as error:
        parser.error(f"{options.phases}: {error}")
    faults = interruptions(options.seed, scale.pods, SECONDS)
    run = SimulatedRun(scale, phases, RecoverySpec(), SECONDS)
    operator = run.play(faults)
    plain = plain_pytorchjob(scale, faults, SECONDS, start=phases.pod_start, person=options.person)

    unexpected = sum(cause.count for cause in UNEXPECTED)
    print(f"{DAYS} days, {scale.pods * PER_POD:,} accelerators in {scale.pods} pods, seed {options.seed}:")
    print(f"{len(faults)} interruptions, {unexpected} unexpected and {PLANNED.count} planned")
    print(f"measured: {document['measured']['machine']}")
    print("  " + ", ".join(f"{name} {value:g} s" for name, value in asdict(phases).items()))
    print("assumed: " + ", ".join(f"{name} {value:g}" for name, value in asdict(scale).items()))
    print(f"plain PyTorchJob: collective time-out {COLLECTIVE_TIMEOUT:g} s, a person removes a broken node")
    print(f"  in {options.person:g} s, all else as above")
    print()
    print("\n".join(table({"this operator": operator.parts, "plain PyTorchJob": plain.parts})))
    print(f"{'published':12}{f'> {PUBLISHED_GOODPUT:.0%}':>24}  The Llama 3 Herd of Models, 3.3.4")
    print()
    print("decided: " + ", ".join(f"{name} {count}" for name, count in sorted(run.decisions.items())))
    kinds = run.recovery.restarts_by_kind.model_dump()
    print("incidents: " + ", ".join(f"{name} {count}" for name, count in kinds.items() if count))
    if run.failed is not None:
        print(f"failed after {operator.now / 86_400:.1f} days: {run.failed}")


if __name__ == "__main__":
    main()
