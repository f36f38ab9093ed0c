"""Layouts that the planner finds by itself against the published ones, by its own estimate.

`python -m bench.search` takes the ten largest pretraining functions of Megatron-Bridge that are planned as
published, `--all` every one: those with most accelerators, then with most parameters. For each it prints the
step time that the planner predicts for the published layout and for the layout that it finds for the same
model, batch, precision and switches. A longer step means that the search misses a layout that is known to
work. A shorter one is not necessarily an improvement: the published layouts were chosen by measurements, the
others by the model, whose error is in docs/planner.md.
"""

import argparse
import sys
import time
from dataclasses import dataclass, replace
from itertools import groupby

from megatron_operator import catalog
from megatron_operator.api.errors import InvalidRecipeError
from megatron_operator.api.parallel_dims import ParallelDims
from megatron_operator.catalog import PublishedLayout
from megatron_operator.planner.plan import search

from bench.planned import planned

RUNS = 10
WITHIN = 0.1
"""A longer step than this is a layout that the search misses."""


@dataclass(frozen=True, slots=True)
class Found:
    """A published layout and the one that the search finds, with predicted seconds of a step."""

    function: str
    parameters: int
    published: str
    published_seconds: float
    searched: str
    searched_seconds: float
    cpu_seconds: float
    """Processor time of the search."""

    @property
    def longer(self) -> float:
        """Predicted step of the search's layout over that of the published one, less 1."""
        return self.searched_seconds / self.published_seconds - 1


def found(function: PublishedLayout) -> Found | None:
    """The comparison for one function; None where its layout is refused or not used."""
    try:
        run = planned(function)
    except InvalidRecipeError:
        return None
    expected = run.plan.expected
    if run.resolved.layout is None or expected is None:
        return None
    began = time.process_time()
    best = search(run.resolved).best
    assert best is not None, "a search without a candidate raises"
    dims = replace(ParallelDims.of_plan(run.plan), vp=run.plan.virtual_pipeline_model_parallel_size or 1)
    return Found(
        function=str(function.function),
        parameters=run.plan.parameters or 0,
        published=dims.describe(),
        published_seconds=expected.step_seconds,
        searched=best.dims.describe(),
        searched_seconds=best.seconds,
        cpu_seconds=time.process_time() - began,
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


def main() -> int:
    """Print the comparisons and a summary."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--all", action="store_true", help="compare all functions, not only the largest")
    runs = largest(None if parser.parse_args().all else RUNS)
    for each in runs:
        print(f"{each.longer:+6.1%}  {each.function}, searched in {each.cpu_seconds:.2f} s")
        print(f"         published {each.published_seconds:7.2f} s  {each.published}")
        print(f"         searched  {each.searched_seconds:7.2f} s  {each.searched}")
    print(f"\n{summary(runs)}")
    return 0


def summary(runs: list[Found]) -> str:
    """How many searches find a layout that is as good, and the worst."""
    worst = max(runs, key=lambda each: each.longer)
    within = sum(each.longer <= WITHIN for each in runs)
    return (
        f"{within} of {len(runs)} searched layouts take at most {WITHIN:.0%} longer; "
        f"worst {worst.longer:+.1%} ({worst.function})"
    )


if __name__ == "__main__":
    sys.exit(main())
