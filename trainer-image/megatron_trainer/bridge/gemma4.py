"""Has Megatron-Bridge read Gemma 4's configuration as transformers has it, and mask images on every stage.

transformers 5.23 keeps sizes that differ between layers in `per_layer_config`, and raises an error where one
is read of the whole model, as Bridge 0.6.2 does. Bridge makes the mask of a sequence on the first pipeline
stage alone. Of dense models, whose layers are Megatron's own on GPUs as well, it does not pass that mask to
layers with a window, and their norms of queries and keys would differ between tensor-parallel ranks.
"""

from types import SimpleNamespace
from typing import Any


def install() -> None:
    """Call it once in a process, after Bridge is imported."""
    from megatron.bridge.models.gemma import gemma4_provider
    from megatron.bridge.models.gemma.gemma4_bridge import Gemma4Bridge
    from megatron.bridge.models.gemma_vl.gemma4_vl_bridge import Gemma4VLBridge
    from megatron.bridge.models.gemma_vl.modeling_gemma4_vl import Gemma4VLModel

    from megatron_trainer.bridge.partly_causal_attention import PartlyCausalAttention

    configure, mask = Gemma4VLBridge.provider_bridge, Gemma4VLModel._compute_attention_mask
    dense, layer = Gemma4Bridge._build_dense_provider, gemma4_provider.get_gemma4_layer_spec

    def with_heads(self: Any, pretrained: Any) -> Any:
        _state_heads(pretrained.config.text_config)
        return configure(self, pretrained)

    def on_every_stage(self: Any, input_ids: Any) -> Any:
        return mask(SimpleNamespace(pre_process=True, config=self.config), input_ids)

    def with_head_norms(self: Any, text: Any) -> Any:
        provider = dense(self, text)
        # Megatron sums the gradients of these norms over tensor-parallel ranks only where it is set.
        provider.qk_layernorm = True
        return provider

    def that_sees_images(config: Any = None) -> Any:
        spec = layer(config)
        if hasattr(config, "image_token_id"):
            spec.submodules.self_attention.submodules.core_attention = PartlyCausalAttention
        return spec

    Gemma4VLBridge.provider_bridge = with_heads
    Gemma4VLModel._compute_attention_mask = on_every_stage
    Gemma4Bridge._build_dense_provider = with_head_norms
    gemma4_provider.get_gemma4_layer_spec = that_sees_images


def _state_heads(text: Any) -> None:
    """State the sizes of heads where Bridge reads them. `text`: transformers' configuration of the text."""
    layer = text.per_layer_config[text.layer_types.index("full_attention")]
    text.allow_global_per_layer_attribute_access = True
    text.global_head_dim = layer.head_dim
    text.num_global_key_value_heads = layer.num_key_value_heads
