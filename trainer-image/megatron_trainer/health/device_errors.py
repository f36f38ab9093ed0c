"""Errors that NVML reports of this pod's devices: lost devices, ECC errors, memory to be replaced, Xids.

A rank on a device that has failed often sees no more than "unspecified launch failure" or "unknown error".
NVML knows why, where the container's driver capabilities include `utility`.
"""

import contextlib
import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from megatron_contract.exit_codes import ExitCode
from megatron_contract.hardware import Evidence, evidence_in_kernel_log

from megatron_trainer.termination import Ending

# A driver may not answer for a device that has failed.
_ANSWER_SECONDS = 5.0
_NOT_REMAPPED = "a row of memory of device {} could not be remapped"


class DeviceErrors:
    """Finds what has failed since this object was created; nothing where there is no NVML."""

    def __init__(self) -> None:
        self._nvml: Any = None
        self._devices: dict[int, Any] = {}
        self._uncorrected: dict[int, int] = {}
        self._awaiting_reset: dict[int, str | None] = {}
        self._events: Any = None
        self._found: tuple[Evidence, str] | None = None
        _within_time(self._start)

    def explain(self, ending: Ending) -> Ending:
        """Add the evidence of a failed device to the end of a rank that died."""
        if ending.evidence is not None or ending.code != ExitCode.WORKER_DIED or self._nvml is None:
            return ending
        _within_time(self._search)
        if self._found is None:
            return ending
        evidence, text = self._found
        return replace(ending, message=f"{ending.message} (NVML: {text})", evidence=evidence)

    def _start(self) -> None:
        import pynvml

        pynvml.nvmlInit()
        events = pynvml.nvmlEventSetCreate()
        for index in range(pynvml.nvmlDeviceGetCount()):
            # A device that is lost already is one too.
            self._devices[index] = None
            with contextlib.suppress(pynvml.NVMLError):
                device = pynvml.nvmlDeviceGetHandleByIndex(index)
                self._devices[index] = device
                self._awaiting_reset[index] = _awaiting_reset(pynvml, device)
                self._uncorrected[index] = _uncorrected(pynvml, device)
                pynvml.nvmlDeviceRegisterEvents(device, pynvml.nvmlEventTypeXidCriticalError, events)
        self._nvml, self._events = pynvml, events

    def _search(self) -> None:
        if self._found is None:
            self._found = self._lost_device() or self._ecc_error() or self._worn_memory() or self._xid()

    def _lost_device(self) -> tuple[Evidence, str] | None:
        for index in self._devices:
            try:
                self._nvml.nvmlDeviceGetUUID(self._nvml.nvmlDeviceGetHandleByIndex(index))
            except self._nvml.NVMLError_GpuIsLost:
                return Evidence.DEVICE_LOST, f"device {index} is lost"
            except self._nvml.NVMLError:
                continue
        return None

    def _ecc_error(self) -> tuple[Evidence, str] | None:
        for index, before in self._uncorrected.items():
            with contextlib.suppress(self._nvml.NVMLError):
                if (new := _uncorrected(self._nvml, self._devices[index]) - before) > 0:
                    return Evidence.DEVICE_MEMORY, f"{new} uncorrectable ECC errors on device {index}"
        return None

    def _worn_memory(self) -> tuple[Evidence, str] | None:
        """A row whose remapping failed, at any time; a row or page that waits for a reset since the start.

        What waited before is not used any more, so it cannot be why a rank died.
        """
        for index, device in self._devices.items():
            if device is None:
                continue
            if _remapped_rows(self._nvml, device)[1]:
                return Evidence.DEVICE_MEMORY, _NOT_REMAPPED.format(index)
            found = _awaiting_reset(self._nvml, device)
            if found is not None and found != self._awaiting_reset[index]:
                return Evidence.DEVICE_MEMORY, found.format(index)
        return None

    def _xid(self) -> tuple[Evidence, str] | None:
        """The first Xid that is the device's own fault. Those of applications are skipped."""
        with contextlib.suppress(self._nvml.NVMLError):
            while True:
                event = self._nvml.nvmlEventSetWait(self._events, 0)
                xid = int(event.eventData)
                if evidence := evidence_in_kernel_log(f"NVRM: Xid (NVML): {xid}"):
                    index = self._nvml.nvmlDeviceGetIndex(event.device)
                    return evidence, f"Xid {xid} of device {index}"
        return None


def standing_fault() -> tuple[Evidence, str] | None:
    """What NVML reports of this pod's devices at any time: one is lost, or its memory is to be replaced.

    None too where there is no NVML, or its driver does not answer.
    """
    found: list[tuple[Evidence, str]] = []

    def ask() -> None:
        import pynvml

        pynvml.nvmlInit()
        for index in range(pynvml.nvmlDeviceGetCount()):
            try:
                device = pynvml.nvmlDeviceGetHandleByIndex(index)
                pynvml.nvmlDeviceGetUUID(device)
            except pynvml.NVMLError_GpuIsLost:
                found.append((Evidence.DEVICE_LOST, f"device {index} is lost"))
                continue
            if _remapped_rows(pynvml, device)[1]:
                found.append((Evidence.DEVICE_MEMORY, _NOT_REMAPPED.format(index)))
            elif text := _awaiting_reset(pynvml, device):
                found.append((Evidence.DEVICE_MEMORY, text.format(index)))

    _within_time(ask)
    return found[0] if found else None


def _uncorrected(nvml: Any, device: Any) -> int:
    """Uncorrectable ECC errors since the driver was loaded."""
    return int(
        nvml.nvmlDeviceGetTotalEccErrors(
            device, nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, nvml.NVML_VOLATILE_ECC
        )
    )


def _remapped_rows(nvml: Any, device: Any) -> tuple[bool, bool]:
    """Whether a remapping of rows waits for a reset, and whether one failed; from Ampere on."""
    with contextlib.suppress(nvml.NVMLError):
        _, _, pending, failed = nvml.nvmlDeviceGetRemappedRows(device)
        return bool(pending), bool(failed)
    return False, False


def _awaiting_reset(nvml: Any, device: Any) -> str | None:
    """What of a device's memory is replaced at the next reset, with a place for the device's index."""
    if _remapped_rows(nvml, device)[0]:
        return "a row of memory of device {} waits for a reset to be remapped"
    with contextlib.suppress(nvml.NVMLError):
        if nvml.nvmlDeviceGetRetiredPagesPendingStatus(device):
            return "a page of memory of device {} waits for a reboot to be retired"
    return None


def _within_time(ask: Callable[[], None]) -> None:
    """Ask NVML in a thread, which is left alone if the driver does not answer."""

    def guarded() -> None:
        # No NVML, no devices, or an error of the driver: nothing is known.
        with contextlib.suppress(Exception):
            ask()

    thread = threading.Thread(target=guarded, name="nvml", daemon=True)
    thread.start()
    thread.join(_ANSWER_SECONDS)
