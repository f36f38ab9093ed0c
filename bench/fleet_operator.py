"""The shipped operator, with those of its durations divided that the fleet's clock measures.

`python -m bench.fleet_operator FACTOR OPTIONS...`: what depends on what nodes do in hours or days is divided
by FACTOR, as the bench divides those hours. How fast the operator acts is not.
"""

import sys
from typing import Final

from megatron_operator.controller.main import main
from megatron_operator.lifecycle import cordoning, node_evidence, node_health, recovery_policy

SHORTEST: Final = 20.0
"""Seconds that a wait for capacity keeps at least: replacing pods takes as long, whatever the factor."""
SCALED: Final = (
    (recovery_policy, "AVOIDED_PATIENCE", SHORTEST),
    (recovery_policy, "RESIZE_INTERVAL", SHORTEST),
    (node_evidence, "SAME_FAILURE", 0.0),
    (node_evidence, "REMEMBERED", 0.0),
    (node_health, "HOUR", 0.0),
    (cordoning, "HOUR", 0.0),
    (cordoning, "SILENCE_FORGIVEN", 0.0),
)
"""How long a run waits before it uses avoided nodes, and between two resizes; within which time one failure
is known from another; the hour in which a run may begin to avoid so many nodes, or the operator cordon so
many; for how long a node that was lost is ready before it is uncordoned. Each with its least value."""


def scale(factor: float) -> None:
    """Divide the durations of this process' operator."""
    for module, name, least in SCALED:
        setattr(module, name, max(least, getattr(module, name) / factor))


if __name__ == "__main__":
    scale(float(sys.argv.pop(1)))
    main()
