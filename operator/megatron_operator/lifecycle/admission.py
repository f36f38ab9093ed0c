"""Why Kueue has not admitted a job, from the Workload that it keeps of it."""

from collections.abc import Sequence
from typing import Final

from megatron_operator.api.times import seconds
from megatron_operator.lifecycle.object_metadata import Object
from megatron_operator.manifests.kueue import priority_class

LABEL_JOB_UID: Final = "kueue.x-k8s.io/job-uid"
"""Label of a Workload with the UID of its job."""
CREATION: Final = 10.0
"""Seconds that Kueue may take to create the Workload of a job."""
FIRST_REREAD: Final = 15.0
SLOWEST_REREAD: Final = 600.0
"""Bounds of the seconds after which the Workload of a job that stays queued is read again."""


def reason_not_admitted(job: Object, workloads: Sequence[Object], now: float) -> str:
    """What Kueue reports about a suspended job with these Workloads; empty where it reports nothing."""
    if not workloads:
        created = seconds(job["metadata"].get("creationTimestamp")) or now
        return _not_managed(job) if now - created >= CREATION else ""
    spec = workloads[0]["spec"]
    if spec.get("active") is False:
        return "its Workload is deactivated (spec.active)"
    conditions = {each["type"]: each for each in (workloads[0].get("status") or {}).get("conditions") or ()}
    reported = (conditions.get(kind) or {} for kind in ("QuotaReserved", "Admitted"))
    message = next((each.get("message") for each in reported if each.get("status") == "False"), None)
    if not message:
        return ""
    requests = [each.get("topologyRequest") or {} for each in spec.get("podSets") or ()]
    required = {str(each["required"]) for each in requests if "required" in each}
    levels = "".join(f"; all pods must share {each}" for each in sorted(required))
    return " ".join(str(message).split()) + levels


def _not_managed(job: Object) -> str:
    name = priority_class(job)
    exists = f", and is there a WorkloadPriorityClass {name}" if name else ""
    return f"Kueue has created no Workload for it; does Kueue manage {job['kind']}s{exists}?"


def reread_after(waited: float) -> float:
    """Seconds until the Workload of a job that has been queued for `waited` seconds is read again."""
    return min(max(waited / 3, FIRST_REREAD), SLOWEST_REREAD)
