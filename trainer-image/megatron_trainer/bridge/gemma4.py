"""Has Megatron-Bridge read the heads of Gemma 4 from transformers' configuration.

transformers 5.23 keeps sizes that differ between layers in `per_layer_config`, and raises an error where one
is read of the whole model, as Bridge 0.6.2 does.
"""

from typing import Any


def install() -> None:
    """Call it once in a process, after Bridge is imported."""
    from megatron.bridge.models.gemma.gemma4_bridge import Gemma4Bridge

    inner = Gemma4Bridge._build_dense_provider

    def with_heads(self: Any, text: Any) -> Any:
        """Return the configuration of a dense model; `text` is that of transformers."""
        layer = text.per_layer_config[text.layer_types.index("full_attention")]
        text.allow_global_per_layer_attribute_access = True
        text.global_head_dim = layer.head_dim
        text.num_global_key_value_heads = layer.num_key_value_heads
        return inner(self, text)

    Gemma4Bridge._build_dense_provider = with_heads
