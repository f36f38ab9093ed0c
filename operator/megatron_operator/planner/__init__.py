"""Plans a resolved recipe: parallel layout, memory, speed and Megatron's arguments."""

from megatron_operator.planner.admission import PlannedRun, admit, admit_and_compare
from megatron_operator.planner.alternatives import Alternative
from megatron_operator.planner.megatron_args import megatron_arguments
from megatron_operator.planner.plan import plan, plan_and_alternatives

__all__ = [
    "Alternative",
    "PlannedRun",
    "admit",
    "admit_and_compare",
    "megatron_arguments",
    "plan",
    "plan_and_alternatives",
]
