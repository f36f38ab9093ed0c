"""A corpus of Python files, built by megatron-prepare with a tokenizer of its own."""

import os
import subprocess
import sys
from pathlib import Path


def write(folder: Path, source: Path) -> None:
    """Write `text_text_document` and `tokenizer`, of 1000 tokens, from the Python files in `source`."""
    command = [
        *(sys.executable, "-W", "ignore", "-m", "megatron_trainer.data.prepare"),
        *("--source", str(source), "--include", "*.py"),
        *("--output-prefix", str(folder / "text"), "--tokenizer-dir", str(folder / "tokenizer")),
        *("--tokenizer-vocab-size", "1000", "--append-eod", "--workers", "1"),
    ]
    environment = os.environ | {"MEGATRON_TERMINATION_LOG": str(folder / "termination")}
    subprocess.run(command, env=environment, check=True)
