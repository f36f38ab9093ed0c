"""The process that builds the index of a run's samples, and the threads of this one."""

import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from megatron_contract.exit_codes import ExitCode


def build_index(arguments: Sequence[str], into: Path | None = None) -> str:
    """Build the index of the run's samples in a process of its own. Returns a line that describes the end.

    `arguments` are Megatron's flags, or a function of Megatron-Bridge and overrides. `into` is a folder of
    the run on the data volume, where that of the checkpoints is not mounted.

    Its failure is not the preparation's: the run then builds the index itself, as without preparation, and
    has the better error if the flags are wrong.
    """
    command = [sys.executable, "-m", "megatron_trainer.data.dataset_index"]
    command += [*(["--into", str(into)] if into else []), *arguments]
    started = time.monotonic()
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    lines = done.stdout.splitlines()
    text = lines[-1] if lines else f"the process ended with {done.returncode}"
    if done.returncode == ExitCode.OK:
        return f"{text}, built in {time.monotonic() - started:.1f} s"
    return f"warning: no index of the samples, rank 0 will build it while the others wait: {text}"


def use_threads(count: int) -> None:
    """Tokenize with this many threads. The library reads this once, when it is first used."""
    os.environ["RAYON_NUM_THREADS"] = str(count)
    os.environ["TOKENIZERS_PARALLELISM"] = "true" if count > 1 else "false"
