"""Gang scheduling without Kueue: the scheduler places all pods of a run or none.

Volcano and Coscheduling have PodGroups that the training-operator creates from the job. Kubernetes' own
(`scheduling.k8s.io`, behind the feature gates GenericWorkload and GangScheduling of 1.36) is created by the
operator.
"""

from typing import Final

from megatron_operator.api.labels import LABEL_POD_GROUP
from megatron_operator.api.platform import KUBERNETES, VOLCANO, GangScheduling
from megatron_operator.api.status import Plan
from megatron_operator.catalog.resolved import ResolvedRecipe
from megatron_operator.manifests.affinity import required_levels
from megatron_operator.manifests.job_backends import backend_of
from megatron_operator.manifests.metadata import Manifest, Owner, with_hash

LABEL_COSCHEDULING: Final = "scheduling.x-k8s.io/pod-group"
ANNOTATION_VOLCANO: Final = "scheduling.k8s.io/group-name"

GROUP: Final = "scheduling.k8s.io"
VERSION: Final = "v1alpha2"
PLURAL: Final = "podgroups"
KIND: Final = "PodGroup"
GATE: Final = LABEL_POD_GROUP
"""Scheduling gate of pods of a PodGroup of Kubernetes. `spec.schedulingGroup` is unknown to the resources of
training jobs, so the chart's MutatingAdmissionPolicy sets it from the label and removes the gate: without the
policy pods wait, where the scheduler would otherwise place them one by one."""


def apply(job: Manifest, gangs: GangScheduling | None, plan: Plan, priority_class: str | None) -> None:
    """Let the scheduler place all pods of the job or none; nothing where the platform has no such option.

    The training-operator marks pods as members of the job's PodGroup itself, if it was started with
    `--gang-scheduler-name`. They are marked here too, so that without a PodGroup they wait and report why,
    where a scheduler would otherwise place them one by one.
    """
    if gangs is None:
        return
    group = job["metadata"]["name"]
    if gangs.scheduler == KUBERNETES:
        _gate(job, group)
        return
    policy: Manifest = {"minAvailable": plan.nodes}
    if gangs.scheduler == VOLCANO:
        if gangs.queue is not None:
            policy["queue"] = gangs.queue
        if priority_class is not None:
            policy["priorityClass"] = priority_class
    elif gangs.schedule_timeout_seconds is not None:
        policy["scheduleTimeoutSeconds"] = gangs.schedule_timeout_seconds
    job["spec"]["runPolicy"]["schedulingPolicy"] = policy
    for pods in backend_of(job).templates(job):
        pods["spec"]["schedulerName"] = gangs.scheduler
        if gangs.scheduler == VOLCANO:
            pods["metadata"].setdefault("annotations", {})[ANNOTATION_VOLCANO] = group
        else:
            pods["metadata"]["labels"] = pods["metadata"]["labels"] | {LABEL_COSCHEDULING: group}


def pod_group(owner: Owner, resolved: ResolvedRecipe, plan: Plan) -> Manifest | None:
    """The run's PodGroup of Kubernetes' own API; None where the platform does not schedule gangs with it."""
    gangs = resolved.gang_scheduling
    if gangs is None or gangs.scheduler != KUBERNETES:
        return None
    spec: Manifest = {"schedulingPolicy": {"gang": {"minCount": plan.nodes}}}
    if plan.nodes > 1 and (required := required_levels(resolved, plan)):
        # One at most. Without the gate TopologyAwareWorkloadScheduling the API server drops it.
        spec["schedulingConstraints"] = {"topology": [{"key": required[0]}]}
    return with_hash(
        {
            "apiVersion": f"{GROUP}/{VERSION}",
            "kind": KIND,
            "metadata": owner.metadata(owner.object_name),
            "spec": spec,
        }
    )


def is_gated(pod: Manifest) -> bool:
    """Whether a pod was created without the policy that assigns it to its PodGroup: it never gets a node."""
    return {"name": GATE} in ((pod.get("spec") or {}).get("schedulingGates") or [])


def _gate(job: Manifest, group: str) -> None:
    for pods in backend_of(job).templates(job):
        pods["metadata"]["labels"] = pods["metadata"]["labels"] | {LABEL_POD_GROUP: group}
        pods["spec"]["schedulingGates"] = [{"name": GATE}]
