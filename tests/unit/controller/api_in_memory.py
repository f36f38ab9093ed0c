"""The API client over a simulated cluster, as far as the reconciler uses it.

It rejects writes of an operator that was killed.
"""

import functools
import json
from collections.abc import AsyncIterator
from copy import deepcopy
from email.utils import formatdate
from typing import Any, Final

from megatron_operator.api.labels import FIELD_MANAGER, LABEL_RECIPE, LABEL_ROLE
from megatron_operator.api.times import timestamp
from megatron_operator.controller.api_client import ApiError
from megatron_operator.controller.api_resources import (
    BATCH_JOBS,
    CLAIMS,
    COMPUTE_DOMAINS,
    EVENTS,
    JOBS,
    JOBSETS,
    NETWORK_POLICIES,
    NODES,
    POD_GROUPS,
    PODS,
    RECIPES,
    SECRETS,
    WORKLOAD_PRIORITY_CLASSES,
    WORKLOADS,
    Resource,
)
from megatron_operator.controller.clock import ServerClock
from megatron_operator.lifecycle.object_metadata import Object
from megatron_operator.manifests.affinity import HOSTNAME
from megatron_operator.manifests.metadata import ROLE_TRAINER
from megatron_operator.manifests.node_avoidance import avoided, avoiding

from tests.unit.controller.simulated_cluster import GRACE, PER_NODE, Cluster, Pod

NAME, NAMESPACE, UID = "run", "default", "recipe-uid"
LONGEST_LABEL: Final = 63
"""Characters of a label's value."""


class KilledError(BaseException):
    """The operator was killed before this write. No handler of the operator's may see it."""


