"""Has Megatron-Bridge read Step-3.5 and Step-3.7 as transformers does, and build what Megatron Core lacks.

Bridge 0.6.2 sets gates of heads, rotary embeddings of layers and bounds of activations for a later Megatron
Core. It has configurations of its own; those of transformers 5.23 read the published folders as well, and are
the ones that transformers' processor and models take.
"""

from collections.abc import Mapping
from typing import Any

import torch

from megatron_trainer.bridge import step_images
from megatron_trainer.bridge.step_layers import step_layers


def install() -> None:
    """Call it once in a process, after Bridge is imported."""
    from megatron.bridge.models.conversion import param_mapping
    from megatron.bridge.models.stepfun import step35_bridge, step37_bridge
    from megatron.bridge.models.stepfun.step35_provider import Step35ModelProvider
    from transformers import AutoConfig, Step3p7Config, Step3p7TextConfig

    AutoConfig.register("step3p5", Step3p7TextConfig, exist_ok=True)
    AutoConfig.register("step3p7", Step3p7Config, exist_ok=True)
    text, whole = step35_bridge.Step35Bridge, step37_bridge.Step37Bridge
    configure, configure_whole = text.provider_bridge, whole.provider_bridge

    def of_text(self: Any, pretrained: Any) -> Any:
        config = pretrained.config
        config.allow_global_per_layer_attribute_access = True
        return _completed(configure(self, pretrained), config)

    def of_whole(self: Any, pretrained: Any) -> Any:
        config = pretrained.config
        config.text_config.allow_global_per_layer_attribute_access = True
        provider = _completed(configure_whole(self, pretrained), config.text_config)
        # Bridge's model has no layers of prediction.
        provider.mtp_num_layers = None
        return provider

    text.provider_bridge, whole.provider_bridge = of_text, of_whole
    Step35ModelProvider._get_num_floating_point_operations = operations
    param_mapping.merge_qkvg_weights, param_mapping.split_qkvg_weights = merge, split
    for mapping in (step35_bridge.StackedExpertAutoMapping, step35_bridge.StackedExpertGatedMLPMapping):
        mapping._expert_idx = _expert
    step_images.install()


def _expert(mapping: Any) -> int:
    """The number of an expert, also of one in a layer of its own."""
    from megatron.bridge.utils.common_utils import extract_expert_number_from_param

    return int(extract_expert_number_from_param(mapping.megatron_param))


def _completed(provider: Any, text: Any) -> Any:
    """Give Bridge's configuration of a model what it leaves out. `text`: transformers', of the text."""
    provider.transformer_layer_spec = step_layers
    of_prediction = text.mtp_layer_types or ["full_attention"] * (text.num_nextn_predict_layers or 0)
    provider.layer_types = [*text.layer_types, *of_prediction]
    provider.sliding_attention_setting = {
        "num_attention_heads": text.num_sliding_attention_heads,
        # Megatron counts the tokens before a position, transformers also itself.
        "window_size": [text.sliding_window - 1, 0] if text.sliding_window else None,
    }
    provider.rope_of_kinds = text.rope_parameters
    provider.rotary_percent, provider.rotary_base = 1.0, 10000
    provider.position_embedding_type = "rope"
    provider.swiglu_limits, provider.swiglu_limits_shared = text.swiglu_limits, text.swiglu_limits_shared
    provider.moe_layer_freq = [int(kind == "sparse") for kind in text.mlp_layer_types]
    if not any(provider.moe_layer_freq):
        provider.num_moe_experts = None
    provider.moe_router_score_function = "sigmoid"
    provider.moe_router_enable_expert_bias = True
    provider.moe_router_topk_scaling_factor = text.moe_router_scaling_factor
    provider.moe_router_dtype = "fp32"
    provider.qk_layernorm = provider.layernorm_zero_centered_gamma = True
    provider.share_embeddings_and_output_weights = text.tie_word_embeddings
    # The gates are of Step's layers alone.
    provider.head_wise_attn_gate = provider.attention_output_gate = False
    return provider


def merge(
    config: Any, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, gate: torch.Tensor
) -> torch.Tensor:
    """Return the rows of `linear_qkv` of StepAttention [rows, hidden_size], of those of its parts."""
    groups = [part.view(config.num_query_groups, -1, part.shape[-1]) for part in (query, key, value, gate)]
    return torch.cat(groups, dim=1).view(-1, query.shape[-1])


def split(config: Any, rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return the rows of queries, keys, values and gates: the inverse of `merge`."""
    heads, width = config.num_attention_heads // config.num_query_groups, config.kv_channels
    of_groups = rows.view(config.num_query_groups, -1, rows.shape[-1])
    parts = of_groups.split([heads * width, width, width, heads], dim=1)
    query, key, value, gate = (part.reshape(-1, rows.shape[-1]) for part in parts)
    return query, key, value, gate


def operations(model: Any, batch_size: int) -> int:
    """Return the floating-point operations of a step, forward and backward, as Megatron counts them."""
    hidden, length, width = model.hidden_size, model.seq_length, model.kv_channels
    layers = [*model.moe_layer_freq, *[0] * (model.mtp_num_layers or 0)]
    of_sparse = model.moe_ffn_hidden_size * model.moe_router_topk + model.moe_shared_expert_intermediate_size
    each = 0
    for sparse, kind in zip(layers, model.layer_types, strict=False):
        sliding: Mapping[str, Any] = model.sliding_attention_setting if kind == "sliding_attention" else {}
        heads = sliding.get("num_attention_heads", model.num_attention_heads)
        seen = min(length / 2, sliding["window_size"][0] + 1) if sliding else length / 2
        each += 2 * hidden * (2 * heads * width + 2 * model.num_query_groups * width + heads)
        each += 4 * heads * width * seen
        each += 6 * hidden * (of_sparse if sparse else model.ffn_hidden_size)
        each += 2 * hidden * model.num_moe_experts if sparse else 0
    predictions = model.mtp_num_layers or 0
    each += predictions * 4 * hidden * hidden + (1 + predictions) * 2 * hidden * model.vocab_size
    return int(3 * batch_size * length * each)
