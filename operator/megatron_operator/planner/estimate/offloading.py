"""Memory of the host that optimizer states need which Megatron offloads to it."""

from megatron_operator.api.status import Plan
from megatron_operator.catalog.resolved import ResolvedRecipe
from megatron_operator.planner.estimate.memory import host_bytes
from megatron_operator.planner.estimate.workload import Workload, offloaded_fraction


def offloaded_bytes(resolved: ResolvedRecipe, plan: Plan) -> int:
    """Bytes of one pod with `--optimizer-cpu-offload`; 0 without it."""
    if not offloaded_fraction(resolved.megatron_args):
        return 0
    return int(host_bytes(Workload.of(resolved, plan)) * plan.per_node)
