"""Whether a run fits into one domain of the topology level that its pods must share, and what uplinks do."""

import math
from collections.abc import Iterator
from typing import Any

from megatron_operator.api.errors import FieldError, field_path
from megatron_operator.api.labels import LABEL_CLIQUE
from megatron_operator.catalog.resolved import ResolvedRecipe
from megatron_operator.planner.divisors import divisors
from megatron_operator.planner.estimate import hardware

_GROUPS = {
    "TP": "tensorModelParallelSize",
    "PP": "pipelineModelParallelSize",
    "CP": "contextParallelSize",
}
_HOSTNAME = "kubernetes.io/hostname"


def topology_errors(resolved: ResolvedRecipe) -> list[FieldError]:
    """The error of a run that no domain of its required level can have.

    Known are the size of a node, that of an NVLink domain, and those that the platform describes; other racks
    and blocks are as large as the cluster has them.
    """
    key, count = resolved.scheduling.required_topology, resolved.accelerator_count
    if key is None or count <= resolved.per_node:
        return []
    accelerator = hardware.of_profile(resolved.accelerator_type, resolved.profile, resolved.per_node)
    described = resolved.profile.topology_domains.get(key)
    if described is not None:
        size, what = described.nodes * resolved.per_node, "a domain"
    elif key == _HOSTNAME:
        size, what = resolved.per_node, "a node"
    elif key == LABEL_CLIQUE and accelerator is not None:
        size, what = hardware.nvlink_ranks(accelerator, resolved.per_node), "an NVLink domain"
    else:
        return []
    if count <= size:
        return []
    return [
        FieldError(
            "spec.scheduling.requiredTopology",
            f"{key}: the run has {count} accelerators, and {what} of {resolved.accelerator_type} has {size}",
            f"require a wider level of topology, or set accelerator.count to at most {size}",
        )
    ]


def elastic_notes(resolved: ResolvedRecipe) -> Iterator[str]:
    """That an elastic run cannot shrink, as it loses whole nodes; also of one that has shrunk this far."""
    elastic, count = resolved.recovery.elastic, resolved.accelerator_count
    if elastic is None:
        return
    if count > max(elastic.min_count, resolved.per_node):
        yield from _layout_notes(resolved, elastic.min_count)
        return
    if elastic.min_count >= count:
        yield f"recovery.elastic.minCount {elastic.min_count}: on {count} accelerators the run cannot shrink"
        return
    least = elastic.min_count
    of_node = max(n for n in divisors(count, count - least) if least <= n or least % n == 0)
    yield (
        f"recovery.elastic: on {count} accelerators of one node the run cannot shrink; with"
        f" accelerator.perNode {of_node} it can"
    )


def _layout_notes(resolved: ResolvedRecipe, least: int) -> Iterator[str]:
    """That the sizes which the recipe sets divide no smaller number of whole nodes from `least` on."""
    count = resolved.accelerator_count
    layout: dict[str, Any] = resolved.parallelism.wire()
    sizes = {
        group: layout[name]
        for group, name in _GROUPS.items()
        if name in layout and resolved.is_set_by_user(f"parallelism.{name}")
    }
    step = math.lcm(math.prod(sizes.values()), resolved.per_node)
    largest = (count - 1) // step * step
    if not sizes or largest >= least:
        return
    product = " x ".join(f"{group} {size}" for group, size in sizes.items())
    yield (
        f"recovery.elastic.minCount {least}: with {product} on {count} accelerators the run cannot shrink;"
        f" {f'with minCount {largest} it can' if largest else 'it can where the planner chooses them'}"
    )


def uplink_notes(resolved: ResolvedRecipe) -> Iterator[str]:
    """The first uplink of a profile above the network of its accelerators, by the planner's table.

    Loading a platform compares uplinks with its data sheet and with each other alone.
    """
    name, profile = resolved.accelerator_type, resolved.profile
    accelerator = hardware.of_profile(name, profile, resolved.per_node)
    if accelerator is None:
        return
    within = accelerator.network_bandwidth / 1e9
    for key in profile.topology:
        domain = profile.topology_domains.get(key)
        if domain is None:
            continue
        if domain.uplink_gbps is not None and domain.uplink_gbps > within:
            at = field_path(f"platform.accelerators.{name}.topologyDomains", key)
            yield (
                f"{at}.uplinkGBps {domain.uplink_gbps:g} is above the {within:g} of the network within it, "
                "and has no effect; it is in 10^9 bytes per second, for each accelerator"
            )
            return
        within = domain.uplink_gbps or within / (domain.oversubscription or 1)
