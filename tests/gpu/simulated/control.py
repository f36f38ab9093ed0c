"""The states of the simulated devices: tests write them, the simulated driver and NVML read them."""

import os
import struct
from enum import IntEnum
from pathlib import Path

STATE_ENV = "SIMULATED_GPU_STATE"
# DeviceState of simulation.h.
_LAYOUT = struct.Struct("=6I2Q3I12x")
_MAX_DEVICES = 16
_FIELDS = {
    "error": (0, "=I"),
    "wedged": (4, "=I"),
    "lost": (8, "=I"),
    "failing_allocations": (12, "=I"),
    "xid": (16, "=I"),
    "xid_count": (20, "=I"),
    "ecc_corrected": (24, "=Q"),
    "ecc_uncorrected": (32, "=Q"),
    "remap_pending": (40, "=I"),
    "remap_failed": (44, "=I"),
    "retirement_pending": (48, "=I"),
}


class CudaError(IntEnum):
    """Errors of a kernel, as CUresult and cudaError_t number them."""

    ECC_UNCORRECTABLE = 214
    NVLINK_UNCORRECTABLE = 220
    ILLEGAL_ADDRESS = 700
    ASSERT = 710
    LAUNCH_FAILED = 719


class Devices:
    """The states in the file `path`, all devices healthy if it does not exist yet."""

    def __init__(self, path: Path) -> None:
        self.path = path
        if not path.exists():
            self.reset()

    def reset(self) -> None:
        """Have all devices be healthy. Processes keep the file mapped, so it is not replaced."""
        with self.path.open("r+b" if self.path.exists() else "wb") as file:
            file.write(bytes(_LAYOUT.size * _MAX_DEVICES))

    def set(self, device: int, **values: int) -> None:
        """Set fields of a device's state, in the given order."""
        with self.path.open("r+b", buffering=0) as file:
            for name, value in values.items():
                offset, form = _FIELDS[name]
                os.pwrite(file.fileno(), struct.pack(form, value), _LAYOUT.size * device + offset)

    def get(self, device: int, name: str) -> int:
        """Return a field of a device's state."""
        offset, form = _FIELDS[name]
        with self.path.open("rb", buffering=0) as file:
            data = os.pread(file.fileno(), struct.calcsize(form), _LAYOUT.size * device + offset)
        return int(struct.unpack(form, data)[0])

    def report_xid(self, device: int, xid: int) -> None:
        """Have NVML report another Xid."""
        self.set(device, xid=xid, xid_count=self.get(device, "xid_count") + 1)