class ApiInMemory:
    """Stands in for `controller.api_client.ApiClient`. `writes_left` counts writes down to the death."""

    def __init__(self, cluster: Cluster, spec: dict[str, Any]) -> None:
        self.cluster = cluster
        self.ahead = 0.0
        """Seconds by which the operator's clock is ahead of the cluster's."""
        self.clock = ServerClock(lambda: cluster.now + self.ahead)
        self.writes_left: int | None = None
        self.recipe: Object = {
            "metadata": {
                "name": NAME,
                "namespace": NAMESPACE,
                "uid": UID,
                "generation": 1,
                "resourceVersion": "1",
                "creationTimestamp": timestamp(cluster.now),
            },
            "spec": spec,
        }
        self.recipe_deleted = False
        self.other_recipes: dict[str, Object] = {}
        self.deleted: list[Pod] = []
        """Pods with a node that were deleted with a grace period."""
        self.graces: list[int | None] = []
        """Those grace periods in seconds; None for a pod's own."""
        self._created = 0
        self.posted: list[Object] = []
        """Events."""
        self._job: Object | None = None
        self.waiting_pods = 0
        """Of the gang of another run, which has no node."""
        self.waiting_since = 0.0
        """When they were created, seconds since the epoch."""
        self.claims: dict[str, Object] = {}
        self.jobsets: dict[str, Object] = {}
        self.batch_jobs: dict[str, Object] = {}
        self.batch_pods: list[Object] = []
        self.events: list[Object] = []
        """Pods of batch Jobs."""
        self.secrets: dict[str, Object] = {}
        self.network_policies: dict[str, Object] = {}
        self.compute_domains: dict[str, Object] | None = {}
        """None: the cluster does not know the resource."""
        self.pod_groups: dict[str, Object] | None = {}
        """Those of Kubernetes; None: it does not serve them."""
        self.workloads: list[Object] = []
        """Kueue's, of whichever job is asked for."""
        self.workload_priority_classes: set[str] | None = set()
        """Names of Kueue's; None: the operator may not list them."""

    async def get(self, resource: Resource, namespace: str, name: str) -> Object | None:
        del namespace
        self._respond()
        assert resource is not SECRETS, "the operator may not read Secrets"
        if resource is RECIPES:
            own = None if self.recipe_deleted else self.recipe
            return own if name == self.recipe["metadata"]["name"] else self.other_recipes.get(name)
        if resource is JOBS:
            return self.job()
        if resource in (COMPUTE_DOMAINS, POD_GROUPS) and self._before_pods(resource) is None:
            return None
        return self._stored(resource).get(name)

    async def find(
        self,
        resource: Resource,
        namespace: str | None,
        *,
        labels: str | None = None,
        fields: str | None = None,
    ) -> list[Object]:
        self._respond()
        if any(len(each.partition("=")[2]) > LONGEST_LABEL for each in (labels or "").split(",")):
            raise ApiError(400, "BadRequest", f"unable to parse requirement: {labels}")
        if resource is NODES:
            nodes = [self._node(name) for name in self.cluster.nodes]
            return [n for n in nodes if fields in (None, f"metadata.name={n['metadata']['name']}")]
        if resource is PODS and labels and f"{LABEL_ROLE}={ROLE_TRAINER}" not in labels:
            return self.batch_pods
        if resource is PODS:
            pods = [self.pod(pod) for pod in self.cluster.pods]
            return pods if namespace else pods + self._others() + self._waiting()
        if resource is BATCH_JOBS:
            return list(self.batch_jobs.values())
        if resource is WORKLOADS:
            return self.workloads
        if resource is WORKLOAD_PRIORITY_CLASSES:
            if self.workload_priority_classes is None:
                raise ApiError(403, "Forbidden", "cannot list resource workloadpriorityclasses")
            names = [n for n in self.workload_priority_classes if fields == f"metadata.name={n}"]
            return [{"metadata": {"name": name}} for name in names]
        assert resource is EVENTS, resource
        return self.events

    async def pages(
        self, resource: Resource, namespace: str | None, *, fields: str | None = None
    ) -> AsyncIterator[list[Object]]:
        yield await self.find(resource, namespace, fields=fields)

    async def versioned_pages(
        self, resource: Resource, namespace: None
    ) -> AsyncIterator[tuple[str, list[Object]]]:
        assert resource is NODES
        assert namespace is None
        yield "1", [self._node(name) for name in self.cluster.nodes]

    async def apply(self, resource: Resource, body: Object, subresource: str | None = None) -> Object:
        self._write()
        assert resource is RECIPES, f"{resource} would be applied over what others have set"
        assert subresource == "status"
        if self.recipe_deleted:
            raise ApiError(404, "NotFound", "the recipe does not exist")
        found, asked = self.recipe["metadata"], body["metadata"]
        if any(asked[name] != found[name] for name in ("uid", "resourceVersion")):
            raise ApiError(409, "Conflict", "the recipe has changed")
        require_no_map_emptied(self.recipe.get("status") or {}, body["status"])
        version = int(self.recipe["metadata"]["resourceVersion"]) + 1
        managed = {"manager": FIELD_MANAGER, "subresource": "status", "time": timestamp(self.cluster.now)}
        metadata = self.recipe["metadata"] | {"resourceVersion": str(version), "managedFields": [managed]}
        self.recipe = self.recipe | {"metadata": metadata, "status": json.loads(json.dumps(body["status"]))}
        return self.recipe

    async def create(self, resource: Resource, body: Object) -> Object:
        self._write()
        if resource is EVENTS:
            self.posted.append(body)
            return body
        name = body["metadata"]["name"]
        if resource is not JOBS:
            stored = self._stored(resource)
            if name in stored:
                raise ApiError(409, "AlreadyExists", f"{name} already exists")
            self._created += 1
            identity = self._identity(f"{resource.plural}-{name}-{self._created}")
            stored[name] = deepcopy(body) | {"metadata": body["metadata"] | identity}
            return stored[name]
        if self._job is not None:
            raise ApiError(409, "AlreadyExists", f"{name} already exists")
        assert not self.cluster.pods, "two gangs would write one checkpoint"
        size = sum(r["replicas"] for r in body["spec"]["pytorchReplicaSpecs"].values())
        self.cluster.make_job(size, avoided(body))
        assert self.cluster.job is not None
        metadata = body["metadata"] | self._identity(f"job-{self.cluster.job.uid}")
        self._job = deepcopy(body) | {"metadata": metadata}
        return self._job

    def _identity(self, uid: str) -> Object:
        return {"uid": uid, "resourceVersion": "1", "creationTimestamp": timestamp(self.cluster.now)}

    async def merge(self, resource: Resource, target: Object, changes: Object) -> Object:
        self._write()
        if resource in (CLAIMS, NETWORK_POLICIES):
            stored, name = self._stored(resource), target["metadata"]["name"]
            assert stored[name]["metadata"]["uid"] == target["metadata"]["uid"]
            stored[name] = _merged(stored[name], changes)
            return stored[name]
        assert resource is JOBS, resource
        if self._job is not None and self._job["metadata"]["uid"] == target["metadata"]["uid"]:
            self._job = _merged(self._job, changes)
            assert self.cluster.job is not None
            self.cluster.job.avoids = avoided(self._job)
        return changes

    async def delete(
        self,
        resource: Resource,
        target: Object,
        grace_seconds: int | None = None,
        *,
        same_version: bool = False,
    ) -> None:
        self._write()
        uid = target["metadata"]["uid"]
        if resource is JOBS:
            if self._job is not None and self._job["metadata"]["uid"] == uid:
                self._job = None
                self.cluster.delete_job()
            return
        if resource in (BATCH_JOBS, POD_GROUPS):
            self._stored(resource).pop(target["metadata"]["name"])
            return
        assert resource is PODS, resource
        pod = next((pod for pod in self.cluster.pods if f"pod-{pod.uid}" == uid), None)
        if pod is None or (same_version and target != self.pod(pod)):
            return
        if grace_seconds == 0:
            self.cluster.delete_now(pod)
        else:
            self.deleted += [pod] if pod.node is not None else []
            self.graces += [grace_seconds] if pod.node is not None else []
            self.cluster.delete(pod)

    def _before_pods(self, resource: Resource) -> dict[str, Object] | None:
        return self.compute_domains if resource is COMPUTE_DOMAINS else self.pod_groups

    def _stored(self, resource: Resource) -> dict[str, Object]:
        if resource in (COMPUTE_DOMAINS, POD_GROUPS):
            if (stored := self._before_pods(resource)) is None:
                raise ApiError(404, "NotFound", "the server could not find the requested resource")
            return stored
        return {
            CLAIMS: self.claims,
            JOBSETS: self.jobsets,
            BATCH_JOBS: self.batch_jobs,
            SECRETS: self.secrets,
            NETWORK_POLICIES: self.network_policies,
        }[resource]

    def _respond(self) -> None:
        self.clock.synchronize(formatdate(self.cluster.now, usegmt=True))

    def _write(self) -> None:
        self._respond()
        if self.writes_left is None:
            return
        if self.writes_left == 0:
            self.writes_left = None
            raise KilledError
        self.writes_left -= 1

    def job(self) -> Object | None:
        if self._job is None:
            return None
        done = [{"type": "Succeeded", "status": "True"}] if self.cluster.succeeded else []
        return self._job | {"status": {"conditions": done}}

    def pod(self, pod: Pod) -> Object:
        """The pod as the API server returns it."""
        kind, index = ("master", 0) if pod.rank == 0 else ("worker", pod.rank - 1)
        template = _template(pod.avoids)
        scheduled = {"type": "PodScheduled", "status": "True", "lastTransitionTime": timestamp(pod.bound_at)}
        if pod.node is None:
            scheduled = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}
        body: Object = {
            "metadata": {
                "name": f"{NAME}-{kind}-{index}",
                "namespace": NAMESPACE,
                "uid": f"pod-{pod.uid}",
                "creationTimestamp": timestamp(pod.created),
                "ownerReferences": [{"uid": f"job-{pod.job}"}],
                "labels": {
                    "training.kubeflow.org/replica-type": kind,
                    "training.kubeflow.org/replica-index": str(index),
                    "training.kubeflow.org/job-name": NAME,
                    LABEL_RECIPE: NAME,
                    LABEL_ROLE: ROLE_TRAINER,
                },
            },
            "spec": {
                **template["spec"],
                "containers": [_CONTAINER],
                "terminationGracePeriodSeconds": int(GRACE),
            },
            "status": {"phase": str(pod.phase), "conditions": [scheduled]},
        }
        if pod.node is not None:
            body["spec"]["nodeName"] = pod.node
        self._set_status(pod, body)
        return body

    def _set_status(self, pod: Pod, body: Object) -> None:
        status, end = body["status"], pod.end
        state: Object = {}
        if pod.started is not None:
            status |= {"startTime": timestamp(pod.started), "podIP": "10.0.0.1"}
            state = {"running": {"startedAt": timestamp(pod.started)}}
        if end is not None and end.exit_code is not None:
            ended = {
                "exitCode": end.exit_code,
                "finishedAt": timestamp(pod.ended_at or 0.0),
                "message": json.dumps({"message": end.cause, "evidence": end.evidence or ""}),
            }
            state = {"terminated": ended}
        if state:
            status["containerStatuses"] = [{"name": "pytorch", "state": state}]
        if pod.deleted_at is not None:
            end_of_grace = timestamp(pod.deleted_at + GRACE)
            body["metadata"] |= {"deletionTimestamp": end_of_grace, "deletionGracePeriodSeconds": int(GRACE)}
            if end is not None and end.disruption not in (None, "Deleted"):
                target = {"type": "DisruptionTarget", "status": "True", "reason": end.disruption}
                status["conditions"].append(target)

    def _node(self, name: str) -> Object:
        since = self.cluster.nodes[name].unreachable_since(self.cluster.now)
        ready = {"type": "Ready", "status": "True"}
        if since is not None:
            ready = {"type": "Ready", "status": "Unknown", "lastTransitionTime": timestamp(since)}
        announced = (
            [{"type": "VMEventScheduled", "status": "True"}] if self.cluster.nodes[name].announced else []
        )
        labels = {HOSTNAME: name}
        if (start := self.cluster.nodes[name].maintenance_at) is not None:
            labels["cloud.google.com/scheduled-maintenance-time"] = str(int(start))
        return {
            "metadata": {"name": name, "labels": labels},
            "spec": {},
            "status": {"allocatable": _ALLOCATABLE, "conditions": [ready, *announced]},
        }

    def _others(self) -> list[Object]:
        """Pods of other users on the nodes that are taken."""
        return [
            {
                "metadata": {"name": f"other-{node.name}", "namespace": "other", "uid": f"other-{node.name}"},
                "spec": {"nodeName": node.name, "containers": [_CONTAINER]},
                "status": {"phase": "Running"},
            }
            for node in self.cluster.nodes.values()
            if node.taken
        ]

    def _waiting(self) -> list[Object]:
        """Pods of another run that wait for nodes."""
        return [
            {
                "metadata": {
                    "name": each,
                    "namespace": "other",
                    "uid": each,
                    "labels": {LABEL_RECIPE: "other", LABEL_ROLE: "trainer"},
                    "creationTimestamp": timestamp(self.waiting_since),
                },
                "spec": {"containers": [_CONTAINER]},
                "status": {"phase": "Pending"},
            }
            for each in (f"other-worker-{number}" for number in range(self.waiting_pods))
        ]


