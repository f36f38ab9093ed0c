"""Where pods may run: nodes of the accelerator, near to each other, behind which taints."""

from megatron_operator.api.names import LABEL_RECIPE, LABEL_ROLE
from megatron_operator.catalog.resolved import ResolvedRecipe
from megatron_operator.manifests.identity import ROLE_TRAINER, Manifest, Owner

HOSTNAME = "kubernetes.io/hostname"


def affinity(owner: Owner, resolved: ResolvedRecipe, nodes: int) -> Manifest:
    """Required: the accelerator's nodes. Preferred, for several pods: near topology first, one pod a node."""
    result: Manifest = {}
    labels = resolved.profile.node_labels | (resolved.scheduling.node_selector or {})
    if labels:
        terms = [{"key": key, "operator": "In", "values": [value]} for key, value in sorted(labels.items())]
        result["nodeAffinity"] = {
            "requiredDuringSchedulingIgnoredDuringExecution": {
                "nodeSelectorTerms": [{"matchExpressions": terms}]
            }
        }
    if nodes > 1:
        gang = {"matchLabels": {LABEL_RECIPE: owner.name, LABEL_ROLE: ROLE_TRAINER}}
        near_to_far = resolved.scheduling.topology or []
        if near_to_far:
            result["podAffinity"] = {
                "preferredDuringSchedulingIgnoredDuringExecution": [
                    {
                        "weight": max(100 >> distance, 1),
                        "podAffinityTerm": {"labelSelector": gang, "topologyKey": key},
                    }
                    for distance, key in enumerate(near_to_far)
                ]
            }
        result["podAntiAffinity"] = {
            "preferredDuringSchedulingIgnoredDuringExecution": [
                {"weight": 100, "podAffinityTerm": {"labelSelector": gang, "topologyKey": HOSTNAME}}
            ]
        }
    return result


def tolerations(resolved: ResolvedRecipe) -> list[Manifest]:
    """The profile's tolerations, as Kubernetes spells them."""
    return [toleration.wire() for toleration in resolved.profile.tolerations]
