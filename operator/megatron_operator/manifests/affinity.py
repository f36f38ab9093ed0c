"""Node affinity, pod affinity and tolerations of trainer pods."""

from megatron_operator.api.labels import LABEL_CLIQUE, LABEL_RECIPE, LABEL_ROLE
from megatron_operator.api.platform import Toleration
from megatron_operator.api.status import Plan
from megatron_operator.catalog.resolved import ResolvedRecipe
from megatron_operator.manifests.metadata import ROLE_TRAINER, Manifest, Owner
from megatron_operator.planner.estimate import hardware

HOSTNAME = "kubernetes.io/hostname"
LOST_NODE_TAINTS = ("node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable")
"""Set by Kubernetes on a node that is not Ready, or whose kubelet does not respond."""


def affinity(owner: Owner, resolved: ResolvedRecipe, plan: Plan) -> Manifest:
    """Affinity of a trainer pod; empty if nothing constrains it.

    Required: nodes of the accelerator, and one NVLink domain if TP groups span pods. Preferred, for several
    pods: the nearest topology first, and one pod per node.
    """
    result: Manifest = {}
    labels = resolved.profile.node_labels | (resolved.scheduling.node_selector or {})
    if labels:
        terms = [{"key": key, "operator": "In", "values": [value]} for key, value in sorted(labels.items())]
        result["nodeAffinity"] = {
            "requiredDuringSchedulingIgnoredDuringExecution": {
                "nodeSelectorTerms": [{"matchExpressions": terms}]
            }
        }
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

    All workers share one template, so an NVLink domain applies to all pods or to none: it is required if a TP
    group spans pods (the planner allows this only for runs within one domain), and preferred otherwise.
    """
    near: Manifest = {}
    accelerator = hardware.of_profile(resolved.accelerator_type, resolved.profile)
    topology = list(resolved.scheduling.topology or [])
    if plan.tensor_model_parallel_size > plan.per_node:
        near["requiredDuringSchedulingIgnoredDuringExecution"] = [
            {"labelSelector": gang, "topologyKey": LABEL_CLIQUE}
        ]
    elif accelerator and accelerator.across_nodes and LABEL_CLIQUE not in topology:
        topology.insert(0, LABEL_CLIQUE)
    if topology:
        near["preferredDuringSchedulingIgnoredDuringExecution"] = [
            {
                "weight": max(100 >> distance, 1),
                "podAffinityTerm": {"labelSelector": gang, "topologyKey": key},
            }
            for distance, key in enumerate(topology)
        ]
    return near


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
