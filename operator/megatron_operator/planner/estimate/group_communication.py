"""What the groups of a layout communicate in one step, over which level of the network."""

from dataclasses import replace

from megatron_operator.api.status import GroupCommunication, Plan
from megatron_operator.catalog.resolved import ResolvedRecipe
from megatron_operator.planner.estimate import hardware
from megatron_operator.planner.estimate.calibration import FITTED
from megatron_operator.planner.estimate.hardware import Accelerator
from megatron_operator.planner.estimate.step_time import step_time
from megatron_operator.planner.estimate.workload import Workload

NODE = "node"
NVLINK_DOMAIN = "nvlink-domain"
NETWORK = "network"


def estimate(resolved: ResolvedRecipe, plan: Plan) -> list[GroupCommunication] | None:
    """Communication of a plan's groups; None for `cpu` and for accelerators that are not in the table.

    Raises InvalidRecipeError when the model is incomplete.
    """
    accelerator = hardware.of_profile(resolved.accelerator_type, resolved.profile)
    if accelerator is None:
        return None
    required = resolved.scheduling.required_topology
    return communication(Workload.of(resolved, plan), accelerator, plan.per_node, required)


def communication(
    w: Workload, on: Accelerator, pod: int, required: str | None = None
) -> list[GroupCommunication]:
    """Communication of each kind of group that has some, in the order of its ranks: TP, CP, EP, DP, PP.

    All communication is that of the same model of the step with no part hidden by computation.

    Args:
        w: Model and layout.
        on: The accelerator.
        pod: Ranks of one pod, which has a node to itself.
        required: The topology key that all pods must share.
    """
    exposed, whole = step_time(w, on), step_time(w, on, replace(FITTED, hidden=0.0))
    dims, step = w.dims, exposed.total
    copies = dims.dp * dims.cp
    groups = (
        ("TP", dims.tp, dims.tp, exposed.tensor, whole.tensor),
        ("CP", dims.cp, dims.tp * dims.cp, exposed.context, whole.context),
        ("EP", dims.ep, dims.ep * dims.etp, exposed.expert, whole.expert),
        ("DP", copies, dims.tp * copies, exposed.data, whole.data),
        ("PP", dims.pp, dims.world_size, exposed.pipeline, whole.pipeline),
    )
    return [
        GroupCommunication(
            group=name,
            size=size,
            level=_level(span, on, pod, required),
            seconds=seconds,
            exposed_seconds=visible,
            exposed_share=visible / step,
        )
        for name, size, span, visible, seconds in groups
        if seconds > 0
    ]


def _level(span: int, on: Accelerator, pod: int, required: str | None) -> str:
    """The nearest level that has a group of `span` consecutive ranks."""
    if span <= pod:
        return NODE
    if span <= hardware.nvlink_ranks(on, pod):
        return NVLINK_DOMAIN
    return required or NETWORK
