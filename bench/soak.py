"""Random faults, one after the other: `python -m bench.soak --faults 200 --seed 7 --minutes 120`.

The faults are those of the table that leave nothing behind. Every run that a fault is done to must end as if
nothing had happened. The seed is printed, and the same seed does the same faults in the same order; with
`--first 120` from that one on.
"""

import argparse
import os
import random
import sys
import time
from collections import Counter

from localcluster import Cluster as Machine
from rich.console import Console
from rich.text import Text

from demo.__main__ import connect
from testkit.faults.injections import Scene
from testkit.faults.rows import ROWS, Row
from testkit.faults.table import ToldWrongly, play
from testkit.kubectl import Cluster
from tests.faults.conftest import ITERATIONS_OF_ALL, NAMESPACE, Runs, ready

console = Console(soft_wrap=True)
LEFT_OUT = frozenset({"a rank is slow"})
"""Nothing is to be recovered from there."""


def drawn(seed: int, count: int) -> list[Row]:
    """The faults of a seed, in their order. Those that take minutes come a tenth as often."""
    chance = random.Random(seed)
    rows = [row for row in ROWS if row.name not in LEFT_OUT]
    return chance.choices(rows, weights=[1 if row.extended else 10 for row in rows], k=count)


def soak(cluster: Cluster, faults: int, seed: int, minutes: float, first: int = 1) -> int:
    """Do the faults from the `first` on, which counts from 1.

    Returns the number of faults that were not survived, or of which something wrong was told.
    """
    deadline = time.monotonic() + 60 * minutes
    machine = Machine(quiet=True)
    runs = Runs(cluster, machine, ITERATIONS_OF_ALL)
    runs.undisturbed()
    survived: Counter[str] = Counter()
    bad = 0
    for number, row in enumerate(drawn(seed, faults)[first - 1 :], first):
        if time.monotonic() > deadline:
            console.print(f"{minutes:.0f} minutes are over; --seed {seed} --first {number} goes on from here")
            break
        began = time.monotonic()
        try:
            play(Scene(runs.one(row), machine), row, runs.expected)
        except (AssertionError, TimeoutError) as error:
            bad += 1
            console.print(Text(f"{number}/{faults} {row.name}: {error}", style="red"))
            if not isinstance(error, ToldWrongly):
                runs.drop()
            continue
        survived[row.name] += 1
        console.print(f"{number}/{faults} {row.name}: {time.monotonic() - began:.0f} s", highlight=False)
    runs.end()
    console.print(f"survived {survived.total()}, not {bad}, seed {seed}")
    return bad


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="bench.soak", description=__doc__)
    parser.add_argument("--faults", type=int, default=200)
    parser.add_argument("--seed", type=int, default=int.from_bytes(os.urandom(3)))
    parser.add_argument("--first", type=int, default=1, help="begin with this one of them, counted from 1")
    parser.add_argument("--minutes", type=float, default=240.0, help="no further fault after so long")
    options = parser.parse_args(argv)
    if not 1 <= options.first <= options.faults:
        parser.error(
            f"--first {options.first} is not one of the {options.faults} faults; give 1 to {options.faults}"
        )
    console.print(f"soak: {options.faults} faults, seed {options.seed}")
    with ready(Cluster(connect(), NAMESPACE)) as cluster:
        return 1 if soak(cluster, options.faults, options.seed, options.minutes, options.first) else 0


if __name__ == "__main__":
    sys.exit(main())
