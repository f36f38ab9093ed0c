"""`make bench-weights`: peak memory of `megatron-convert` with a random model of some GiB, on CPUs.

    make bench-weights BENCH="--layers 20 --folder FOLDER"

Each command is a process of its own; its peak is the kernel's `VmHWM`, which counts pages of mapped files as
well (`ru_maxrss` would begin with the memory of the process that starts it). The first row is a process that
has imported everything and has no model.
"""

import argparse
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from testkit.weights.large import write_llama

GIB = 1 << 30
HIDDEN, VOCABULARY = 2048, 32_000
_START = """
import atexit, pathlib
def peak():
    lines = pathlib.Path("/proc/self/status").read_text().splitlines()
    print(next(line.split()[1] for line in lines if line.startswith("VmHWM:")))
atexit.register(peak)
from megatron_trainer.weights import {module}
{module}.{call}
"""


@dataclass(frozen=True)
class Measured:
    """One process."""

    name: str
    peak: int
    """Bytes."""
    seconds: float


def main() -> None:
    """Write a model, convert it there and back, audit both, and print the peaks as a table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--layers", type=int, default=20, help="of 128 MiB each (default 20)")
    parser.add_argument(
        "--folder", type=Path, help="where the models are for the time of the run (default TMPDIR)"
    )
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=given.folder) as folder:
        source = Path(folder) / "source"
        size = write_llama(source, hidden=HIDDEN, layers=given.layers, vocabulary=VOCABULARY)
        print(f"model in bfloat16: {size / GIB:.2f} GiB\n", flush=True)
        print(
            "| process | peak of memory, GiB | above the imports, of the model | seconds |\n|---|---|---|---|"
        )
        imports = 0
        for each in measure(Path(folder)):
            imports = imports or each.peak
            share = (each.peak - imports) / size
            print(f"| {each.name} | {each.peak / GIB:.2f} | {share:.0%} | {each.seconds:.0f} |", flush=True)


def measure(folder: Path) -> Iterator[Measured]:
    """Convert `folder`/source to `folder`/imported and that to `folder`/exported, and audit them."""
    source, imported, exported = (str(folder / name) for name in ("source", "imported", "exported"))
    yield _run("imports alone", "cpu_model", "import_bridge()")
    for name, words in {
        "import": ["import", "--from", source, "--to", imported],
        "export": ["export", "--from", imported, "--to", exported],
        "audit of the import": ["audit", "--from", source, "--to", imported],
        "audit of the export": ["audit", "--from", imported, "--to", exported],
        "audit of two folders": ["audit", "--from", source, "--to", exported],
    }.items():
        yield _run(name, "command", f"main({words!r})")


def _run(name: str, module: str, call: str) -> Measured:
    """Run a call in a new process. Raises SystemExit if it fails."""
    started = time.monotonic()
    words = [sys.executable, "-W", "ignore", "-c", _START.format(module=module, call=call)]
    ended = subprocess.run(words, check=False, capture_output=True, text=True)
    if ended.returncode:
        raise SystemExit(f"{name} ended with {ended.returncode}: {ended.stderr[-3000:]}")
    return Measured(name, int(ended.stdout.split()[-1]) << 10, time.monotonic() - started)


if __name__ == "__main__":
    main()
