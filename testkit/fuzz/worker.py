"""Runs cases of one target in its own process: `python -m testkit.fuzz.worker TARGET SEED CASES FILE`.

Writes one JSON object a line: each kind of finding once, made small, and at the end the count. FILE always
has the case that runs, for a case that ends the process. Memory and the time of a case are limited: by a
signal, and by a thread of C for code that no signal interrupts.
"""

import faulthandler
import json
import re
import resource
import sys
import time
import traceback
from pathlib import Path
from typing import Any, Final

from hypothesis import HealthCheck, Phase, given, seed, settings

from testkit.fuzz.guard import TooSlow, limited
from testkit.fuzz.targets import TARGETS, WrongAnswer

MEMORY: Final = 2 << 30
"""Bytes of address space of the process."""
STUCK: Final = 300.0
"""Seconds of wall time after which the process ends itself."""
STDERR: Final = 2
"""The descriptor, which stays the same where a test replaces `sys.stderr`."""
SHRINK_STEPS: Final = 300
SLOWEST: Final = 3
"""Number of slowest cases that are reported."""


class Worker:
    """Checks cases and keeps what went wrong."""

    def __init__(self, target: str, current: Path) -> None:
        self._check = TARGETS[target].check
        self._current = current
        self._known: set[str] = set()
        self.cases = 0
        self.slowest: list[tuple[float, str]] = []

    def run(self, text: str) -> None:
        """Check one case; report a finding of a new kind."""
        self.cases += 1
        self._current.write_text(f"{self.cases}\n{text}", encoding="utf-8", errors="surrogatepass")
        started = time.process_time()
        found = self._finding(text)
        spent = time.process_time() - started
        self.slowest = sorted([*self.slowest, (round(spent, 3), text[:2000])], reverse=True)[:SLOWEST]
        if found is not None and found[0] not in self._known:
            self._known.add(found[0])
            small = self._shrink(text, found[0])
            _print({"event": "finding", "kind": found[0], "detail": found[1], "text": small})

    def _finding(self, text: str) -> tuple[str, str] | None:
        """Kind and detail of what is wrong with the answer to a text; None if nothing is."""
        faulthandler.dump_traceback_later(STUCK, exit=True, file=STDERR)
        try:
            with limited():
                self._check(text)
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            return _kind(error), "".join(traceback.format_exception(error, limit=-6))[-3000:]
        finally:
            faulthandler.cancel_dump_traceback_later()
        return None

    def _shrink(self, text: str, kind: str) -> str:
        """A smaller text with the same finding: without lines, halves of the lines first."""
        steps, size = 0, max(1, len(text.splitlines()) // 2)
        while size:
            lines, at = text.splitlines(), 0
            while at < len(lines) and steps < SHRINK_STEPS:
                steps += 1
                shorter = lines[:at] + lines[at + size :]
                candidate = "\n".join(shorter) + "\n"
                again = self._finding(candidate)
                if again is not None and again[0] == kind:
                    lines, text = shorter, candidate
                else:
                    at += size
            size //= 2
        return text


def _kind(error: BaseException) -> str:
    if isinstance(error, WrongAnswer):
        return re.sub(r"[0-9]+", "N", f"WrongAnswer: {str(error)[:60]}")
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if "/megatron_" in frame.filename] or frames
    if isinstance(error, TooSlow | MemoryError | RecursionError):
        # Where it stopped is chance: the outermost function of a package is not.
        return f"{type(error).__name__} below {own[min(3, len(own) - 1)].name}"
    return f"{type(error).__name__} at {Path(own[-1].filename).name}:{own[-1].lineno}"


def _print(value: dict[str, Any]) -> None:
    print(json.dumps(value), flush=True)


def main() -> None:
    """Run the cases of the command line."""
    target, number, cases, current = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), Path(sys.argv[4])
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    worker = Worker(target, current)

    @seed(number)
    @settings(
        max_examples=cases,
        deadline=None,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(TARGETS[target].texts())
    def run(text: str) -> None:
        worker.run(text)

    run()
    _print({"event": "done", "cases": worker.cases, "slowest": worker.slowest})


if __name__ == "__main__":
    main()
