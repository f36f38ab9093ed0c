"""Layers of DeepSeek-V4 for Megatron-Bridge: residual streams, experts by token, multi-token prediction.

Megatron Core 0.19.2 has none of the three. Follows `DeepseekV4DecoderLayer` of transformers 5.23. Modules
have the names by which Megatron-Bridge 0.6.2 maps the weights.
"""

from typing import Any

import torch
from megatron.core.extensions.transformer_engine_spec_provider import TESpecProvider
from megatron.core.models.backends import LocalSpecProvider
from megatron.core.models.gpt.moe_module_specs import get_moe_module_spec_for_backend
from megatron.core.tensor_parallel import checkpoint
from megatron.core.transformer import ModuleSpec
from megatron.core.transformer.module import MegatronModule
from megatron.core.transformer.moe.moe_utils import topk_routing_with_score_function
from megatron.core.transformer.moe.router import TopKRouter
from megatron.core.transformer.multi_token_prediction import MultiTokenPredictionBlock, roll_tensor
from megatron.core.transformer.transformer_block import (
    TransformerBlock,
    TransformerBlockSubmodules,
    get_num_layers_to_build,
)
from megatron.core.transformer.transformer_layer import get_transformer_layer_offset
from megatron.core.utils import make_viewless_tensor

from megatron_trainer.bridge.deepseek_v4_attention import (
    IN_FP32,
    DeepseekV4Attention,
    FP32Norm,
    fp32_zeros,
    linear,
    unit_scale,
)


class FP32Linear(torch.nn.Module):
    """A linear layer without bias, computed in FP32."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.weight = fp32_zeros(outputs, inputs)
        torch.nn.init.xavier_uniform_(self.weight)
        setattr(self, IN_FP32, ("weight",))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Return the output, in FP32."""
        return torch.nn.functional.linear(inputs.float(), self.weight)


