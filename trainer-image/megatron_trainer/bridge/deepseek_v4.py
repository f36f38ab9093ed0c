"""Has Megatron-Bridge build DeepSeek-V4 of this project's layers: Megatron Core 0.19.2 has none of them.

Bridge 0.6.2 asks Megatron Core for `dsv4_hybrid`, which is in none of its releases, and maps the weights to
the names of its modules.
"""

import re
from typing import Any, Final

_HEAD: Final = re.compile(r"(.*)\.hc_head_(fn|base|scale)")
_FIRST: Final = ".alpha_pre"
_LATER: Final = (".alpha_post", ".alpha_res")
"""What names of the scales of a connection end with."""


def install() -> None:
    """Call it once in a process, after Bridge is imported."""
    from megatron.bridge.models.conversion.mapping_registry import MegatronMappingRegistry
    from megatron.bridge.models.conversion.param_mapping import AutoMapping
    from megatron.bridge.models.deepseek.deepseek_v4_bridge import DeepSeekV4Bridge
    from megatron.core.pipeline_parallel import schedules

    from megatron_trainer.bridge.deepseek_v4_layers import deepseek_v4_layers
    from megatron_trainer.bridge.deepseek_v4_provider import DeepseekV4Provider

    for name in ("FP32Norm", "DuplicatedLinear", "HashRouter"):
        AutoMapping.register_module_type(name, "replicated")
    configure, names = DeepSeekV4Bridge.provider_bridge, DeepSeekV4Bridge.mapping_registry

    def with_layers(self: Any, pretrained: Any) -> Any:
        provider = configure(self, pretrained)
        provider.transformer_layer_spec = deepseek_v4_layers
        provider.hc_eps = pretrained.config.hc_eps
        provider.make_vocab_size_divisible_by = 128
        return provider

    def with_own_names(self: Any) -> Any:
        kept = [mapping for mapping in names(self).mappings if not mapping.megatron_param.endswith(_LATER)]
        return MegatronMappingRegistry(*(_of_own_module(mapping) for mapping in kept))

    DeepSeekV4Bridge.PROVIDER_CLASS = DeepseekV4Provider
    DeepSeekV4Bridge.provider_bridge = with_layers
    DeepSeekV4Bridge.mapping_registry = with_own_names
    shapes = schedules.get_tensor_shapes

    def of_all_streams(*args: Any, config: Any, **kwargs: Any) -> Any:
        found = shapes(*args, config=config, **kwargs)
        if not isinstance(config, DeepseekV4Provider):
            return found
        return [(*shape[:-1], config.hidden_size * config.num_residual_streams) for shape in found]

    schedules.get_tensor_shapes = of_all_streams


def _of_own_module(mapping: Any) -> Any:
    """A mapping of Bridge, of the weights as this project's modules have them.

    Those of a head are in a module, and the three scales of a connection are one parameter: the export of
    three would read two of them from the model, which conversions leave empty.
    """
    from megatron.bridge.models.conversion.param_mapping import ReplicatedMapping

    name = mapping.megatron_param
    if name.endswith(_FIRST):
        return ReplicatedMapping(f"{name.removesuffix(_FIRST)}.scale", mapping.hf_param)
    if (found := _HEAD.fullmatch(name)) is None:
        return mapping
    return ReplicatedMapping(f"{found[1]}.hc_head.{found[2]}", mapping.hf_param)
