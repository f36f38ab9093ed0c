"""Node affinity, pod affinity and tolerations of trainer pods."""

from megatron_operator.api.labels import LABEL_CLIQUE, LABEL_RECIPE, LABEL_ROLE
from megatron_operator.api.platform import Toleration
from megatron_operator.api.status import Plan
from megatron_operator.catalog.resolved import ResolvedRecipe
from megatron_operator.manifests.metadata import ROLE_TRAINER, Manifest, Owner
from megatron_operator.planner.estimate import hardware

HOSTNAME = "kubernetes.io/hostname"
_REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
LOST_NODE_TAINTS = ("node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable")
"""Set by Kubernetes on a node that is not Ready, or whose kubelet does not respond."""


def affinity(owner: Owner, resolved: ResolvedRecipe, plan: Plan) -> Manifest:
    """Affinity of a trainer pod; empty if nothing constrains it.

    Required: nodes of the accelerator and, for several pods, one domain of `required_levels`. Preferred for
    several pods: the nearest topology first, and one pod per node.
    """
    result: Manifest = {}
    labels = resolved.profile.node_labels | (resolved.scheduling.node_selector or {})
    if labels:
        terms = [{"key": key, "operator": "In", "values": [value]} for key, value in sorted(labels.items())]
        result["nodeAffinity"] = {_REQUIRED: {"nodeSelectorTerms": [{"matchExpressions": terms}]}}
    if plan.nodes > 1:
        gang = {"matchLabels": {LABEL_RECIPE: owner.name, LABEL_ROLE: ROLE_TRAINER}}
        if near := _pod_affinity(resolved, plan, gang):
            result["podAffinity"] = near
        result["podAntiAffinity"] = {
            "preferredDuringSchedulingIgnoredDuringExecution": [
                {"weight": 100, "podAffinityTerm": {"labelSelector": gang, "topologyKey": HOSTNAME}}
            ]
        }
    return result


def _pod_affinity(resolved: ResolvedRecipe, plan: Plan, gang: Manifest) -> Manifest:
    """Pod affinity that keeps the gang's pods close to each other.

    The scheduler places the first pod of a gang anywhere: a term that no pod matches but the pod itself
    holds. All workers share one template, so a term applies to all pods or to none.
    """
    near: Manifest = {}
    required = required_levels(resolved, plan)
    if required:
        near[_REQUIRED] = [{"labelSelector": gang, "topologyKey": key} for key in required]
    preferred = _preferred_levels(resolved, required)
    if preferred:
        near["preferredDuringSchedulingIgnoredDuringExecution"] = [
            {
                "weight": max(100 >> distance, 1),
                "podAffinityTerm": {"labelSelector": gang, "topologyKey": key},
            }
            for distance, key in enumerate(preferred)
        ]
    return near


def required_levels(resolved: ResolvedRecipe, plan: Plan) -> list[str]:
    """Topology keys that all pods must share, nearest first: an NVLink domain if TP groups span pods (the
    planner allows this only for runs within one domain), and what platform or recipe require."""
    keys = [LABEL_CLIQUE] if plan.tensor_model_parallel_size > plan.per_node else []
    required = resolved.scheduling.required_topology
    return keys if required is None or required in keys else [*keys, required]


def _preferred_levels(resolved: ResolvedRecipe, required: list[str]) -> list[str]:
    """Topology keys that pods should share, nearest first: those nearer than a level that is required anyway.

    An NVLink domain of several nodes is the nearest, whether it is in the topology or not.
    """
    accelerator = hardware.of_profile(resolved.accelerator_type, resolved.profile)
    topology = list(resolved.scheduling.topology or [])
    if resolved.scheduling.required_topology in topology:
        topology = topology[: topology.index(resolved.scheduling.required_topology)]
    across_nodes = accelerator is not None and accelerator.across_nodes
    if across_nodes and LABEL_CLIQUE not in (*topology, *required):
        topology.insert(0, LABEL_CLIQUE)
    return [key for key in topology if key not in required]


def tolerations(resolved: ResolvedRecipe) -> list[Manifest]:
    """The profile's tolerations, and tolerations of a lost node for `nodeLostAfter` seconds.

    Kubernetes' default is 300 s, during which the rest of the gang waits. Tolerations that the profile sets
    for these two taints take precedence.
    """
    configured = resolved.profile.tolerations
    lost_node = [
        Toleration(
            key=taint,
            operator="Exists",
            effect="NoExecute",
            toleration_seconds=resolved.profile.node_lost_after,
        )
        for taint in LOST_NODE_TAINTS
        if not any(_covers(toleration, taint) for toleration in configured)
    ]
    return [toleration.wire() for toleration in [*configured, *lost_node]]


def _covers(toleration: Toleration, taint: str) -> bool:
    return toleration.key in (None, taint) and toleration.effect in (None, "NoExecute")
