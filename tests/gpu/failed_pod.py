"""A pod of the gpu platform that ends before its ranks train."""

import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from testkit.ports import free_port


def termination_of_failed_pod(
    flags: str, ranks: int, environment: Mapping[str, str], folder: Path
) -> dict[str, Any]:
    """Start the launcher of a run with one pod, which must exit with 138. Returns its termination message."""
    termination = folder / "termination"
    pod = {
        "MEGATRON_PLATFORM": "gpu",
        "MEGATRON_PROGRESS_PORT": str(free_port()),
        "MEGATRON_TERMINATION_LOG": str(termination),
        "MASTER_ADDR": "localhost",
        "MASTER_PORT": str(free_port()),
        "PET_NNODES": "1",
        "PET_NODE_RANK": "0",
        "PET_NPROC_PER_NODE": str(ranks),
        "TMPDIR": str(folder),
    }
    launcher = [sys.executable, "-W", "ignore", "-m", "megatron_trainer.launcher.main", *flags.split()]
    done = subprocess.run(launcher, env={**environment, **pod}, capture_output=True, text=True, check=False)
    message: dict[str, Any] = json.loads(termination.read_text())
    assert (message["reason"], done.returncode) == ("WorkerDied", 138), done.stderr[-3000:]
    return message
