"""Gang scheduling without Kueue: what the training-operator needs in a job to create its PodGroup."""

from megatron_operator.api.platform import VOLCANO, GangScheduling
from megatron_operator.api.status import Plan
from megatron_operator.manifests.job_backends import backend_of
from megatron_operator.manifests.metadata import Manifest

LABEL_POD_GROUP = "scheduling.x-k8s.io/pod-group"
ANNOTATION_POD_GROUP = "scheduling.k8s.io/group-name"


def apply(job: Manifest, gangs: GangScheduling | None, plan: Plan, priority_class: str | None) -> None:
    """Let the scheduler place all pods of the job or none; nothing where the platform has no such option.

    The training-operator marks pods as members of the job's PodGroup itself, if it was started with
    `--gang-scheduler-name`. They are marked here too, so that without a PodGroup they wait and report why,
    where a scheduler would otherwise place them one by one.
    """
    if gangs is None:
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
    group = job["metadata"]["name"]
    for pods in backend_of(job).templates(job):
        pods["spec"]["schedulerName"] = gangs.scheduler
        if gangs.scheduler == VOLCANO:
            pods["metadata"].setdefault("annotations", {})[ANNOTATION_POD_GROUP] = group
        else:
            pods["metadata"]["labels"] = pods["metadata"]["labels"] | {LABEL_POD_GROUP: group}
