"""Checks for a scheduler that starts all pods of a run together: the one that the platform names."""

from collections.abc import Iterator

from megatron_operator.api.platform import KUBERNETES, VOLCANO, PlatformConfig
from megatron_operator.cli.cluster_objects import ClusterObjects, Finding, crd_names, unreadable

LOCAL_QUEUES = "localqueues.kueue.x-k8s.io"
_OF_VOLCANO = "podgroups.scheduling.volcano.sh"
_OF_COSCHEDULING = "podgroups.scheduling.x-k8s.io"
GANG_SCHEDULERS = {
    LOCAL_QUEUES: "Kueue",
    _OF_VOLCANO: "Volcano",
    _OF_COSCHEDULING: "Coscheduling of scheduler-plugins",
}
"""CustomResourceDefinition -> the scheduler that starts all pods of a gang together."""


def gang_scheduling(objects: ClusterObjects, platform: PlatformConfig | None) -> Iterator[Finding]:
    """A scheduler that starts all pods of a run together."""
    check = "gang scheduling"
    named = _named(platform)
    if named == KUBERNETES:
        message = "Kubernetes' own; its feature gates GenericWorkload and GangScheduling cannot be read"
        fix = "kubectl api-resources --api-group=scheduling.k8s.io lists podgroups where the first is on"
        yield Finding(check, "unknown", message, fix)
        return
    if objects.crds is None:
        yield unreadable(objects, check, "crds")
        return
    names = crd_names(objects)
    if named is not None:
        scheduler, field = GANG_SCHEDULERS[named], "queue" if named == LOCAL_QUEUES else "gangScheduling"
        if named in names:
            yield Finding(check, "ok", scheduler)
        else:
            message = f"the platform has {field}, and {named} is not defined"
            fix = f"install {scheduler}, or remove {field} from the platform (docs/platform.md)"
            yield Finding(check, "missing", message, fix)
        return
    found = [scheduler for crd, scheduler in GANG_SCHEDULERS.items() if crd in names]
    if found:
        yield Finding(check, "ok", ", ".join(found))
        return
    message = (
        "no Kueue, Volcano or Coscheduling: two runs that each get half of the nodes wait for each other"
    )
    yield Finding(check, "warning", message, "install one and set queue or gangScheduling of the platform")


def _named(platform: PlatformConfig | None) -> str | None:
    """The CustomResourceDefinition of the scheduler that the platform names, or `kubernetes`."""
    if platform is None:
        return None
    if (gangs := platform.gang_scheduling) is not None:
        own = {KUBERNETES: KUBERNETES, VOLCANO: _OF_VOLCANO}
        return own.get(gangs.scheduler, _OF_COSCHEDULING)
    return None if platform.queue is None else LOCAL_QUEUES
