"""Evidence that hardware failed, and how errors of CUDA and NCCL are classified.

Only such evidence is held against a node: an application that fails would fail elsewhere too.

Sources: the texts of `cudaGetErrorString` (enum cudaError_t of the CUDA runtime API reference), of
`ncclGetErrorString` and of torch.distributed's NCCLUtils.hpp, which torch quotes in its exceptions
(`CUDA error: ...`, `NCCL error: ...`); the line `NVRM: Xid (PCI:...): <code>` of the driver, with the codes
that NVIDIA's Xid catalog (https://docs.nvidia.com/deploy/xid-errors/) attributes to the device and not to the
application.
"""

import re
from dataclasses import dataclass
from enum import StrEnum
from typing import Final


class Evidence(StrEnum):
    """What shows that a node's hardware failed."""

    DEVICE_MEMORY = "DeviceMemory"
    """An ECC error that could not be corrected."""
    DEVICE_LINK = "DeviceLink"
    """An NVLink error that could not be corrected."""
    DEVICE_LOST = "DeviceLost"
    """The device has fallen off the bus, or NVML has lost it."""
    DEVICE_XID = "DeviceXid"
    """Another Xid of the device in the kernel log."""
    PREFLIGHT = "Preflight"
    """The device computed a wrong result, or none, in the preflight."""


class ErrorSource(StrEnum):
    """Where an error of a rank comes from, as far as its text shows."""

    HARDWARE = "hardware"
    """The device of this rank."""
    PEER = "peer"
    """Another rank, or the network to it."""
    DEVICE = "device"
    """A CUDA or NCCL call; software or hardware, which the text does not show."""
    OTHER = "other"
    """None of these."""


@dataclass(frozen=True, slots=True)
class Classified:
    """Where an error comes from; with the evidence where that is the hardware."""

    source: ErrorSource
    evidence: Evidence | None = None


_HARDWARE: Final = (
    ("uncorrectable ecc error", Evidence.DEVICE_MEMORY),
    ("uncorrectable nvlink error", Evidence.DEVICE_LINK),
    ("fallen off the bus", Evidence.DEVICE_LOST),
    ("gpu is lost", Evidence.DEVICE_LOST),
)
_PEER: Final = (
    "remote process exited or there was a network error",
    "unhandled system error",
    "ncclremoteerror",
    "ncclsystemerror",
)
_DEVICE: Final = (
    "cuda error",
    "cuda out of memory",
    "cuda driver error",
    "cublas_status_",
    "cudnn_status_",
    "cudnn error",
    "nccl error",
)
_XID: Final = re.compile(r"NVRM: Xid \([^)]{0,64}\): (\d{1,4})")
_XIDS: Final = {
    48: Evidence.DEVICE_MEMORY,
    64: Evidence.DEVICE_MEMORY,
    74: Evidence.DEVICE_LINK,
    79: Evidence.DEVICE_LOST,
    94: Evidence.DEVICE_MEMORY,
    95: Evidence.DEVICE_MEMORY,
    119: Evidence.DEVICE_XID,
    120: Evidence.DEVICE_XID,
    140: Evidence.DEVICE_MEMORY,
}
"""48 double-bit error, 64 a row could not be remapped, 74 NVLink, 79 off the bus, 94 and 95 contained and
uncontained errors of memory, 119 and 120 the device's system processor, 140 unrecovered errors of memory.
13, 31, 43, 45 and the like are an application's."""


def classify_error(text: str) -> Classified:
    """Classify the text of an exception.

    An illegal address, a launch failure, a device-side assert and too little memory are DEVICE: mostly
    software, so they are no evidence.
    """
    known = text.lower()
    for sign, evidence in _HARDWARE:
        if sign in known:
            return Classified(ErrorSource.HARDWARE, evidence)
    if (found := evidence_in_kernel_log(text)) is not None:
        return Classified(ErrorSource.HARDWARE, found)
    if any(sign in known for sign in _PEER):
        return Classified(ErrorSource.PEER)
    if any(sign in known for sign in _DEVICE):
        return Classified(ErrorSource.DEVICE)
    return Classified(ErrorSource.OTHER)


def evidence_in_kernel_log(text: str) -> Evidence | None:
    """The evidence in lines of the kernel log: of the last Xid that is the device's own fault."""
    found = (_XIDS.get(int(code)) for code in reversed(_XID.findall(text)))
    return next((evidence for evidence in found if evidence is not None), None)
