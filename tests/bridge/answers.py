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

    @property
    def names(self) -> set[str]:
        return {*self.functions, *self.failed}

    @classmethod
    def called(cls, directory: Path) -> "Wheel":
        """Call them all, in a subprocess that writes its results to `directory`."""
        answers = directory / "settings.json"
        done = subprocess.run(
            [sys.executable, str(CALLS), str(answers)],
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        assert done.returncode == 0, done.stderr[-3000:]
        return cls(**json.loads(answers.read_text()))
