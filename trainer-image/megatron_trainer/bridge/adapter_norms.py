"""Keeps adapters where they can be merged into the weights: between a layer's norms.

Bridge 0.6.2 adds the output of an adapter behind the norm that follows a linear layer (Gemma 2 and 3,
EXAONE 4.0): no weight of the layer gives the same output, so the exported model would be another.
"""

from typing import Any


def install() -> None:
    """Call it once in a process, after Bridge is imported and before it adds adapters."""
    from megatron.bridge.peft import adapter_wrapper, dora, dora_layers, lora, lora_layers

    from megatron_trainer.bridge.local_linear import LayerNormColumnParallelLinear

    inner = adapter_wrapper.AdapterWrapper.__init__

    def wrap(self: Any, to_wrap: Any, adapter: Any) -> None:
        inner(self, to_wrap, adapter)
        if isinstance(to_wrap, LayerNormColumnParallelLinear):
            to_wrap.return_layernorm_output = True

    adapter_wrapper.AdapterWrapper.__init__ = wrap

    lora.LoRALinear = _in_front_of_norms(lora_layers.LoRALinear)
    dora.DoRALinear = _in_front_of_norms(dora_layers.DoRALinear)


def _in_front_of_norms(wrapper: Any) -> Any:
    class InFrontOfNorms(wrapper):
        """Bridge's, with the adapter in front of a norm that follows the layer."""

        def base_linear_forward(self, x: Any, *args: Any, **kwargs: Any) -> Any:
            """Return the layer's output without that norm, its bias, and the input of the adapter."""
            layer = self.to_wrap
            if not hasattr(layer, "post_layernorm"):
                return super().base_linear_forward(x, *args, **kwargs)
            # The class of such a layer adds the norm to its base.
            output, bias = super(type(layer), layer).forward(x, *args, **kwargs)
            return output, bias, x

        def forward(self, x: Any, *args: Any, **kwargs: Any) -> Any:
            """Return output and bias."""
            output, bias = super().forward(x, *args, **kwargs)
            follows = getattr(self.to_wrap, "post_layernorm", None)
            return (output if follows is None else follows(output)), bias

    InFrontOfNorms.__name__ = wrapper.__name__
    return InFrontOfNorms
