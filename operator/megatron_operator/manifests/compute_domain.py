"""ComputeDomain of NVIDIA's DRA driver: memory shared between the nodes of an NVLink domain, over IMEX.

The driver's controller creates a ResourceClaimTemplate for each ComputeDomain; a pod that claims from it gets
an IMEX channel, and the driver starts the IMEX daemon on its node.
"""

from typing import Final

from megatron_operator.api.status import Plan
from megatron_operator.catalog.resolved import ResolvedRecipe
from megatron_operator.manifests.metadata import Manifest, Owner
from megatron_operator.manifests.overlay import add_claim

GROUP: Final = "resource.nvidia.com"
VERSION: Final = "v1beta1"
PLURAL: Final = "computedomains"
KIND: Final = "ComputeDomain"
CLAIM: Final = "imex-channel"


def needed(resolved: ResolvedRecipe, plan: Plan) -> bool:
    """Whether the run needs IMEX: its profile asks for it, and it has several nodes."""
    return resolved.profile.compute_domain and plan.nodes > 1


def domain(owner: Owner, resolved: ResolvedRecipe, plan: Plan) -> Manifest | None:
    """The run's ComputeDomain, or None where none is needed.

    `numNodes` 0: nodes join as pods arrive, so an elastic run may change their number (driver 25.8 or later).
    """
    if not needed(resolved, plan):
        return None
    return {
        "apiVersion": f"{GROUP}/{VERSION}",
        "kind": KIND,
        "metadata": owner.metadata(owner.object_name),
        "spec": {"numNodes": 0, "channel": {"resourceClaimTemplate": {"name": _template(owner)}}},
    }


def claim_channel(pods: Manifest, owner: Owner) -> None:
    """Give the pods of the template a channel of the run's ComputeDomain."""
    add_claim(pods, {"name": CLAIM, "resourceClaimTemplateName": _template(owner)})


def _template(owner: Owner) -> str:
    return f"{owner.object_name}-{CLAIM}"
