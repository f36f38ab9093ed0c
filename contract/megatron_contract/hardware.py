"""Evidence that hardware failed, and how errors of CUDA and NCCL are classified.

Only such evidence is held against a node: an application that fails would fail elsewhere too.

Sources: the texts of `cudaGetErrorString` (enum cudaError_t of the CUDA runtime API reference), of
`ncclGetErrorString` and of torch.distributed's NCCLUtils.hpp, which torch quotes in its exceptions
(`CUDA error: ...`, `NCCL error: ...`); the line `NVRM: Xid (PCI:...): <code>` of the driver, and what
NVIDIA's Xid catalog for Ampere and newer GPUs (release 610, 172 codes,
https://docs.nvidia.com/deploy/xid-errors/analyzing-xid-catalog.html) names as a code's immediate action.
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
    "caught collective operation timeout",
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
XIDS: Final = {
    46: Evidence.DEVICE_XID,
    48: Evidence.DEVICE_MEMORY,
    62: Evidence.DEVICE_XID,
    64: Evidence.DEVICE_MEMORY,
    74: Evidence.DEVICE_LINK,
    79: Evidence.DEVICE_LOST,
    94: Evidence.DEVICE_MEMORY,
    95: Evidence.DEVICE_MEMORY,
    109: Evidence.DEVICE_XID,
    110: Evidence.DEVICE_XID,
    119: Evidence.DEVICE_XID,
    120: Evidence.DEVICE_XID,
    136: Evidence.DEVICE_LINK,
    140: Evidence.DEVICE_MEMORY,
    143: Evidence.DEVICE_XID,
    155: Evidence.DEVICE_LINK,
    156: Evidence.DEVICE_XID,
    158: Evidence.DEVICE_XID,
}
"""Xid -> evidence. These are the codes whose immediate action in the catalog is RESET_GPU or RESTART_BM: no
program can use the device before that. Further 48 and 74, whose workflows end with a reset, and 94
(RESTART_APP): memory that could not be corrected, which CUDA reports by the same text as 48 and 95, and after
which the catalog advises a reset when convenient. Not here are the codes with RESTART_APP, IGNORE, an action
for software or none: 8, 11, 13, 31, 32, 43, 45, 63, 69, 92, 121, 137, 167 to 172 and the like."""
FATAL_LINK_XIDS: Final = frozenset(range(144, 151))
"""NVLink of Blackwell (WORKFLOW_NVLINK5_ERR): evidence where the line calls the error fatal."""
RECOVERY_XID: Final = 154
"""The driver's own verdict on the device: evidence where the line asks for a reset or a reboot."""
_FATAL: Final = re.compile(r"\bfatal\b", re.IGNORECASE)
_RESET: Final = re.compile(r"\b(?:reset required|reboot required|drain and reset)\b[^(]*$", re.IGNORECASE)


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
    found = (_evidence_in_line(line) for line in reversed(text.splitlines()))
    return next((evidence for evidence in found if evidence is not None), None)


def _evidence_in_line(line: str) -> Evidence | None:
    match = _XID.search(line)
    if match is None:
        return None
    code, rest = int(match[1]), line[match.end() :].rstrip(" )")
    if code in FATAL_LINK_XIDS:
        return Evidence.DEVICE_LINK if _FATAL.search(rest) else None
    if code == RECOVERY_XID:
        return Evidence.DEVICE_XID if _RESET.search(rest) else None
    return XIDS.get(code)
