"""Where pods may run: nodes of the accelerator, near to each other, behind which taints."""

from megatron_operator.api.labels import LABEL_CLIQUE, LABEL_RECIPE, LABEL_ROLE
from megatron_operator.api.platform import Toleration
from megatron_operator.api.status import Plan
from megatron_operator.catalog.resolved import ResolvedRecipe
from megatron_operator.manifests.metadata import ROLE_TRAINER, Manifest, Owner
from megatron_operator.planner.estimate import hardware

HOSTNAME = "kubernetes.io/hostname"
LOST_NODE_TAINTS = ("node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable")
"""Put by Kubernetes on a node that is not Ready, or whose kubelet is silent."""


def affinity(owner: Owner, resolved: ResolvedRecipe, plan: Plan) -> Manifest:
    """Required: the accelerator's nodes, and one NVLink domain where TP groups span pods.

    Preferred, for several pods: near topology first, one pod a node.
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
        if near := _near(resolved, plan, gang):
            result["podAffinity"] = near
        result["podAntiAffinity"] = {
            "preferredDuringSchedulingIgnoredDuringExecution": [
                {"weight": 100, "podAffinityTerm": {"labelSelector": gang, "topologyKey": HOSTNAME}}
            ]
        }
    return result


def _near(resolved: ResolvedRecipe, plan: Plan, gang: Manifest) -> Manifest:
    """How near to each other a gang's pods lie.

    All workers have one template, so a domain can be asked for all pods or for none of them: required where
    a TP group spans pods, which the planner allows to runs of one domain only, else preferred.
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
    """The profile's tolerations, as Kubernetes spells them, and how long pods wait for their node to return.

    Kubernetes' default is 300 s, in which all other pods of the gang stand still. What the profile itself
    says of these two taints holds.
    """
    said = resolved.profile.tolerations
    patience = [
        Toleration(
            key=taint,
            operator="Exists",
            effect="NoExecute",
            toleration_seconds=resolved.profile.node_lost_after,
        )
        for taint in LOST_NODE_TAINTS
        if not any(_covers(toleration, taint) for toleration in said)
    ]
    return [toleration.wire() for toleration in [*said, *patience]]


def _covers(toleration: Toleration, taint: str) -> bool:
    return toleration.key in (None, taint) and toleration.effect in (None, "NoExecute")
