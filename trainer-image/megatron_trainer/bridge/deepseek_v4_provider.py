"""Megatron-Bridge's configuration of DeepSeek-V4, which builds the model of this project's layers.

Imported after Bridge. Checkpoints name the class.
"""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final

from megatron.bridge.models.mla_provider import MLAModelProvider

from megatron_trainer.bridge.deepseek_v4_layers import HyperBlock, PredictionBlock


@dataclass
class DeepseekV4Provider(MLAModelProvider):
    """Bridge's configuration of the model, with the fields that Megatron Core's lacks."""

    o_groups: int = 8
    o_lora_rank: int = 1024
    csa_compress_rotary_base: float = 160000.0
    csa_compress_ratios: list[int] = field(default_factory=list)
    """Tokens of an entry of each layer, 0 without entries; those of multi-token prediction at the end."""
    csa_window_size: int = 128
    cp_partition_mode: str | None = None
    enable_hyper_connections: bool = True
    use_fused_mhc: bool = False
    num_residual_streams: int = 4
    mhc_sinkhorn_iterations: int = 20
    mhc_init_gating_factor: float = 0.01
    hc_eps: float = 1e-6
    moe_n_hash_layers: int = 0
    actual_vocab_size: int = 0
    apply_dsa_kernel_fusion: bool = False
    dsa_indexer_use_sparse_loss: bool = False
    mtp_eval_in_bf16: bool = False

    def finalize(self) -> None:
        """Raise ValueError for what the layers do not have."""
        for name, value in _LAYERS_HAVE.items():
            if (found := getattr(self, name)) not in value:
                allowed = " or ".join(str(x) for x in value)
                raise ValueError(f"DeepSeek-V4's layers do not have {name} {found}: set it to {allowed}")
        several = self.recompute_method == "uniform" and self.recompute_num_layers not in (None, 1)
        if self.recompute_granularity == "full" and several:
            raise ValueError("DeepSeek-V4 computes each layer again alone: set recompute_num_layers to 1")
        if self.recompute_granularity == "selective" and "moe" in (self.recompute_modules or ()):
            raise ValueError(
                "DeepSeek-V4 does not compute its experts again alone: leave moe out of recompute_modules"
            )
        # Its layers compute rotary embeddings and residual streams themselves.
        self.apply_rope_fusion = self.use_fused_mhc = self.apply_dsa_kernel_fusion = False
        self.moe_router_fusion = False
        # Megatron's overlap of shared experts and its fused activations do not clamp.
        self.moe_shared_expert_overlap = self.bias_activation_fusion = False
        if self.recompute_modules:
            # mla_up_proj is a module of Megatron's own latent attention.
            kept = [each for each in self.recompute_modules if each != "mla_up_proj"]
            self.recompute_modules: list[str] | None = kept
        self.moe_router_load_balancing_type = "none"
        super().finalize()

    def provide(self, *args: Any, **kwargs: Any) -> Any:
        """Return the model of a pipeline stage."""
        with _classes_of_model():
            model = super().provide(*args, **kwargs)
        if model.mtp_process:
            model.mtp.decoder = (model.decoder,)
        model.register_forward_pre_hook(_keep_token_ids, with_kwargs=True)
        return model


_LAYERS_HAVE: Final[dict[str, tuple[object, ...]]] = {
    "tensor_model_parallel_size": (1,),
    "context_parallel_size": (1,),
    "virtual_pipeline_model_parallel_size": (None, 1),
    "fp8": (None, False),
    "fp4": (None, False),
    "cuda_graph_impl": ("none",),
    "fp32_residual_connection": (False,),
    "dsa_indexer_loss_coeff": (0.0, None),
}


def _keep_token_ids(model: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    model.decoder.token_ids = args[0] if args else kwargs.get("input_ids")


@contextlib.contextmanager
def _classes_of_model() -> Iterator[None]:
    from megatron.core.models.gpt import gpt_model

    names = ("TransformerBlock", "MultiTokenPredictionBlock")
    others = [getattr(gpt_model, name) for name in names]
    gpt_model.TransformerBlock, gpt_model.MultiTokenPredictionBlock = HyperBlock, PredictionBlock
    try:
        yield
    finally:
        for name, other in zip(names, others, strict=True):
            setattr(gpt_model, name, other)
