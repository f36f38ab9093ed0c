"""Latent attention whose queries have no low rank, as in the published models.

Megatron Core 0.19.2 puts a norm in front of their projection wherever those of a low rank have one. The
published models (DeepSeek-V2-Lite, Moonlight) do not have that norm, and Bridge maps no weight to it.
"""

from typing import Any


def leave_out() -> None:
    """Call it once in a process, before a model is built."""
    from megatron.core.transformer.mla_qk_norm_config import QKNormConfigResolver as Resolver

    inner = Resolver._mla_fused_linear_or_default

    def without_norm(self: Any, module_spec: Any, module_name: str) -> Any:
        if module_name == "linear_q_proj":
            return module_spec or self.linear_impl
        return inner(self, module_spec, module_name)

    Resolver._mla_fused_linear_or_default = without_norm
