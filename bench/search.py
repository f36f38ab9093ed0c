"""Layouts that the planner finds by itself against the published ones, by its own estimate.

`python -m bench.search` takes the ten largest pretraining functions of Megatron-Bridge that are planned as
published, `--all` every one: those with most accelerators, then with most parameters. For each it prints the
step time that the planner predicts for the published layout and for the layout that it finds for the same
model, batch, precision and switches, and how much of it is the exchange of tokens between experts. A longer
step means that the search misses a layout that is known to work. A shorter one is not necessarily an
improvement: the published layouts were chosen by measurements, the others by the model, whose error is in
docs/planner.md.

Layouts of models with experts were chosen for runs whose exchange is deduplicated and overlaps computation.
These functions are compared a second time with both switches, for the published layout and for the search.
"""

import argparse
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any

from megatron_operator import catalog
from megatron_operator.api.errors import InvalidRecipeError
from megatron_operator.api.parallel_dims import ParallelDims
from megatron_operator.catalog import PublishedLayout
from megatron_operator.planner.checks.flag_requirements import EXPERT_OVERLAP
from megatron_operator.planner.estimate import hardware
from megatron_operator.planner.estimate.step_time import step_time
from megatron_operator.planner.estimate.workload import Workload
from megatron_operator.planner.plan import search

from bench.planned import planned

RUNS = 10
WITHIN = 0.1
"""A longer step than this is a layout that the search misses."""
OVERLAPPED: dict[str, Any] = {
    "model": {"moeTokenDispatcherType": "flex"},
    "megatronArgs": {EXPERT_OVERLAP: True},
}
"""Settings with which the exchange of tokens between experts takes least: those of the measured run of
DeepSeek-V3 on 1,024 H100."""


@dataclass(frozen=True, slots=True)
class Found:
    """A published layout and the one that the search finds, with predicted seconds of a step."""

    function: str
    parameters: int
    published: str
    published_seconds: float
    published_exchange: float
    """Seconds of a step in which experts' exchange is visible."""
    searched: str
    searched_seconds: float
    searched_exchange: float
    cpu_seconds: float
    """Processor time of the search."""

    @property
    def longer(self) -> float:
        """Predicted step of the search's layout over that of the published one, less 1."""
        return self.searched_seconds / self.published_seconds - 1


def found(function: PublishedLayout, settings: Mapping[str, Any] | None = None) -> Found | None:
    """The comparison for one function, with `settings` of the recipe beside it.

    None where its layout is refused or not used.
    """
    try:
        run = planned(function, ("deepep", "hybridep") if settings else (), settings)
    except InvalidRecipeError:
        return None
    expected = run.plan.expected
    on = hardware.of_profile(run.resolved.accelerator_type, run.resolved.profile)
    if run.resolved.layout is None or expected is None or on is None:
        return None
    began = time.process_time()
    best = search(run.resolved).best
    took = time.process_time() - began
    assert best is not None, "a search without a candidate raises"
    dims = replace(ParallelDims.of_plan(run.plan), vp=run.plan.virtual_pipeline_model_parallel_size or 1)
    return Found(
        function=str(function.function),
        parameters=run.plan.parameters or 0,
        published=dims.describe(),
        published_seconds=expected.step_seconds,
        published_exchange=step_time(Workload.of(run.resolved, run.plan), on).expert,
        searched=best.dims.describe(),
        searched_seconds=best.seconds,
        searched_exchange=step_time(best.workload, on).expert,
        cpu_seconds=took,
    )


def functions() -> list[PublishedLayout]:
    """Megatron-Bridge's functions of benchmarks that pretrain, those with most accelerators first."""
    known = catalog.load()
    named = [known.function(name) for name in known.functions() if "pretrain" in name]
    return sorted((each for each in named if each and each.benchmark), key=lambda each: -each.count)


def largest(count: int | None) -> list[Found]:
    """The `count` largest runs, or all, the largest first."""
    runs: list[Found] = []
    for _, same in groupby(functions(), key=lambda each: each.count):
        if count is not None and len(runs) >= count:
            break
        compared = [each for each in map(found, same) if each]
        runs += sorted(compared, key=lambda each: -each.parameters)
    return runs[:count]


def overlapped(runs: list[Found]) -> list[Found]:
    """Those of the runs whose model has experts, with `OVERLAPPED` for both layouts."""
    known = catalog.load()
    again = [known.function(each.function) for each in runs if each.published_exchange]
    return [each for function in again if function and (each := found(function, OVERLAPPED))]


def main() -> int:
    """Print the comparisons and a summary of each."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--all", action="store_true", help="compare all functions, not only the largest")
    runs = largest(None if parser.parse_args().all else RUNS)
    _print("On the project's image, with the switches of the function:", runs)
    _print("With the dispatcher flex and overlapped experts:", overlapped(runs))
    return 0


def _print(title: str, runs: list[Found]) -> None:
    print(f"{title}\n")
    for each in runs:
        print(f"{each.longer:+6.1%}  {each.function}, searched in {each.cpu_seconds:.2f} s")
        for name, layout, seconds, exchange in (
            ("published", each.published, each.published_seconds, each.published_exchange),
            ("searched ", each.searched, each.searched_seconds, each.searched_exchange),
        ):
            experts = f", experts' exchange {exchange:.2f} s" if exchange else ""
            print(f"         {name} {seconds:7.2f} s  {layout}{experts}")
    print(f"\n{summary(runs)}\n")


def summary(runs: list[Found]) -> str:
    """How many searches find a layout that is as good, and the worst."""
    worst = max(runs, key=lambda each: each.longer)
    within = sum(each.longer <= WITHIN for each in runs)
    equal = sum(abs(each.longer) <= WITHIN for each in runs)
    found = f"{within} of {len(runs)} searched layouts take at most {WITHIN:.0%} longer"
    return f"{found}, {equal} also at most that less; worst {worst.longer:+.1%} ({worst.function})"


if __name__ == "__main__":
    sys.exit(main())
