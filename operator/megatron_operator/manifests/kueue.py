"""Annotations of pod templates by which Kueue places a gang: topology-aware scheduling."""

from typing import Final

from megatron_operator.api.status import Plan
from megatron_operator.catalog.resolved import ResolvedRecipe
from megatron_operator.manifests.affinity import required_levels

PREFERRED_TOPOLOGY: Final = "kueue.x-k8s.io/podset-preferred-topology"
"""Kueue admits pods with this or the next only to a flavor whose Topology has the key as a level."""
REQUIRED_TOPOLOGY: Final = "kueue.x-k8s.io/podset-required-topology"
GROUP_NAME: Final = "kueue.x-k8s.io/podset-group-name"
"""Pod sets with the same value share one domain. Kueue accepts two of them, one with a single pod."""
_GANG: Final = "gang"


def annotations(resolved: ResolvedRecipe, plan: Plan) -> dict[str, str]:
    """What the pods of a queued run have; empty without a topology, or a queue that is aware of it.

    Kueue takes one level of a pod set: the nearest that is required, else the nearest of the topology. Master
    and Workers are two pod sets, each of which would have a domain of its own.
    """
    if resolved.scheduling.queue is None or not resolved.topology_aware_queues:
        return {}
    if plan.nodes > 1 and (required := required_levels(resolved, plan)):
        return {REQUIRED_TOPOLOGY: required[0], GROUP_NAME: _GANG}
    topology = resolved.scheduling.topology
    return {PREFERRED_TOPOLOGY: topology[0]} if topology else {}
