"""What the trainer does on a GPU: `make gpu-check` on a machine with at least one, without a cluster.

Writes docs/hardware.md. Exit codes: 0 all checks passed, 1 one did not, 2 the machine lacks what they need.
"""

import argparse
import contextlib
import datetime
import importlib.metadata
import os
import platform
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from tests.gpu.hardware.checks import CHECKS
from tests.gpu.hardware.runs import Device, Result, Runs

PAGE = Path(__file__).parents[3] / "docs" / "hardware.md"
COMMAND = "make gpu-check"
PACKAGES = ("torch", "megatron-core", "transformer-engine", "nvidia-nccl-cu13", "triton")
LACKING = 2


def missing_machine() -> list[str]:
    """Return what this machine lacks for the checks, with the remedy."""
    import pynvml

    found = []
    try:
        pynvml.nvmlInit()
        if pynvml.nvmlDeviceGetCount() < 1:
            found.append("a GPU: NVML reports none")
    except pynvml.NVMLError as error:
        found.append(f"a GPU with its driver and NVML (libnvidia-ml.so.1): {error}")
    return found


def missing_packages() -> list[str]:
    """Return what this environment lacks for the checks, with the remedy."""
    if _version("transformer-engine") != "not installed":
        return []
    return ["Transformer Engine: run `make gpu-check`, which installs it, or .venv-gpu/bin/python"]


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"


def machine() -> dict[str, str]:
    """Return date, device, driver and versions."""
    import pynvml

    device = pynvml.nvmlDeviceGetHandleByIndex(0)
    return {
        "Date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "Device": f"{pynvml.nvmlDeviceGetName(device)}, one of {pynvml.nvmlDeviceGetCount()}",
        "Driver": str(pynvml.nvmlSystemGetDriverVersion()),
        "Python": platform.python_version(),
        **{package: _version(package) for package in PACKAGES},
        "Command": f"`{COMMAND}`",
    }


def device() -> Device:
    """Return what the runs train on: the first device."""
    import pynvml

    device = pynvml.nvmlDeviceGetHandleByIndex(0)
    major, minor = pynvml.nvmlDeviceGetCudaComputeCapability(device)
    return Device("gpu", str(pynvml.nvmlDeviceGetName(device)), (major, minor))


def used_bytes() -> int:
    """Return the memory in use on the first device, of all processes."""
    import pynvml

    return int(pynvml.nvmlDeviceGetMemoryInfo(pynvml.nvmlDeviceGetHandleByIndex(0)).used)


def page(facts: Mapping[str, str], results: Mapping[str, Result]) -> str:
    """Return docs/hardware.md."""
    lines = ["# Measured on hardware", "", f"Written by `{COMMAND}`.", "", "| | |", "|---|---|"]
    lines += [f"| {name} | {value} |" for name, value in facts.items()]
    lines += ["", "| Check | Result | Figures |", "|---|---|---|"]
    for name, result in results.items():
        figures = "; ".join(f"{key}: {value}" for key, value in result.figures.items()).replace("|", "/")
        lines.append(f"| {name} | {'passed' if result.passed else '**failed**'} | {figures} |")
    return "\n".join(lines) + "\n"


@contextlib.contextmanager
def kept(folder: Path | None) -> Iterator[Path]:
    """The folder, which is created if it does not exist; without one a temporary folder."""
    if folder is None:
        with tempfile.TemporaryDirectory() as temporary:
            yield Path(temporary)
    else:
        folder.mkdir(parents=True, exist_ok=True)
        yield folder.resolve()


def _check(name: str, runs: Runs) -> Result:
    started = time.monotonic()
    try:
        result = CHECKS[name](runs)
    except Exception as error:
        traceback.print_exc()
        result = Result(False, {"error": f"{type(error).__name__}: {error}"[:300]})
    outcome = "passed" if result.passed else "FAILED"
    print(f"{name}: {outcome} in {time.monotonic() - started:.0f} s {result.figures}", flush=True)
    return result


def main(argv: Sequence[str] | None = None) -> int:
    """Run the checks and write the page. Returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--only", choices=CHECKS, action="append", help="run this check; writes no page")
    parser.add_argument("--folder", type=Path, help="keep the files of the runs there")
    parser.add_argument("--machine", action="store_true", help="check the machine alone, and run nothing")
    arguments = parser.parse_args(argv)
    if lacking := missing_machine() + ([] if arguments.machine else missing_packages()):
        for each in lacking:
            print(f"gpu-check: missing: {each}", file=sys.stderr)
        return LACKING
    if arguments.machine:
        return 0
    facts = machine()
    os.environ.setdefault("CUDA_VISIBLE_DEVICES", "0")
    with kept(arguments.folder) as folder:
        runs = Runs(folder, used_bytes, device())
        try:
            results = {name: _check(name, runs) for name in arguments.only or CHECKS}
        finally:
            runs.close()
    if not arguments.only:
        PAGE.write_text(page(facts, results))
    return 0 if all(result.passed for result in results.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
