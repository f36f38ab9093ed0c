"""Runs targets in workers and collects what they find; a worker that dies is a finding and is replaced."""

import json
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

BATCH: Final = 2000
"""Cases of one worker."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One kind of wrong answer, with a small text that shows it."""

    target: str
    kind: str
    detail: str
    text: str


@dataclass(slots=True)
class Summary:
    """What the cases of one target had to show."""

    target: str
    cases: int = 0
    """Number of texts that were checked."""
    seconds: float = 0.0
    findings: dict[str, Finding] = field(default_factory=dict)
    """By kind."""
    slowest: list[tuple[float, str]] = field(default_factory=list)
    """Processor seconds and text of the slowest cases."""


def run(target: str, cases: int, seed: int = 0, deadline: float | None = None) -> Summary:
    """Run `cases` of a target, from `seed` on; stop at `deadline` of the monotonic clock."""
    summary, started = Summary(target), time.monotonic()
    while summary.cases < cases and (deadline is None or time.monotonic() < deadline):
        before = summary.cases
        _run_worker(summary, seed, min(BATCH, cases - summary.cases))
        seed += 1
        if summary.cases == before:
            break
    summary.seconds = time.monotonic() - started
    return summary


def _run_worker(summary: Summary, seed: int, cases: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        current = Path(folder) / "case"
        command = [
            sys.executable,
            "-m",
            "testkit.fuzz.worker",
            summary.target,
            str(seed),
            str(cases),
            str(current),
        ]
        worker = subprocess.run(command, capture_output=True, text=True, check=False)
        done = False
        for line in worker.stdout.splitlines():
            done = _take(summary, json.loads(line)) or done
        if done:
            return
        number, _, text = _read(current).partition("\n")
        summary.cases += int(number or 0)
        kind = f"the process ends with {worker.returncode}: {_last_frame(worker.stderr)}"
        summary.findings.setdefault(kind, Finding(summary.target, kind, worker.stderr[-3000:], text))


def _take(summary: Summary, event: Mapping[str, Any]) -> bool:
    """Add what a worker reports; whether it is done."""
    if event["event"] == "finding":
        found = Finding(summary.target, event["kind"], event["detail"], event["text"])
        summary.findings.setdefault(found.kind, found)
        return False
    summary.cases += event["cases"]
    slowest = [(spent, text) for spent, text in event["slowest"]]
    summary.slowest = sorted([*summary.slowest, *slowest], reverse=True)[:3]
    return True


def _read(path: Path) -> str:
    return path.read_text(encoding="utf-8", errors="surrogatepass") if path.exists() else ""


def _last_frame(stderr: str) -> str:
    found = re.search(r'File "[^"]*/([^/"]+)", line (\d+) in (\w+)', stderr)
    return f"{found[1]} in {found[3]}" if found else (stderr.strip().splitlines() or ["no output"])[-1][:100]
