"""The part of the preflight that a pod does alone: its devices, their links, its network interface.

A process per rank, which the launcher starts before the pod waits for any other, so that neither a process
group of the run nor settings of NCCL for the check reach training.
"""

import hashlib
import os
import sys
import threading
import time
import traceback
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
from megatron_contract.environment import ENV_PLATFORM
from megatron_contract.hardware import Evidence, classify_error

from megatron_trainer.errors import TrainerError
from megatron_trainer.health.node_faults import DeviceReport
from megatron_trainer.health.preflight_files import (
    DEVICE_CHECK_SECONDS,
    DEVICE_START_SECONDS,
    report_file,
    started_file,
    write_json,
)
from megatron_trainer.telemetry.reporter import STACKS_ENV

_SIZE_ON_GPU, _SIZE_ON_CPU = 4096, 512
_PRODUCTS = 5
_BYTES_ON_GPU, _BYTES_ON_CPU = 64 << 20, 64 << 10


class FaultError(TrainerError):
    """The device computed or copied wrongly."""


def on_gpu() -> bool:
    """Whether this process is to use a GPU."""
    return os.environ.get(ENV_PLATFORM, "gpu") == "gpu"


def local_rank() -> int:
    """This process' rank within its pod."""
    return int(os.environ["LOCAL_RANK"])


def run() -> int:
    """Check this rank's device and leave a report. Returns 0 also if the report names a fault."""
    folder, rank = Path(os.environ[STACKS_ENV]), int(os.environ["RANK"])
    started_file(folder, local_rank()).touch()
    check = _Check(rank)

    def give_up(limit: float) -> None:
        write_json(report_file(folder, local_rank()), check.late(limit).to_json())
        os._exit(0)

    def within(limit: float, step: Callable[[], DeviceReport | None]) -> DeviceReport | None:
        timer = threading.Timer(limit, give_up, (limit,))
        timer.daemon = True
        timer.start()
        report = step()
        timer.cancel()
        return report

    report = within(DEVICE_START_SECONDS, check.start) or within(
        DEVICE_CHECK_SECONDS, lambda: check.run(folder)
    )
    assert report is not None
    write_json(report_file(folder, local_rank()), report.to_json())
    return 0


class _Check:
    """The steps of the check, and how far it has come."""

    def __init__(self, rank: int) -> None:
        self._rank = rank
        self._step = "start of the device"
        self._found: dict[str, Any] = {}

    def start(self) -> DeviceReport | None:
        """Start to use the device. Returns a report only if that fails."""
        try:
            start_device()
        except Exception as error:
            traceback.print_exc()
            return self._failed(f"{type(error).__name__}: {error}")
        return None

    def run(self, folder: Path) -> DeviceReport:
        """Take all steps. What an exception shows is in the report."""
        self._step = "product"
        try:
            self._found["digest"], self._found["product_rate"] = check_product()
            self._step = "copies between devices"
            self._found["copy_rate"] = check_copies()
            self._step = "network loopback"
            self._found["loopback_rate"] = check_loopback(folder)
        except FaultError as error:
            return self._report(fault=str(error), evidence=Evidence.PREFLIGHT)
        except Exception as error:
            traceback.print_exc()
            return self._failed(f"{type(error).__name__}: {error}")
        return self._report()

    def late(self, limit: float) -> DeviceReport:
        """The report of a step that did not end.

        It is no evidence without a GPU, where the machine may be busy, nor at the start of the device, which
        waits for the driver.
        """
        text = f"{self._step}: not done within {limit:.0f} s"
        if self._step == "network loopback":
            return self._report(loopback_error=text)
        computes = on_gpu() and self._step != "start of the device"
        return self._report(fault=text, evidence=Evidence.PREFLIGHT if computes else "")

    def _failed(self, text: str) -> DeviceReport:
        evidence = classify_error(text).evidence
        if self._step == "network loopback" and evidence is None:
            return self._report(loopback_error=text)
        return self._report(fault=f"{self._step}: {text}", evidence=evidence or "")

    def _report(self, **found: Any) -> DeviceReport:
        return DeviceReport(self._rank, **(self._found | found))


def start_device() -> None:
    """Choose this rank's device and compute something on it."""
    if on_gpu():
        torch.cuda.set_device(local_rank())
    else:
        torch.set_num_threads(1)
    ones = torch.ones((16, 16), device="cuda")
    torch.equal(ones @ ones, ones)


