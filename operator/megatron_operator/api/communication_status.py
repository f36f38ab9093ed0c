"""Communication of the parallel groups of a plan, as `status.plan.communication` has it."""

from typing import Annotated

from pydantic import Field

from megatron_operator.api.base import ApiModel


class LevelCrossing(ApiModel):
    """What leaves the domains of one level of the topology."""

    level: str
    """`node`, `nvlink-domain`, or a topology key that the platform describes."""
    bytes: int
    """Bytes of a step that leave a domain, for each accelerator of it; where those of one NIC decide, as at
    the border of a ring within a node, these."""
    seconds: float
    """What they take at the bandwidth out of it."""


class GroupCommunication(ApiModel):
    """Estimated communication of the parallel groups of one kind, in one step of one rank."""

    group: str
    """`TP`, `CP`, `EP`, `PP`, or `DP`: ranks with the same parameters, over which gradients are reduced."""
    size: int
    """Ranks of one group; those of `DP` include CP."""
    level: str
    """The nearest level that has a whole group: `node`, `nvlink-domain`, a topology key that the platform
    describes or that all pods must share, or `network`."""
    bytes: int | None = None
    """All that one rank sends; not set in statuses of version 0.2 and before."""
    crossings: Annotated[list[LevelCrossing], Field(max_length=18)] | None = None
    """What of it leaves nodes or NVLink domains, and the levels that the platform describes; none within
    them."""
    seconds: float
    """All of its communication."""
    exposed_seconds: float
    """The part that computation does not hide."""
    exposed_share: float
    """That part as a fraction of the step."""
