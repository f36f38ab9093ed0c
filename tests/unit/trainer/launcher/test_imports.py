"""What the launcher imports before it forks the fork server."""

import subprocess
import sys

import pytest


@pytest.mark.parametrize("module", ["main", "pod"])
def test_the_launcher_starts_without_torch(module: str) -> None:
    """The fork server must be forked from a process with one thread, and the first rank waits for it."""
    program = f"import sys, megatron_trainer.launcher.{module} as _; print('torch' in sys.modules)"
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert run.stdout == "False\n"