class HyperConnection(MegatronModule):
    """How a part of a layer reads its input from the residual streams, and adds its output to them.

    Manifold-constrained hyper-connections (https://arxiv.org/abs/2512.24880): the matrix that mixes the
    streams is made doubly stochastic by the algorithm of Sinkhorn and Knopp.
    """

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self.streams = config.num_residual_streams
        outputs = (2 + self.streams) * self.streams
        self.mapping_proj = FP32Linear(self.streams * config.hidden_size, outputs)
        self.scale, self.bias = fp32_zeros(3), fp32_zeros(outputs)
        torch.nn.init.constant_(self.scale, config.mhc_init_gating_factor)
        setattr(self, IN_FP32, ("scale", "bias"))

    def forward(self, streams: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return the input [tokens, batch, hidden_size], weights of the output and the matrix of the mixture.

        `streams` [tokens, batch, streams, hidden_size]; weights [tokens, batch, streams], matrix [tokens,
        batch, streams, streams].
        """
        count, eps = self.streams, self.config.hc_eps
        flat = unit_scale(streams.flatten(2).float(), self.config.layernorm_epsilon)
        drawn = self.mapping_proj(flat).split([count, count, count * count], dim=-1)
        biases = self.bias.split([count, count, count * count])
        pre, post, mix = (x * scale + bias for x, scale, bias in zip(drawn, self.scale, biases, strict=True))
        mix = mix.unflatten(-1, (count, count)).softmax(dim=-1) + eps
        mix = mix / (mix.sum(dim=-2, keepdim=True) + eps)
        for _ in range(self.config.mhc_sinkhorn_iterations - 1):
            mix = mix / (mix.sum(dim=-1, keepdim=True) + eps)
            mix = mix / (mix.sum(dim=-2, keepdim=True) + eps)
        read = ((pre.sigmoid() + eps).unsqueeze(-1) * streams).sum(dim=2).to(streams.dtype)
        return read, 2 * post.sigmoid().to(streams.dtype), mix.to(streams.dtype)


def _add(
    streams: torch.Tensor, output: torch.Tensor, weights: torch.Tensor, mix: torch.Tensor
) -> torch.Tensor:
    """Return the mixed streams with the output of a part added."""
    return weights.unsqueeze(-1) * output.unsqueeze(-2) + mix.transpose(-1, -2) @ streams


class HyperHead(MegatronModule):
    """Makes one state of the residual streams, in front of the last norm."""

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self.fn = fp32_zeros(config.num_residual_streams, config.num_residual_streams * config.hidden_size)
        self.base = fp32_zeros(config.num_residual_streams)
        self.scale = fp32_zeros(1)
        torch.nn.init.xavier_uniform_(self.fn)
        torch.nn.init.constant_(self.scale, config.mhc_init_gating_factor)
        setattr(self, IN_FP32, ("fn", "base", "scale"))

    def forward(self, streams: torch.Tensor) -> torch.Tensor:
        """Return the state [tokens, batch, hidden_size] of streams [tokens, batch, streams, hidden_size]."""
        flat = unit_scale(streams.flatten(2).float(), self.config.layernorm_epsilon)
        mixes = torch.nn.functional.linear(flat, self.fn)
        weights = (mixes * self.scale + self.base).sigmoid() + self.config.hc_eps
        return (weights.unsqueeze(-1) * streams).sum(dim=2).to(streams.dtype)


class HashRouter(TopKRouter):
    """Chooses the experts of a token by its id, from a table that is not trained; weighs them as usual."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        del self.expert_bias, self.local_tokens_per_expert
        self.enable_expert_bias = False
        shape = (self.config.vocab_size, self.topk)
        self.register_buffer("tid2eid", _spread(shape, self.config.num_moe_experts))
        self.token_ids = torch.empty(0, 0, dtype=torch.long)

    def routing(
        self, logits: torch.Tensor, padding_mask: torch.Tensor | None = None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return weights and choices [tokens * batch, experts] of logits [tokens, batch, experts]."""
        del padding_mask  # only balance, which is fixed, would need it
        chosen = self.tid2eid[self.token_ids.transpose(0, 1).flatten()]
        weights, choices = topk_routing_with_score_function(
            logits.flatten(0, 1),
            self.topk,
            scaling_factor=self.config.moe_router_topk_scaling_factor,
            score_function=self.score_function,
            precomputed_indices=chosen,
        )
        return weights, choices


def _spread(shape: tuple[int, int], experts: int) -> torch.Tensor:
    """Return a table of experts for tokens, of as many tokens each: that of a model without weights."""
    first = torch.arange(shape[0])[:, None] * shape[1]
    return (first + torch.arange(shape[1])) % experts


class HyperLayer(MegatronModule):
    """A layer: attention and experts, each between residual streams."""

    def __init__(
        self,
        config: Any,
        layer_number: int = 1,
        pg_collection: Any = None,
        vp_stage: int | None = None,
        is_mtp_layer: bool = False,
        **_: Any,
    ) -> None:
        super().__init__(config)
        stage = pg_collection.pp.rank()
        offset = 0 if is_mtp_layer else get_transformer_layer_offset(config, vp_stage, stage)
        self.layer_number, self.tp_group = layer_number + offset, pg_collection.tp
        number = self.layer_number + (config.num_layers if is_mtp_layer else 0)
        eps, hidden = config.layernorm_epsilon, config.hidden_size
        self.by_token = number <= config.moe_n_hash_layers
        self.self_attention_hyper_connection = HyperConnection(config)
        self.input_layernorm = FP32Norm(config, hidden, eps)
        self.self_attention = DeepseekV4Attention(config, config.csa_compress_ratios[number - 1])
        self.mlp_hyper_connection = HyperConnection(config)
        self.pre_mlp_layernorm = FP32Norm(config, hidden, eps)
        self.mlp = _experts(config, by_token=self.by_token)(
            config=config, pg_collection=pg_collection, is_mtp_layer=is_mtp_layer
        )
        self.mlp.set_layer_number(self.layer_number)

    def forward(self, hidden_states: torch.Tensor, token_ids: torch.Tensor | None) -> torch.Tensor:
        """Return the streams after the layer, like hidden states [tokens, batch, streams * hidden_size].

        `token_ids` [batch, tokens], or None on a stage that has none.
        """
        streams = hidden_states.unflatten(-1, (self.config.num_residual_streams, -1))
        read, *how = self.self_attention_hyper_connection(streams)
        streams = _add(streams, self.self_attention(self.input_layernorm(read)), *how)
        read, *how = self.mlp_hyper_connection(streams)
        if self.by_token:
            self.mlp.router.token_ids = token_ids
        output, _ = self.mlp(self.pre_mlp_layernorm(read))
        return _add(streams, output, *how).flatten(2)


def _experts(config: Any, *, by_token: bool) -> Any:
    on_gpu = config.transformer_impl == "transformer_engine"
    spec = get_moe_module_spec_for_backend(
        TESpecProvider() if on_gpu else LocalSpecProvider(),
        num_experts=config.num_moe_experts,
        moe_grouped_gemm=config.moe_grouped_gemm,
    )
    if by_token:
        spec.keywords["submodules"].router = HashRouter
    return spec


def deepseek_v4_layers(config: Any, vp_stage: int | None = None) -> Any:
    """Return the layers of a pipeline stage."""
    count = get_num_layers_to_build(config, vp_stage=vp_stage)
    return TransformerBlockSubmodules(
        layer_specs=[ModuleSpec(module=HyperLayer)] * count, layer_norm=FP32Norm
    )


class HyperBlock(TransformerBlock):
    """The layers of a pipeline stage. Between stages states are [tokens, batch, streams * hidden_size]."""

    def __init__(self, config: Any, *args: Any, **kwargs: Any) -> None:
        super().__init__(config, *args, **kwargs)
        if not self.pre_process and any(layer.by_token for layer in self.layers):
            raise ValueError(
                f"the first {config.moe_n_hash_layers} layers of DeepSeek-V4 choose experts by token ids, "
                "which the first pipeline stage alone has: split the layers over fewer stages"
            )
        if self.final_layernorm is not None:
            self.hc_head = HyperHead(config)
        self.token_ids: torch.Tensor | None = None
        self._streams: torch.Tensor | None = None

    def forward(self, hidden_states: torch.Tensor, *_: Any, **__: Any) -> torch.Tensor:
        """Return the states after the stage, of embeddings [tokens, batch, hidden_size] on the first one."""
        count = self.config.num_residual_streams
        hidden = hidden_states.repeat(1, 1, count) if self.pre_process else self.input_tensor
        hidden = make_viewless_tensor(inp=hidden, requires_grad=True, keep_graph=True)
        for number, layer in enumerate(self.layers):
            if self.training and self._computes_again(number):
                hidden = checkpoint(layer, False, hidden, self.token_ids)
            else:
                hidden = layer(hidden, self.token_ids)
        if self.final_layernorm is not None:
            streams = hidden.unflatten(-1, (count, -1))
            if self.config.mtp_num_layers:
                self._streams = streams
            hidden = self.final_layernorm(self.hc_head(streams))
        return make_viewless_tensor(inp=hidden, requires_grad=True, keep_graph=True)

    def _computes_again(self, number: int) -> bool:
        if self.config.recompute_granularity != "full":
            return False
        first = self.config.recompute_num_layers
        return bool(self.config.recompute_method != "block" or number < first)

    def take_streams(self) -> torch.Tensor:
        """Return the streams [tokens, batch, streams, hidden_size] after the last layer, once."""
        streams, self._streams = self._streams, None
        if streams is None:
            raise RuntimeError("multi-token prediction is on another pipeline stage than the last layer")
        return streams


class Prediction(MegatronModule):
    """A layer of multi-token prediction, which joins the next token's embedding with all streams."""

    def __init__(self, config: Any, layer_number: int, vp_stage: int | None, pg_collection: Any) -> None:
        super().__init__(config)
        self.layer_number, self.tp_group = layer_number, pg_collection.tp
        hidden, eps = config.hidden_size, config.layernorm_epsilon
        self.enorm, self.hnorm = FP32Norm(config, hidden, eps), FP32Norm(config, hidden, eps)
        self.e_proj, self.h_proj = linear(config, hidden, hidden), linear(config, hidden, hidden)
        self.mtp_model_layer = HyperLayer(config, layer_number, pg_collection, vp_stage, is_mtp_layer=True)
        self.hc_head = HyperHead(config)
        self.final_layernorm = FP32Norm(config, hidden, eps)

    def forward(self, streams: torch.Tensor, embedding: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the streams and the state after the layer.

        `streams` [tokens, batch, streams, hidden_size], `embedding` [tokens, batch, hidden_size].
        """
        of_token = self.e_proj(self.enorm(embedding))[0].unsqueeze(2)
        joined = (of_token + self.h_proj(self.hnorm(streams))[0]).flatten(2)
        again = self.training and self.config.recompute_granularity == "full"
        layer = self.mtp_model_layer
        after = checkpoint(layer, False, joined, None) if again else layer(joined, None)
        streams = after.unflatten(-1, (self.config.num_residual_streams, -1))
        return streams, self.final_layernorm(self.hc_head(streams))


class PredictionBlock(MultiTokenPredictionBlock):
    """All layers of multi-token prediction. `decoder` is set once the model is built."""

    decoder: tuple[HyperBlock, ...] = ()

    def _build_layers(self, pg_collection: Any) -> None:
        self.layers = torch.nn.ModuleList(
            Prediction(self.config, number + 1, self.vp_stage, pg_collection)
            for number in range(self.config.mtp_num_layers)
        )

    def forward(
        self,
        input_ids: torch.Tensor,
        position_ids: torch.Tensor,
        hidden_states: torch.Tensor,
        *_: Any,
        embedding: Any = None,
        **__: Any,
    ) -> torch.Tensor:
        """Return states [(1 + layers) * tokens, batch, hidden_size]: `hidden_states`, then of each layer."""
        states, streams = [hidden_states], self.decoder[0].take_streams()
        for layer in self.layers:
            input_ids, position_ids = (
                roll_tensor(x, shifts=-1, dims=-1, cp_group=self.cp_group)[0]
                for x in (input_ids, position_ids)
            )
            streams, state = layer(streams, embedding(input_ids=input_ids, position_ids=position_ids))
            states.append(state)
        return torch.cat(states, dim=0)