_CONTAINER = {"name": "pytorch", "resources": {"limits": {"nvidia.com/gpu": str(PER_NODE)}}}
_ALLOCATABLE = {"nvidia.com/gpu": str(PER_NODE), "cpu": "256", "memory": "4Ti", "pods": "110"}
_JOB: Object = {"spec": {"pytorchReplicaSpecs": {"Worker": {"template": {"spec": {}}}}}}


@functools.cache  # a walk reads a hundred thousand pods
def _template(avoided: frozenset[str]) -> Object:
    template: Object = avoiding(_JOB, avoided)["spec"]["pytorchReplicaSpecs"]["Worker"]["template"]
    return template


def _merged(target: Any, changes: Any) -> Any:
    """JSON merge patch (RFC 7396)."""
    if not isinstance(changes, dict):
        return changes
    merged = dict(target) if isinstance(target, dict) else {}
    for name, value in changes.items():
        if value is None:
            merged.pop(name, None)
        elif name not in ("uid", "resourceVersion"):
            merged[name] = _merged(merged.get(name), value)
    return merged


def require_no_map_emptied(before: Object, applied: Object) -> None:
    """Server-side apply turns a map that had entries and is applied as {} into null, which is rejected."""
    for key, value in applied.items():
        if isinstance(value, dict) and isinstance(before.get(key), dict):
            assert value or not before[key], f"{key} becomes null: {before[key]} -> {value}"
            require_no_map_emptied(before[key], value)
