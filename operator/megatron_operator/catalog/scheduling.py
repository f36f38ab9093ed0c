"""Pod placement of a recipe: its own settings, completed by the platform's."""

from typing import Any

from megatron_operator.api.diagnostics import Diagnostics
from megatron_operator.api.errors import shown
from megatron_operator.api.platform import AcceleratorProfile, PlatformConfig
from megatron_operator.api.recipe import SchedulingSpec

_FIELD = "spec.scheduling"


def scheduling(
    spec: SchedulingSpec,
    accelerator: str,
    profile: AcceleratorProfile,
    platform: PlatformConfig,
    found: Diagnostics,
) -> SchedulingSpec:
    """The recipe's placement with the platform's queue and the profile's topology where it sets none.

    `accelerator` is the profile's name. A required level that is not one of the topology goes to `found` as
    an error, and so does a priority in a queue without a queue.
    """
    update: dict[str, Any] = {}
    if spec.queue is None and platform.queue is not None:
        update["queue"] = platform.queue
        found.origin("scheduling.queue", "platform")
    _complete_priority(spec, platform, update, found)
    if spec.topology is None and profile.topology:
        update["topology"] = profile.topology
        found.origin("scheduling.topology", "platform")
    if spec.required_topology is None and profile.required_topology is not None:
        update["required_topology"] = profile.required_topology
        found.origin("scheduling.requiredTopology", "platform")
    completed = spec.model_copy(update=update)
    _check_required_level(completed, spec, accelerator, found)
    return completed


def _complete_priority(
    spec: SchedulingSpec, platform: PlatformConfig, update: dict[str, Any], found: Diagnostics
) -> None:
    name, queued = spec.workload_priority_class_name, (spec.queue or platform.queue) is not None
    if name is not None and not queued:
        found.error(
            f"{_FIELD}.workloadPriorityClassName",
            f"{shown(name)} is a priority in a queue of Kueue, and the run has no queue",
            "set scheduling.queue, or leave it out",
        )
    elif name is None and queued and platform.workload_priority_class_name is not None:
        update["workload_priority_class_name"] = platform.workload_priority_class_name
        found.origin("scheduling.workloadPriorityClassName", "platform")


def _check_required_level(
    completed: SchedulingSpec, spec: SchedulingSpec, accelerator: str, found: Diagnostics
) -> None:
    required, keys = completed.required_topology, completed.topology or []
    if required is None or required in keys:
        return
    listed = ", ".join(keys) or "empty"
    if spec.required_topology is None:
        found.error(
            f"{_FIELD}.topology",
            f"{listed} lacks {required}, which the platform requires of accelerator {accelerator}",
            "add it, or set requiredTopology to one of these keys",
        )
        return
    found.error(
        f"{_FIELD}.requiredTopology",
        f"{shown(required)} is not in topology ({listed})",
        "require one of its keys, or add it to scheduling.topology, nearest first",
    )
