"""`megatron-check-node`: the part of the preflight that a pod does alone, as a program of its own.

The operator runs it on a node that it has cordoned, to find out whether its devices compute correctly again.
Exit code 0 if no device is at fault; 138 otherwise, with the reason in the termination message.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from megatron_contract.environment import (
    DEFAULT_PLATFORM,
    DEFAULT_TERMINATION_LOG,
    ENV_NODE_NAME,
    ENV_PLATFORM,
    ENV_TERMINATION_LOG,
)
from megatron_contract.exit_codes import ExitCode
from megatron_contract.hardware import Evidence

from megatron_trainer.health.device_errors import standing_fault
from megatron_trainer.health.node_faults import DeviceReport, judge_devices
from megatron_trainer.health.preflight_files import DEVICE_CHECK_SECONDS, DEVICE_START_SECONDS, report_file
from megatron_trainer.telemetry.reporter import STACKS_ENV
from megatron_trainer.termination import Ending, write

_MODULE = "megatron_trainer.launcher.node_check"
_DEVICE = "--device"
# Imports of torch by all processes at once, from a cold disk.
_IMPORT_SECONDS = 180.0
_LIMIT_SECONDS = _IMPORT_SECONDS + DEVICE_START_SECONDS + DEVICE_CHECK_SECONDS
_POLL_SECONDS = 0.05


def main() -> int:
    """Check the devices of this pod; returns the exit code."""
    if sys.argv[1:] == [_DEVICE]:
        return _check_device()
    parser = argparse.ArgumentParser(prog="megatron-check-node", description=__doc__)
    parser.add_argument("--devices", type=int, required=True, help="how many devices the node has")
    fault = find_fault(parser.parse_args().devices)
    if fault is None:
        _log("no device at fault")
        return 0
    text, evidence = fault
    node = os.environ.get(ENV_NODE_NAME, "this node")
    ending = Ending(ExitCode.WORKER_DIED, f"check of {node}: {text}", None, evidence)
    _log(ending.message)
    write(Path(os.environ.get(ENV_TERMINATION_LOG, DEFAULT_TERMINATION_LOG)), ending, 0, None)
    return int(ending.code)


def find_fault(devices: int) -> tuple[str, Evidence | None] | None:
    """What is at fault on this node, with evidence if it is its hardware; None if nothing is."""
    if (known := standing_fault()) is not None:
        evidence, text = known
        return f"NVML: {text}", evidence
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        processes = [_start(folder, index, devices) for index in range(devices)]
        _wait(processes)
        reports = [_report(folder, index) for index in range(devices)]
    at_fault = [report for report in reports if report.fault]
    if at_fault:
        worst = min(at_fault, key=lambda report: not report.evidence)
        return f"device {worst.rank}: {worst.fault}", Evidence(worst.evidence) if worst.evidence else None
    found = judge_devices({0: reports}, os.environ.get(ENV_PLATFORM, DEFAULT_PLATFORM))
    return (found[0], Evidence.PREFLIGHT) if found else None


def _start(folder: Path, index: int, devices: int) -> "subprocess.Popen[bytes]":
    environment = os.environ | {
        "RANK": str(index),
        "LOCAL_RANK": str(index),
        "LOCAL_WORLD_SIZE": str(devices),
        STACKS_ENV: str(folder),
    }
    return subprocess.Popen([sys.executable, "-m", _MODULE, _DEVICE], env=environment)


def _wait(processes: "list[subprocess.Popen[bytes]]") -> None:
    """Wait for all processes; those that are late are killed and left no report."""
    deadline = time.monotonic() + _LIMIT_SECONDS
    while any(process.poll() is None for process in processes) and time.monotonic() < deadline:
        time.sleep(_POLL_SECONDS)
    for process in processes:
        if process.poll() is None:
            process.kill()


def _report(folder: Path, index: int) -> DeviceReport:
    """What a process found. Unlike in a gang, where others go on, a device without a report is at fault."""
    try:
        return DeviceReport(**json.loads(report_file(folder, index).read_text()))
    except OSError:
        return DeviceReport(index, fault="the process that checked it left no report")


def _check_device() -> int:
    """Check one device, in a process of its own."""
    from megatron_trainer.health import device_check

    if not device_check.on_gpu():
        from megatron_trainer.platform import cuda_stand_in

        cuda_stand_in.install()
    return device_check.run()


def _log(text: str) -> None:
    print(f"megatron-check-node: {text}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
