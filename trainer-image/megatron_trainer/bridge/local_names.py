"""Has Megatron-Bridge map weights to the parameters of Megatron's layers without Transformer Engine.

Bridge 0.6.2 itself knows both names of a norm; those of experts and of some layers only in some families.
"""

import copy
import re
from typing import Any

_FUSED = re.compile(r"(mtp\.layers\..*)\.(self_attention\.linear_qkv|mlp\.linear_fc1)\.layer_norm_weight")
_NORMS = {"self_attention.linear_qkv": "input_layernorm", "mlp.linear_fc1": "pre_mlp_layernorm"}
"""Linear layer of Transformer Engine -> the norm in front of it."""
_GROUPED = re.compile(r"(.*\.mlp\.experts)\.(linear_fc\d\.(?:weight|bias))\*")


def install() -> None:
    """Call it once in a process that converts, after Bridge is imported."""
    from megatron.bridge.models.conversion.mapping_registry import MegatronMappingRegistry
    from megatron.bridge.models.conversion.param_mapping import AutoMapping

    AutoMapping.register_module_type("RowParallelLinearLayerNorm", "row")
    AutoMapping.register_module_type("DuplicatedLinear", "replicated")
    # Of sinks of attention.
    AutoMapping.register_module_type("PackedDotProductAttention", "column")
    inner = MegatronMappingRegistry.__init__

    def with_local_names(self: Any, *mappings: Any) -> None:
        inner(self, *mappings, *_of_local_experts(mappings), *_of_norms_of_prediction(mappings))

    MegatronMappingRegistry.__init__ = with_local_names


def _of_norms_of_prediction(mappings: tuple[Any, ...]) -> list[Any]:
    """Mappings of the norms in front of attention and MLP, of those in which they are part of a linear layer.

    Bridge knows their other names in all layers but those of multi-token prediction.
    """
    known = {mapping.megatron_param for mapping in mappings}
    found = []
    for mapping in mappings:
        fused = _FUSED.fullmatch(mapping.megatron_param)
        if fused is not None and (name := f"{fused[1]}.{_NORMS[fused[2]]}.weight") not in known:
            other = copy.copy(mapping)
            other.megatron_param = name
            found.append(other)
    return found


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
