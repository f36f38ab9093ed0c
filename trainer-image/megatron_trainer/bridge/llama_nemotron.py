"""Configuration and layers of Llama-Nemotron Super and Ultra, whose layers differ in width or lack a part.

transformers has no class of their configuration: that of the published folders is code, which is not run. The
sizes of layers are `block_configs` of config.json, as Megatron Core reads them
(`megatron.core.transformer.heterogeneous.heterogeneous_config`).
"""

from collections.abc import Mapping
from typing import Any, Final

from huggingface_hub.dataclasses import strict
from transformers import AutoConfig, LlamaConfig

MODEL_TYPE: Final = "nemotron-nas"
ARCHITECTURE: Final = "DeciLMForCausalLM"


class BlockConfig(dict[str, Any]):
    """Settings of a layer, or of one of its parts; Bridge reads them as attributes."""

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(name) from None


@strict
class LlamaNemotronConfig(LlamaConfig):
    """config.json of these models: Llama's, with sizes for each layer."""

    model_type = MODEL_TYPE

    num_key_value_heads: int | None = None
    intermediate_size: int | None = None
    block_configs: list[Any] | None = None
    """For each layer `attention` and `ffn`."""

    def __post_init__(self, **settings: Any) -> None:
        self.block_configs = [
            BlockConfig(
                {
                    name: BlockConfig(part) if isinstance(part, Mapping) else part
                    for name, part in block.items()
                }
            )
            for block in self.block_configs or ()
        ]
        attentions = [block.get("attention") or {} for block in self.block_configs]
        groups = [
            heads
            for attention in attentions
            if not attention.get("no_op") and (heads := attention.get("n_heads_in_group"))
        ]
        if self.num_key_value_heads is None and groups:
            self.num_key_value_heads = self.num_attention_heads // groups[0]
        # By this Bridge finds its class, where transformers has none.
        names = {"AutoModelForCausalLM": f"modeling_decilm.{ARCHITECTURE}"}
        super().__post_init__(**settings | {"auto_map": (settings.get("auto_map") or {}) | names})

    @property
    def rope_scaling(self) -> Any:
        """Bridge reads it; transformers has it as `rope_parameters`."""
        return self.rope_parameters

    def to_dict(self) -> dict[str, Any]:
        """The settings alone: conversions keep names of tensors beside them (`cpu_model.make_bridge`)."""
        return {name: value for name, value in super().to_dict().items() if name != "state"}


def install() -> None:
    """Call it once in a process, after Bridge is imported."""
    from megatron.bridge.models.llama_nemotron import LlamaNemotronHeterogeneousProvider

    AutoConfig.register(MODEL_TYPE, LlamaNemotronConfig, exist_ok=True)
    # A configuration is described before it is complete, and its layers are read when it is completed.
    LlamaNemotronHeterogeneousProvider.per_block_parameters = None


def heterogeneous(config: Any, vp_stage: int | None = None) -> Any:
    """Megatron's layers of the widths of a model's configuration, without Transformer Engine."""
    from megatron.core.models.gpt.heterogeneous.heterogeneous_layer_specs import (
        get_gpt_heterogeneous_layer_spec,
    )
    from megatron.core.transformer.attention import SelfAttention

    from megatron_trainer.bridge.packed_attention import PackedDotProductAttention

    block = get_gpt_heterogeneous_layer_spec(config, use_te=False, vp_stage=vp_stage)
    for layer in block.layer_specs:
        attention = layer.submodules.self_attention
        if attention.module is SelfAttention:
            attention.submodules.core_attention = PackedDotProductAttention
    return block
