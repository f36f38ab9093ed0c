"""Norms of Megatron's local layers have the names in checkpoints that Transformer Engine's layers give them.

Transformer Engine has a norm and the linear layer behind it in one. Megatron maps the names of its local
layers to those, but not in latent attention, and in front of experts it maps a norm that Transformer Engine
keeps apart: weights that were imported on a CPU would not be found on a GPU. From
get_gpt_layer_with_transformer_engine_submodules and get_gpt_layer_local_submodules of megatron-core 0.19.2.
"""

import functools
import inspect
from typing import Any


def norm_names(*, experts: bool, latent_attention: bool) -> dict[str, str]:
    """Prefix of a norm -> prefix in checkpoints, where Transformer Engine has it in a linear layer."""
    names = {} if experts else {"pre_mlp_layernorm.": "mlp.linear_fc1.layer_norm_"}
    if not latent_attention:
        return names | {"input_layernorm.": "self_attention.linear_qkv.layer_norm_"}
    return names | {
        f"self_attention.{part}_layernorm.": f"self_attention.linear_{part}_up_proj.layer_norm_"
        for part in ("q", "kv")
    }


def install() -> None:
    """Have Megatron build local layers with these names."""
    from megatron.core.models.gpt import gpt_layer_specs

    inner = gpt_layer_specs.get_gpt_layer_local_submodules
    signature = inspect.signature(inner)

    @functools.wraps(inner)
    def named(*args: Any, **kwargs: Any) -> Any:
        given = signature.bind(*args, **kwargs)
        given.apply_defaults()
        layer = inner(*args, **kwargs)
        layer.sharded_state_dict_keys_map = norm_names(
            experts=bool(given.arguments["num_experts"]),
            latent_attention=bool(given.arguments["multi_latent_attention"]),
        )
        return layer

    gpt_layer_specs.get_gpt_layer_local_submodules = named
