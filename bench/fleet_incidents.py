"""Training incidents of ByteDance's platform, as causes of faults of a simulated fleet.

Source: Robust LLM Training Infrastructure at ByteDance (ByteRobust, SOSP 2025, arXiv:2509.16293v4), table 1:
55,365 incidents of all 778,135 training jobs in three months. GPU-hours are not published for them, and the
effects are an assumption, as those of `bench.interruptions`.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from bench.interruptions import Cause, Effect


@dataclass(frozen=True, slots=True)
class Incident:
    """A row of table 1."""

    symptom: str
    count: int
    effect: Effect | None
    """None for an incident that the bench cannot replay."""
    infrastructure: float | None = None
    """Share that the infrastructure causes, which then fails until it is repaired; the rest has `effect`."""


ILLEGAL_MEMORY_ACCESS: Final = 21 / 62
"""Share that the infrastructure caused, by table 2: one month of jobs on more than 2,000 GPUs."""
EXPLICIT: Final = (
    # Table 2 has causes for illegal memory access alone, which stands for all CUDA errors here.
    Incident("CUDA Error", 19_968, Effect.RANK, ILLEGAL_MEMORY_ACCESS),
    Incident("CPU Overload", 6_095, Effect.RANK),
    Incident("CPU OOM", 5_567, Effect.RANK),
    Incident("Insufficient Disk Space", 2_755, Effect.RANK),
    # ByteRobust evicts the machine. Kubernetes does not notice: kubelets use another network.
    Incident("Infiniband Error", 1_599, Effect.ACCELERATOR),
    Incident("Filesystem Mount", 1_176, Effect.RANK),
    Incident("HDFS Error", 1_104, Effect.RANK),
    Incident("Container Error", 781, Effect.RANK),
    Incident("OS Kernel Panic", 203, Effect.NODE),
    Incident("GPU Memory Error", 188, Effect.ACCELERATOR),
    Incident("External Service Error", 128, Effect.RANK),
    Incident("GPU Unavailable", 76, Effect.ACCELERATOR),
    Incident("Disk Fault", 47, Effect.NODE),
)
IMPLICIT: Final = (
    Incident("Job Hang", 5_506, Effect.HANG),
    # Simulated ranks are never slow, and compute no loss.
    Incident("MFU Decline", 442, None),
    Incident("NaN value", 148, None),
)
# Llama 3's planned interruptions include such changes, and are drains too.
MANUAL: Final = Incident("Code/Data Adjustment", 9_582, Effect.DRAIN)
INCIDENTS: Final = (*EXPLICIT, *IMPLICIT, MANUAL)


def _causes() -> Iterator[Cause]:
    for each in INCIDENTS:
        if each.effect is None:
            continue
        if each.infrastructure is None:
            yield Cause(each.symptom, each.count, each.effect)
            continue
        failed = round(each.count * each.infrastructure)
        yield Cause(f"{each.symptom}, infrastructure", failed, Effect.ACCELERATOR)
        yield Cause(f"{each.symptom}, user code", each.count - failed, each.effect)


CAUSES: Final = tuple(_causes())
"""What the bench replays of them. The others are left out, as if they did not happen."""
