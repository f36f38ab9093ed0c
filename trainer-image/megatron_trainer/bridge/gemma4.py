"""Has Megatron-Bridge read Gemma 4's configuration as transformers has it, and mask images on every stage.

transformers 5.23 keeps sizes that differ between layers in `per_layer_config`, and raises an error where one
is read of the whole model, as Bridge 0.6.2 does. Bridge makes the mask of a sequence on the first pipeline
stage alone.
"""

from types import SimpleNamespace
from typing import Any


def install() -> None:
    """Call it once in a process, after Bridge is imported."""
    from megatron.bridge.models.gemma_vl.gemma4_vl_bridge import Gemma4VLBridge
    from megatron.bridge.models.gemma_vl.modeling_gemma4_vl import Gemma4VLModel

    configure, mask = Gemma4VLBridge.provider_bridge, Gemma4VLModel._compute_attention_mask

    def with_heads(self: Any, pretrained: Any) -> Any:
        _state_heads(pretrained.config.text_config)
        return configure(self, pretrained)

    def on_every_stage(self: Any, input_ids: Any) -> Any:
        return mask(SimpleNamespace(pre_process=True, config=self.config), input_ids)

    Gemma4VLBridge.provider_bridge = with_heads
    Gemma4VLModel._compute_attention_mask = on_every_stage


def _state_heads(text: Any) -> None:
    """State the sizes of heads where Bridge reads them. `text`: transformers' configuration of the text."""
    layer = text.per_layer_config[text.layer_types.index("full_attention")]
    text.allow_global_per_layer_attribute_access = True
    text.global_head_dim = layer.head_dim
    text.num_global_key_value_heads = layer.num_key_value_heads