def check_product() -> tuple[str, float]:
    """Multiply two [size, size] matrices with a known product several times.

    Returns a digest of the result and the best rate in 10^12 operations per second.

    Own derivation: (u v^T)(w z^T) = (v . w) u z^T. With small whole numbers the sums are exact in any order,
    so every device must return the same bits. Raises FaultError.
    """
    size, kind = (_SIZE_ON_GPU, torch.bfloat16) if on_gpu() else (_SIZE_ON_CPU, torch.float32)
    count = torch.arange(size, device="cuda")
    u, v, w, z = ((count * step % 5 - 2).to(torch.float32) for step in (1, 2, 3, 4))
    left, right = torch.outer(u, v).to(kind), torch.outer(w, z).to(kind)
    expected = (torch.dot(v, w) * torch.outer(u, z)).to(kind)
    best, first = float("inf"), left @ right
    for _ in range(_PRODUCTS):
        again, seconds = _timed(lambda: left @ right)
        best = min(best, seconds)
        if not torch.equal(first, again):
            raise FaultError("different results for the same product")
    wrong = int((first != expected).sum())
    if wrong:
        raise FaultError(f"{wrong} of {size * size} elements of a known product are wrong")
    digest = hashlib.sha256(first.float().cpu().numpy().tobytes()).hexdigest()[:16]
    return digest, 2 * size**3 / best / 1e12


def _timed(operation: Callable[[], Any]) -> tuple[Any, float]:
    """Result and seconds of an operation: of the GPU, or of this thread's processor time without one.

    Processor time, since other processes on the same core prolong every other time.
    """
    clock = time.perf_counter if on_gpu() else time.thread_time
    torch.cuda.synchronize()
    start = clock()
    result = operation()
    torch.cuda.synchronize()
    return result, max(clock() - start, 1e-9)


def check_copies() -> float | None:
    """Copy a tensor to the next device of this node and back. Returns the rate in 10^9 bytes per second.

    None with one device. Raises FaultError.
    """
    if not on_gpu() or (devices := torch.cuda.device_count()) < 2:
        return None
    here = torch.arange(_BYTES_ON_GPU // 4, dtype=torch.int32, device="cuda")
    there = f"cuda:{(local_rank() + 1) % devices}"
    best = float("inf")
    for _ in range(_PRODUCTS):
        back, seconds = _timed(lambda: here.to(there).to(here.device))
        best = min(best, seconds)
        if not torch.equal(here, back):
            raise FaultError(f"a copy to {there} and back differs")
    return float(2 * _BYTES_ON_GPU / best / 1e9)


def check_loopback(folder: Path) -> float | None:
    """Sum a tensor over the ranks of this pod through the network interface.

    NCCL uses it between devices of one node if it may use neither their links nor shared memory. Returns the
    rate in 10^9 bytes per second; None with one rank, and without GPUs, where the time is the machine's load.
    Raises FaultError, or RuntimeError of torch.
    """
    ranks = int(os.environ["LOCAL_WORLD_SIZE"])
    if ranks == 1:
        return None
    os.environ |= {"NCCL_P2P_DISABLE": "1", "NCCL_SHM_DISABLE": "1"}
    store = torch.distributed.FileStore(str(folder / "device-check-store"), ranks)
    group, expected = new_group(store, local_rank(), ranks, DEVICE_CHECK_SECONDS), ranks * (ranks + 1) / 2
    sum_over(group, new_tensor(local_rank()), expected, DEVICE_CHECK_SECONDS)
    if not on_gpu():
        return None
    # The first sum connects too.
    tensor = new_tensor(local_rank())
    return float(tensor.nbytes / sum_over(group, tensor, expected, DEVICE_CHECK_SECONDS) / 1e9)


def new_group(store: Any, rank: int, size: int, seconds: float) -> Any:
    """A process group of its own, not torch's default one. `seconds` limits each operation."""
    limit = timedelta(seconds=seconds)
    if not on_gpu():
        return torch.distributed.ProcessGroupGloo(store, rank, size, limit)
    options = torch.distributed.ProcessGroupNCCL.Options()
    options._timeout = limit
    return torch.distributed.ProcessGroupNCCL(store, rank, size, options)


def new_tensor(rank: int) -> torch.Tensor:
    """What the member `rank` of a group adds to the sum: float32 [elements], each of them rank + 1."""
    bytes_ = _BYTES_ON_GPU if on_gpu() else _BYTES_ON_CPU
    return torch.full((bytes_ // 4,), float(rank + 1), device="cuda")


def sum_over(group: Any, tensor: torch.Tensor, expected: float, limit: float) -> float:
    """Sum `tensor`, of any shape, over the group, in place. Returns the seconds that it took.

    `expected` is the sum of each element, `limit` the seconds that the sum may take. Raises FaultError for a
    wrong sum, or RuntimeError of torch.
    """
    start = time.perf_counter()
    group.allreduce([tensor]).wait(timedelta(seconds=limit))
    if not bool((tensor == expected).all()):
        raise FaultError("a sum over all members is wrong")
    return time.perf_counter() - start


if __name__ == "__main__":
    sys.exit(run())
