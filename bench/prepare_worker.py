"""A worker of `megatron-prepare` as a process of its own, and what it used."""

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

_START: Final = """
import atexit, json, os
from pathlib import Path
def used():
    lines = Path("/proc/self/status").read_text().splitlines()
    peak = next(int(line.split()[1]) << 10 for line in lines if line.startswith("VmHWM:"))
    times = os.times()
    print(json.dumps([peak, times.user + times.system]))
atexit.register(used)
from megatron_trainer.data.prepare import main
main()
"""


@dataclass(frozen=True)
class Used:
    """What a process used until it ended."""

    peak: int
    """Bytes of its memory at most, pages of mapped files included: the kernel's VmHWM."""
    cpu: float
    """Seconds of all its threads."""


def run(words: Sequence[str], pods: int, folder: Path) -> list[Used]:
    """Run the workers of `pods` pods at once; `folder` has their logs. Raises SystemExit if one fails."""
    command = [sys.executable, "-W", "ignore", "-c", _START, *words, "--pods", str(pods)]
    folder.mkdir(parents=True, exist_ok=True)
    logs = [folder / f"worker-{index}.log" for index in range(pods)]
    running = []
    for index, log in enumerate(logs):
        own = {"JOB_COMPLETION_INDEX": str(index), "MEGATRON_TERMINATION_LOG": str(log.with_suffix(".end"))}
        with log.open("wb") as stream:
            running.append(subprocess.Popen(command, stdout=stream, env=os.environ | own))
    codes = [process.wait() for process in running]
    if any(codes):
        raise SystemExit(
            "\n".join([f"workers ended with {codes}", *(log.read_text()[-2000:] for log in logs)])
        )
    return [Used(*json.loads(log.read_text().splitlines()[-1])) for log in logs]
