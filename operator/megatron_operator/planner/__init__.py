"""From a resolved recipe to the layout of its run: sizes, memory, parallelism, Megatron's arguments."""

from megatron_operator.planner.arguments import megatron_arguments
from megatron_operator.planner.plan import plan

__all__ = ["megatron_arguments", "plan"]
