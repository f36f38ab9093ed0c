"""On which node each pod of a gang ran, as the operator itself saw it.

Events report where a pod ran that ended while no operator was running, but whoever may write Events in the
namespace can report any node. The status therefore keeps a digest of each node's name, which confirms it.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from megatron_operator.lifecycle.node_state import node_of
from megatron_operator.manifests.job_backends import node_rank
from megatron_operator.manifests.metadata import digest

DIGITS: Final = 6
"""Hex digits for each pod: 12 KB of the status for 2,000 pods. A wrong name passes one time in 16 million."""


def placement_of(pods: Sequence[dict[str, Any]]) -> str | None:
    """The nodes of a whole gang in the order of its pods; None unless each pod is bound to a node."""
    by_rank = {node_rank(pod): node_of(pod) for pod in pods}
    nodes = [by_rank.get(rank) for rank in range(len(pods))]
    return "".join(digest(node, DIGITS) for node in nodes if node) if all(nodes) else None


def confirmed(placement: str | None, pod: Mapping[str, Any], node: str) -> bool:
    """Whether the operator saw the pod's predecessor on this node; False where it kept nothing."""
    start = node_rank(dict(pod)) * DIGITS
    return (placement or "")[start : start + DIGITS] == digest(node, DIGITS)
