"""Random faults, one after the other: `python -m bench.soak --faults 200 --seed 7 --minutes 120`.

The faults are the rows of the fault table that leave nothing behind. Every run must end with the losses of an
undisturbed one. The seed is printed; the same seed gives the same faults in the same order, and `--first 120`
starts with the 120th of them.
"""

import argparse
import os
import random
import sys
import time
from collections import Counter

from localcluster import Cluster
from rich.console import Console
from rich.text import Text

from testkit.errors import TestkitError
from testkit.faults.rows import ROWS, Row
from testkit.installation import connect, installed_namespace
from testkit.kubectl import Kubectl
from testkit.run_pool import ITERATIONS_OF_ALL, NAMESPACE, RunPool

console = Console(soft_wrap=True)
LEFT_OUT = frozenset({"a rank is slow"})
"""Faults that need no recovery."""


def select_faults(seed: int, count: int) -> list[Row]:
    """The faults of a seed, in order. Those that take minutes are a tenth as likely."""
    chance = random.Random(seed)
    rows = [row for row in ROWS if row.name not in LEFT_OUT]
    return chance.choices(rows, weights=[1 if row.extended else 10 for row in rows], k=count)


def soak(kubectl: Kubectl, faults: int, seed: int, minutes: float, first: int = 1) -> int:
    """Inject the faults from number `first` on, counted from 1, until `minutes` have passed.

    Returns the number of faults that a run did not survive, or that its status reported wrongly.
    """
    deadline = time.monotonic() + 60 * minutes
    runs = RunPool(kubectl, Cluster(quiet=True), ITERATIONS_OF_ALL)
    runs.record_reference()
    survived: Counter[str] = Counter()
    failures = 0
    for number, row in enumerate(select_faults(seed, faults)[first - 1 :], first):
        if time.monotonic() > deadline:
            console.print(
                f"stopped after {minutes:.0f} minutes; continue with --seed {seed} --first {number}"
            )
            break
        began = time.monotonic()
        try:
            runs.play(row)
        except (AssertionError, TimeoutError, TestkitError) as error:
            failures += 1
            console.print(Text(f"{number}/{faults} {row.name}: {error}", style="red"))
            continue
        survived[row.name] += 1
        console.print(f"{number}/{faults} {row.name}: {time.monotonic() - began:.0f} s", highlight=False)
    runs.finish()
    console.print(f"survived: {survived.total()}, failed: {failures}, seed: {seed}")
    return failures


def main(argv: list[str] | None = None) -> int:
    """The command line. Returns 1 when a fault was not survived."""
    parser = argparse.ArgumentParser(prog="bench.soak", description=__doc__)
    parser.add_argument("--faults", type=int, default=200, help="how many")
    parser.add_argument("--seed", type=int, default=int.from_bytes(os.urandom(3)))
    parser.add_argument("--first", type=int, default=1, help="number of the fault to start with, from 1")
    parser.add_argument("--minutes", type=float, default=240.0, help="inject no fault after this time")
    options = parser.parse_args(argv)
    if not 1 <= options.first <= options.faults:
        parser.error(f"--first {options.first} is out of range; use 1 to {options.faults}")
    console.print(f"soak: {options.faults} faults, seed {options.seed}")
    with installed_namespace(Kubectl(connect(), NAMESPACE)) as kubectl:
        return 1 if soak(kubectl, options.faults, options.seed, options.minutes, options.first) else 0


if __name__ == "__main__":
    sys.exit(main())
