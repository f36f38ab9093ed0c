"""`python -m testkit.fuzz`: many cases of all targets, with a summary and the findings as files."""

import argparse
import re
import time
from pathlib import Path
from typing import Final

from testkit.fuzz.runner import Summary, run
from testkit.fuzz.targets import TARGETS

SHARES: Final = {"recipe": 10, "platform": 3, "catalog": 3}
"""Parts of all cases that a target gets; 1 for the others."""


def main() -> int:
    """Run the cases of the command line; 1 if there are findings."""
    parser = argparse.ArgumentParser(prog="python -m testkit.fuzz", description=__doc__)
    parser.add_argument("--cases", type=int, default=100_000, help="cases of all targets together")
    parser.add_argument("--seed", type=int, default=int(time.time()), help="default: the time")
    parser.add_argument("--target", action="append", choices=sorted(TARGETS), help="default: all")
    parser.add_argument("--minutes", type=float, help="stop after these")
    parser.add_argument("--output", type=Path, default=Path("build/fuzz"), help="folder of the findings")
    options = parser.parse_args()
    deadline = None if options.minutes is None else time.monotonic() + 60 * options.minutes
    names = options.target or sorted(TARGETS)
    parts = sum(SHARES.get(name, 1) for name in names)
    print(f"seed {options.seed}", flush=True)
    summaries = []
    for name in names:
        cases = -(-options.cases * SHARES.get(name, 1) // parts)
        summary = run(name, cases, options.seed, deadline)
        summaries.append(summary)
        _save(summary, options.output)
        print(_line(summary), flush=True)
    total, found = sum(s.cases for s in summaries), sum(len(s.findings) for s in summaries)
    print(f"{total} cases, {found} findings" + (f" in {options.output}" if found else ""))
    return 1 if found else 0


def _line(summary: Summary) -> str:
    slowest = f"{summary.slowest[0][0]:.2f} s" if summary.slowest else "-"
    lines = [
        f"{summary.target:12} {summary.cases:7} cases {summary.seconds:6.0f} s, slowest {slowest}, "
        f"{len(summary.findings)} findings"
    ]
    return "\n".join([*lines, *(f"    {kind}" for kind in summary.findings)])


def _save(summary: Summary, folder: Path) -> None:
    for finding in summary.findings.values():
        name = re.sub(r"[^A-Za-z0-9]+", "-", finding.kind).strip("-")[:80]
        path = folder / f"{finding.target}-{name}.yaml"
        path.parent.mkdir(parents=True, exist_ok=True)
        comment = "".join(f"# {line}\n" for line in f"{finding.kind}\n{finding.detail}".splitlines())
        path.write_text(comment + finding.text, encoding="utf-8", errors="surrogatepass")
    for number, (seconds, text) in enumerate(summary.slowest):
        path = folder / f"slowest-{summary.target}-{number}.yaml"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"# {seconds} s\n{text}", encoding="utf-8", errors="surrogatepass")


if __name__ == "__main__":
    raise SystemExit(main())
