"""Has Megatron-Bridge map weights to the parameters of Megatron's layers without Transformer Engine.

Bridge 0.6.2 itself knows both names of a norm; those of experts and of some layers only in some families.
"""

import copy
import re
from typing import Any

_GROUPED = re.compile(r"(.*\.mlp\.experts)\.(linear_fc\d\.(?:weight|bias))\*")


def install() -> None:
    """Call it once in a process that converts, after Bridge is imported."""
    from megatron.bridge.models.conversion.mapping_registry import MegatronMappingRegistry
    from megatron.bridge.models.conversion.param_mapping import AutoMapping

    AutoMapping.register_module_type("RowParallelLinearLayerNorm", "row")
    AutoMapping.register_module_type("DuplicatedLinear", "replicated")
    inner = MegatronMappingRegistry.__init__

    def with_local_experts(self: Any, *mappings: Any) -> None:
        inner(self, *mappings, *_of_local_experts(mappings))

    MegatronMappingRegistry.__init__ = with_local_experts


def _of_local_experts(mappings: tuple[Any, ...]) -> list[Any]:
    """Mappings of experts in one layer each, of those of all experts in one layer."""
    known = {mapping.megatron_param for mapping in mappings}
    found = []
    for mapping in mappings:
        if (grouped := _GROUPED.fullmatch(mapping.megatron_param)) is None:
            continue
        name = f"{grouped[1]}.local_experts.*.{grouped[2]}"
        if name not in known:
            other = copy.copy(mapping)
            other.megatron_param = name
            found.append(other)
    return found
