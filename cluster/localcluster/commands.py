"""Runs other programs to completion; an error contains their output."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from localcluster.errors import ClusterError


def run(
    args: Sequence[str | Path],
    *,
    stdin: str | None = None,
    environment: Mapping[str, str] | None = None,
    directory: Path | None = None,
) -> str:
    """Standard output of a command; `environment` is added to the caller's own.

    Raises ClusterError with the command's last output when it fails or is not installed.
    """
    argv = [str(arg) for arg in args]
    shown = " ".join(argv[:5])
    try:
        done = subprocess.run(
            argv,
            input=stdin,
            capture_output=True,
            text=True,
            cwd=directory,
            env={**os.environ, **(environment or {})},
            check=False,
        )
    except FileNotFoundError as error:
        raise ClusterError(f"the command {argv[0]} is not installed") from error
    if done.returncode:
        output = (done.stderr.strip() or done.stdout.strip()).splitlines()[-20:]
        raise ClusterError(f"{shown} failed with exit code {done.returncode}:\n" + "\n".join(output))
    return done.stdout
