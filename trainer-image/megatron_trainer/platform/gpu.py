"""The gpu platform: what depends on the packages of the image and on the devices of the pod.

CUDA cannot be used in a process forked from one that has used it, and asking its runtime whether there is a
device is use already. Megatron and torch ask while they are imported. NVML, the driver's library for
monitoring, answers the same questions without that effect.
"""

import contextlib
import os
import select
import signal
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

NVML_CHECK_ENV = "PYTORCH_NVML_BASED_CUDA_CHECK"
_PROBE_SECONDS = 60.0
_NVML_SECONDS = 5.0
_MAX_REASON_BYTES = 500
DRIVER_THREAD = "cuda"
"""How the names of the driver's threads begin. One ran after the imports on an H200 (driver 580.159)."""


def adapt(argv: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return Megatron's flags with those added that the installed packages require, and the added words.

    Megatron fuses the accumulation of gradients by default, with a kernel of Apex that its output layer
    requires even where all others are Transformer Engine's (`megatron.core.tensor_parallel.layers`). Apex is
    on no package index. Imports Megatron.
    """
    added = []
    flag = "--no-gradient-accumulation-fusion"
    if not _fuses_gradient_accumulation() and flag not in argv:
        added.append(flag)
    return [*argv, *added], added


def adapt_model(config: Any) -> None:
    """Change the model configuration of Megatron-Bridge as the installed packages require. Imports Megatron.

    Bridge fuses the accumulation of gradients wherever Transformer Engine is installed.
    """
    if not _fuses_gradient_accumulation():
        config.gradient_accumulation_fusion = False


def _fuses_gradient_accumulation() -> bool:
    """Whether Megatron's output layer finds Apex's kernel."""
    from megatron.core.tensor_parallel import layers

    return bool(layers._grad_accum_fusion_available)


@contextlib.contextmanager
def imports_without_cuda() -> Iterator[None]:
    """Answer from NVML what imports ask about devices: their number, name, compute capability and memory.

    Without an answer of NVML (its library is not in the container, MIG devices) they ask CUDA as usual;
    `explain_cold_start` notices that. Imports torch.
    """
    os.environ[NVML_CHECK_ENV] = "1"
    # numpy's OpenBLAS starts its threads at import, as many as OMP_NUM_THREADS unless this is set.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    import torch

    cuda: Any = torch.cuda
    current_device, properties = cuda.current_device, cuda.get_device_properties
    importing = True

    # A module may have copied the names: after the imports the copies ask CUDA.
    def answer_current_device() -> Any:
        return 0 if importing else current_device()

    def answer_properties(device: Any = None) -> Any:
        return (importing and _properties(device)) or properties(device)

    cuda.current_device, cuda.get_device_properties = answer_current_device, answer_properties
    try:
        yield
    finally:
        importing = False
        cuda.current_device, cuda.get_device_properties = current_device, properties


def _properties(device: Any) -> SimpleNamespace | None:
    """Return what NVML reports of a device that torch names, None if NVML does not answer."""
    import pynvml
    import torch

    try:
        handle = torch.cuda._get_pynvml_handler(0 if device is None else device)
        major, minor = pynvml.nvmlDeviceGetCudaComputeCapability(handle)
        return SimpleNamespace(
            name=pynvml.nvmlDeviceGetName(handle),
            major=major,
            minor=minor,
            total_memory=pynvml.nvmlDeviceGetMemoryInfo(handle).total,
        )
    except (pynvml.NVMLError, RuntimeError, ModuleNotFoundError):
        return None


def bus_ids(count: int) -> list[str | None]:
    """Return the places on the PCI bus of the first `count` devices that torch sees, None where unknown.

    Asked in a thread, which is left alone if the driver does not answer. Imports torch.
    """
    # Not in the thread: an import may take longer than the driver has.
    import pynvml
    import torch

    found: list[str | None] = [None] * count

    def ask() -> None:
        for device in range(count):
            # Without NVML, or for a lost device, nothing is known.
            with contextlib.suppress(pynvml.NVMLError, RuntimeError, ModuleNotFoundError):
                handle = torch.cuda._get_pynvml_handler(device)
                found[device] = str(pynvml.nvmlDeviceGetPciInfo(handle).busId)

    thread = threading.Thread(target=ask, name="nvml", daemon=True)
    thread.start()
    thread.join(_NVML_SECONDS)
    return list(found)


def explain_cold_start() -> str | None:
    """Return why ranks forked from this process could not use CUDA, None if they can.

    A child tries it: torch's own mark of a process that has used CUDA does not cover other libraries. Call it
    after the imports. Other threads than the driver's may hold a lock that a child waits for.
    """
    threads = sorted(set(other_threads()))
    if any(not name.startswith(DRIVER_THREAD) for name in threads):
        return f"the imports have started threads ({', '.join(threads)})"
    read, write = os.pipe()
    sys.stdout.flush()
    sys.stderr.flush()
    pid = os.fork()
    if pid == 0:
        os.close(read)
        _initialise_cuda(write)
    os.close(write)
    try:
        return _answer_of_probe(pid, read)
    finally:
        os.close(read)


def other_threads() -> list[str]:
    """Return the names of all threads but the main one."""
    tasks = Path("/proc/self/task").iterdir()
    return [(task / "comm").read_text().strip() for task in tasks if task.name != str(os.getpid())]


def _initialise_cuda(answer: int) -> None:
    """Initialise CUDA in the probe and write "" followed by how that failed, if it did. Does not return."""
    try:
        import torch

        torch.cuda.init()
        os.write(answer, b"ok")
    except BaseException as error:
        os.write(answer, " ".join(str(error).split()).encode()[:_MAX_REASON_BYTES] or b"unknown error")
    finally:
        os._exit(0)


def _answer_of_probe(pid: int, answer: int) -> str | None:
    deadline = time.monotonic() + _PROBE_SECONDS
    if not select.select([answer], [], [], max(0.0, deadline - time.monotonic()))[0]:
        # Not waited for: a process that the driver blocks may never end.
        os.kill(pid, signal.SIGKILL)
        return f"a forked child did not initialise CUDA within {_PROBE_SECONDS:.0f} s"
    outcome = os.read(answer, _MAX_REASON_BYTES).decode(errors="replace")
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    if outcome == "ok":
        return None
    return outcome or f"a forked child that initialised CUDA ended with code {status}"
