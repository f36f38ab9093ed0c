"""What the groups of a layout communicate in one step, over which level of the network."""

import math
from dataclasses import replace
from typing import Final

from megatron_operator.api.communication_status import GroupCommunication, LevelCrossing
from megatron_operator.api.recipe import SchedulingSpec
from megatron_operator.api.status import Plan
from megatron_operator.catalog.resolved import ResolvedRecipe
from megatron_operator.planner.estimate import hardware
from megatron_operator.planner.estimate.calibration import FITTED
from megatron_operator.planner.estimate.hardware import Accelerator
from megatron_operator.planner.estimate.step_time import StepTime, step_time
from megatron_operator.planner.estimate.workload import Workload

NODE = "node"
NVLINK_DOMAIN = "nvlink-domain"
NETWORK = "network"


def estimate(resolved: ResolvedRecipe, plan: Plan) -> list[GroupCommunication] | None:
    """Communication of a plan's groups; None for `cpu` and for accelerators that are not in the table.

    Raises InvalidRecipeError when the model is incomplete.
    """
    accelerator = hardware.of_profile(resolved.accelerator_type, resolved.profile, resolved.per_node)
    if accelerator is None:
        return None
    return communication(Workload.of(resolved, plan), accelerator, plan.per_node, resolved.scheduling)


def communication(
    w: Workload, on: Accelerator, pod: int, scheduling: SchedulingSpec
) -> list[GroupCommunication]:
    """Communication of each kind of group that has some, in the order of its ranks: TP, CP, EP, DP, PP.

    All communication is that of the same model of the step with no part hidden by computation.

    Args:
        w: Model and layout.
        on: The accelerator.
        pod: Ranks of one pod, which has a node to itself.
        scheduling: The topology that pods share.
    """
    exposed, whole = step_time(w, on), step_time(w, on, replace(FITTED, hidden=0.0))
    sent, crossings = _sent(w, on), _crossings(w, on, pod)
    dims, step = w.dims, exposed.total
    copies = dims.dp * dims.cp
    groups = (
        ("TP", dims.tp, dims.tp, "tensor"),
        ("CP", dims.cp, dims.tp * dims.cp, "context"),
        ("EP", dims.ep, dims.ep * dims.etp, "expert"),
        ("DP", copies, dims.tp * copies, "data"),
        ("PP", dims.pp, dims.world_size, "pipeline"),
    )
    return [
        GroupCommunication(
            group=name,
            size=size,
            level=_level(span, on, pod, scheduling),
            bytes=round(getattr(sent, part)),
            crossings=[
                LevelCrossing(level=level, bytes=round(crossed), seconds=crossed / bandwidth)
                for level, bandwidth, step_bytes in crossings
                if (crossed := getattr(step_bytes, part)) > 0
            ]
            or None,
            seconds=getattr(whole, part),
            exposed_seconds=getattr(exposed, part),
            exposed_share=getattr(exposed, part) / step,
        )
        for name, size, span, part in groups
        if getattr(whole, part) > 0
    ]


_BYTES: Final = replace(FITTED, hidden=0.0, link=1.0, network=1.0)
"""With these constants a bandwidth of 1 byte/s makes seconds of the model its bytes."""


def _sent(w: Workload, on: Accelerator) -> StepTime:
    """Bytes that one rank sends in a step: all ranks are in one domain."""
    linked = replace(on, domain=w.dims.world_size, link_bandwidth=1.0, levels=())
    return step_time(w, linked, _BYTES)


def _crossings(w: Workload, on: Accelerator, pod: int) -> list[tuple[str, float, StepTime]]:
    """Each level, the bandwidth reached out of its domains, and the bytes of a step that leave one."""
    free = replace(on, link_bandwidth=math.inf, network_bandwidth=math.inf, levels=())
    nearest = NVLINK_DOMAIN if hardware.nvlink_ranks(on, pod) > pod else NODE
    levels = [(nearest, on.network_bandwidth, replace(free, network_bandwidth=1.0))]
    levels += [
        (level.key, level.uplink, replace(free, levels=(replace(level, uplink=1.0),))) for level in on.levels
    ]
    return [
        (level, bandwidth * FITTED.network, step_time(w, alone, _BYTES)) for level, bandwidth, alone in levels
    ]


def _level(span: int, on: Accelerator, pod: int, scheduling: SchedulingSpec) -> str:
    """The nearest level that has a group of `span` consecutive ranks."""
    if span <= pod:
        return NODE
    if span <= hardware.nvlink_ranks(on, pod):
        return NVLINK_DOMAIN
    required, keys = scheduling.required_topology, scheduling.topology or []
    within = keys[: keys.index(required)] if required in keys else None
    for level in on.levels:
        if span <= level.ranks and (within is None or level.key in within):
            return level.key
    return required or NETWORK
