"""Bridges of Mixtral and Qwen1.5-MoE, which Megatron-Bridge 0.6.2 does not have.

Both are models with experts of Megatron's own layers; names are those of the published folders.
"""

from collections.abc import Iterator, Mapping
from typing import Any, Final

_NAMES: Final[Mapping[str, str]] = {
    "embedding.word_embeddings.weight": "model.embed_tokens.weight",
    "output_layer.weight": "lm_head.weight",
    "decoder.final_layernorm.weight": "model.norm.weight",
    "decoder.layers.*.self_attention.linear_qkv.layer_norm_weight": "model.layers.*.input_layernorm.weight",
    "decoder.layers.*.self_attention.linear_proj.weight": "model.layers.*.self_attn.o_proj.weight",
    "decoder.layers.*.pre_mlp_layernorm.weight": "model.layers.*.post_attention_layernorm.weight",
}
_EXPERTS: Final = "decoder.layers.*.mlp.experts."
_SHARED: Final = "decoder.layers.*.mlp.shared_experts."


def install() -> None:
    """Call it once in a process, after Bridge is imported."""
    from megatron.bridge.models.conversion.mapping_registry import MegatronMappingRegistry
    from megatron.bridge.models.conversion.model_bridge import MegatronModelBridge
    from megatron.core.models.gpt.gpt_model import GPTModel
    from transformers import MixtralForCausalLM, Qwen2MoeForCausalLM

    @MegatronModelBridge.register_bridge(source=MixtralForCausalLM, target=GPTModel, model_type="mixtral")
    class MixtralBridge(MegatronModelBridge):
        """Mixtral 8x7B and 8x22B."""

        def provider_bridge(self, hf_pretrained: Any) -> Any:
            """Return the configuration of the model in Megatron."""
            provider = _with_experts(super().provider_bridge(hf_pretrained))
            provider.moe_ffn_hidden_size = hf_pretrained.config.intermediate_size
            return provider

        def mapping_registry(self) -> Any:
            """Return the names of the model's weights in Megatron and in the folder."""
            of_folder = "model.layers.*.block_sparse_moe."
            experts = {name: f"{of_folder}experts.*.{part}.weight" for name, part in _MIXTRAL.items()}
            return MegatronMappingRegistry(*_mappings(f"{of_folder}gate.weight", experts))

    @MegatronModelBridge.register_bridge(source=Qwen2MoeForCausalLM, target=GPTModel, model_type="qwen2_moe")
    class Qwen2MoeBridge(MegatronModelBridge):
        """Qwen1.5-MoE: all layers have experts, of which one is shared and has a gate."""

        def provider_bridge(self, hf_pretrained: Any) -> Any:
            """Return the configuration of the model in Megatron."""
            config = hf_pretrained.config
            provider = _with_experts(super().provider_bridge(hf_pretrained))
            provider.add_qkv_bias = True
            provider.moe_router_pre_softmax = not config.norm_topk_prob
            provider.moe_shared_expert_gate = True
            provider.moe_shared_expert_intermediate_size = config.shared_expert_intermediate_size
            return provider

        def mapping_registry(self) -> Any:
            """Return the names of the model's weights in Megatron and in the folder."""
            from megatron.bridge.models.conversion.param_mapping import (
                AutoMapping,
                GatedMLPMapping,
                QKVMapping,
                ReplicatedMapping,
            )

            of_folder, attention = "model.layers.*.mlp.", "model.layers.*.self_attn."
            experts = {name: f"{of_folder}experts.*.{part}.weight" for name, part in _QWEN2.items()}
            return MegatronMappingRegistry(
                *_mappings(f"{of_folder}gate.weight", experts),
                QKVMapping(
                    megatron_param="decoder.layers.*.self_attention.linear_qkv.bias",
                    **{name: f"{attention}{name}_proj.bias" for name in "qkv"},
                ),
                GatedMLPMapping(
                    megatron_param=f"{_SHARED}linear_fc1.weight",
                    **{name: f"{of_folder}shared_expert.{_QWEN2[name]}.weight" for name in ("gate", "up")},
                ),
                AutoMapping(
                    megatron_param=f"{_SHARED}linear_fc2.weight",
                    hf_param=f"{of_folder}shared_expert.down_proj.weight",
                ),
                ReplicatedMapping(
                    megatron_param=f"{_SHARED}gate_weight",
                    hf_param=f"{of_folder}shared_expert_gate.weight",
                ),
            )


_MIXTRAL: Final = {"gate": "w1", "up": "w3", "down": "w2"}
_QWEN2: Final = {"gate": "gate_proj", "up": "up_proj", "down": "down_proj"}


def _with_experts(provider: Any) -> Any:
    """Complete Bridge's configuration of a model with what both families have."""
    provider.normalization = "RMSNorm"
    provider.gated_linear_unit = True
    provider.add_bias_linear = provider.add_qkv_bias = provider.qk_layernorm = False
    provider.hidden_dropout = 0.0
    provider.moe_router_load_balancing_type = "aux_loss"
    provider.moe_grouped_gemm = True
    provider.moe_token_dispatcher_type = "alltoall"
    return provider


def _mappings(router: str, experts: Mapping[str, str]) -> Iterator[Any]:
    """Mappings of what both have; `experts`: names of the matrices gate, up and down of each expert."""
    from megatron.bridge.models.conversion.param_mapping import AutoMapping, GatedMLPMapping, QKVMapping

    for name, folder in {**_NAMES, "decoder.layers.*.mlp.router.weight": router}.items():
        yield AutoMapping(megatron_param=name, hf_param=folder)
    yield QKVMapping(
        megatron_param="decoder.layers.*.self_attention.linear_qkv.weight",
        **{name: f"model.layers.*.self_attn.{name}_proj.weight" for name in "qkv"},
    )
    yield GatedMLPMapping(
        megatron_param=f"{_EXPERTS}linear_fc1.weight*", gate=experts["gate"], up=experts["up"]
    )
    yield AutoMapping(megatron_param=f"{_EXPERTS}linear_fc2.weight*", hf_param=experts["down"])
