"""The shipped operator, with those of its durations divided that the fleet's clock measures.

`python -m bench.fleet_operator FACTOR OPTIONS...`: what depends on what nodes do in hours or days is divided
by FACTOR, as the bench divides those hours. How fast the operator acts is not.
"""

import sys
from typing import Final

from megatron_operator.controller.main import main
from megatron_operator.lifecycle import node_evidence, node_health, recovery_policy

SCALED: Final = (
    (recovery_policy, "AVOIDED_PATIENCE"),
    (recovery_policy, "RESIZE_INTERVAL"),
    (node_evidence, "SAME_FAILURE"),
    (node_evidence, "REMEMBERED"),
    (node_health, "HOUR"),
)
"""How long a run waits before it uses avoided nodes, and between two resizes; within which time one failure
is known from another; and the hour in which a run may begin to avoid so many nodes."""


def scale(factor: float) -> None:
    """Divide the durations of this process' operator."""
    for module, name in SCALED:
        setattr(module, name, getattr(module, name) / factor)


if __name__ == "__main__":
    scale(float(sys.argv.pop(1)))
    main()
