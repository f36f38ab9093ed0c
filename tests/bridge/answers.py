"""Results of the functions of the installed megatron-bridge."""

import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

CALLS = Path(__file__).with_name("wheel.py")


@dataclass(frozen=True)
class Wheel:
    """Settings of the functions, and errors of those that cannot be called, by every name."""

    functions: dict[str, dict[str, Any]]
    failed: dict[str, str]
    refused: list[str | None]
    """Of each run in the order of `called`: why the trainer does not set its overrides."""
    schedules: list[dict[str, float] | None]
    """Of each run that is not refused: what Bridge makes of its length and weight decay."""
    hidden: list[str]
    """Names that a function of the trainer's image shares with one of megatron-bridge."""

    @property
    def names(self) -> set[str]:
        return {*self.functions, *self.failed}

    @classmethod
    def called(cls, directory: Path, runs: list[list[str]]) -> "Wheel":
        """Call them all and set the overrides of `runs`, in a subprocess that writes to `directory`."""
        answers, asked = directory / "settings.json", directory / "runs.json"
        asked.write_text(json.dumps(runs))
        done = subprocess.run(
            [sys.executable, str(CALLS), str(answers), str(asked)],
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        assert done.returncode == 0, done.stderr[-3000:]
        return cls(**json.loads(answers.read_text()))
