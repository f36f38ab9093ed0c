"""Builds Megatron models of Hugging Face configurations on the CPU, with Megatron-Bridge's AutoBridge."""

import contextlib
import difflib
import fnmatch
import importlib
import os
import sys
from collections.abc import Iterator
from typing import Any

from megatron_trainer.weights.conversion_error import ConversionError
from megatron_trainer.weights.huggingface_folder import HuggingFaceFolder
from megatron_trainer.weights.tensors import dtype_of

ON_CPU: dict[str, Any] = {
    "transformer_impl": "local",
    "use_cpu_initialization": True,
    "perform_initialization": False,
    "gradient_accumulation_fusion": False,
    "bias_activation_fusion": False,
    "masked_softmax_fusion": False,
    "bias_dropout_fusion": False,
    "apply_rope_fusion": False,
    "persist_layer_norm": False,
    "cross_entropy_loss_fusion": False,
    "cross_entropy_fusion_impl": "native",
    "moe_grouped_gemm": False,
    "moe_permute_fusion": False,
    "moe_router_fusion": False,
    "moe_shared_expert_overlap": False,
    "moe_token_dispatcher_type": "allgather",
    "tp_comm_overlap": False,
    "attention_backend": None,
}
"""Fields of a model's configuration that a CPU requires. They do not change its weights."""

CONVERTS: tuple[str, ...] = (
    "LlamaForCausalLM",
    "MistralForCausalLM",
    "Qwen2ForCausalLM",
    "Qwen3ForCausalLM",
    "MixtralForCausalLM",
    "Qwen2MoeForCausalLM",
    "Qwen3MoeForCausalLM",
    "Qwen3NextForCausalLM",
    "Qwen3_5ForCausalLM",
    "Qwen3_5MoeForCausalLM",
    "DeepseekV2ForCausalLM",
    "DeepseekV3ForCausalLM",
    "DeepseekV4ForCausalLM",
    "GptOssForCausalLM",
    "NemotronHForCausalLM",
    "GemmaForCausalLM",
    "Gemma2ForCausalLM",
    "Gemma3ForCausalLM",
    "Glm4MoeForCausalLM",
    "Glm4MoeLiteForCausalLM",
    "GlmMoeDsaForCausalLM",
    "Exaone4ForCausalLM",
    "ExaoneMoEForCausalLM",
    "OlmoeForCausalLM",
    "FalconH1ForCausalLM",
    "MiniMaxM2ForCausalLM",
    "DeciLMForCausalLM",
    "HYV3ForCausalLM",
    "MiMoForCausalLM",
    "NemotronForCausalLM",
    "Qwen2_5_VLForConditionalGeneration",
    "Qwen3VLForConditionalGeneration",
    "Qwen3VLMoeForConditionalGeneration",
    "Qwen3_5ForConditionalGeneration",
    "Qwen3_5MoeForConditionalGeneration",
    "Mistral3ForConditionalGeneration",
    "Gemma3ForConditionalGeneration",
    "Gemma4ForConditionalGeneration",
    "Glm4vMoeForConditionalGeneration",
    "Qwen2AudioForConditionalGeneration",
    "Exaone4_5_ForConditionalGeneration",
    "MiniMaxM3SparseForConditionalGeneration",
    "KimiK25ForConditionalGeneration",
    "Qwen3OmniMoeForConditionalGeneration",
    "Step3p5ForCausalLM",
    "Step3p7ForConditionalGeneration",
    "NemotronH_Nano_VL_V2",
    "NemotronH_Nano_Omni_Reasoning_V3",
)
"""Architectures whose logits and round trip are proven: `make weights-check`."""


def import_bridge() -> None:
    """Import Megatron and Bridge on a machine without a GPU; takes seconds the first time."""
    if "megatron.bridge" in sys.modules:
        return
    for name in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"):
        os.environ[name] = "1"
    from megatron_trainer.platform import cpu

    cpu.install()
    # Megatron Core detects packages at import; it must not find the placeholders.
    for name in (
        "megatron.core.inference.engines",
        "megatron.core.models.gpt.gpt_layer_specs",
        "megatron.training.training",
    ):
        importlib.import_module(name)
    from megatron_trainer.bridge import absent_packages

    absent_packages.install("cpu")
    from megatron_trainer.bridge.configuration import forget_transformer_engine

    importlib.import_module("megatron.bridge")
    forget_transformer_engine()
    from megatron_trainer.bridge import (
        adapter_norms,
        deepseek_v4,
        dora_magnitudes,
        exaone45,
        gemma4,
        glm,
        kimi,
        llama_nemotron,
        local_layers,
        local_names,
        minimax_m3,
        mixtures,
        nemotron_vl,
        partial_rotary,
        predecessors,
        query_norms,
        qwen3_omni,
        step,
        zero_centred_norms,
    )

    for module in (
        adapter_norms,
        dora_magnitudes,
        local_names,
        exaone45,
        gemma4,
        glm,
        kimi,
        minimax_m3,
        mixtures,
        partial_rotary,
    ):
        module.install()
    deepseek_v4.install()
    predecessors.install()
    qwen3_omni.install()
    step.install()
    llama_nemotron.install()
    nemotron_vl.install()
    zero_centred_norms.install()
    query_norms.leave_out()
    local_layers.use_for_prediction()


@contextlib.contextmanager
def one_process() -> Iterator[None]:
    """Megatron's process groups for this process alone; no port is opened."""
    import torch.distributed as dist
    from megatron.core import parallel_state, tensor_parallel

    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    parallel_state.initialize_model_parallel()
    tensor_parallel.model_parallel_cuda_manual_seed(1)
    try:
        yield
    finally:
        parallel_state.destroy_model_parallel()
        dist.destroy_process_group()


def require_support(architecture: str) -> None:
    """Raise ConversionError unless the architecture converts; names those that do."""
    if architecture in CONVERTS:
        return
    near = difflib.get_close_matches(architecture, CONVERTS, n=1, cutoff=0.8)
    hint = f"; did you mean {near[0]}?" if near else ""
    raise ConversionError(
        f"architecture {architecture} of config.json is not among those whose conversion is proven{hint}: "
        f"{', '.join(CONVERTS)}"
    )


class _Names(dict[str, Any]):
    """Names of tensors whose values are elsewhere; Bridge follows how their experts are stored."""

    @property
    def source(self) -> "_Names":
        return self

    def get_all_keys(self) -> list[str]:
        return list(self)

    def has_glob(self, pattern: str) -> bool:
        return any(fnmatch.fnmatchcase(name, pattern) for name in self)


def make_bridge(folder: HuggingFaceFolder) -> Any:
    """Return an AutoBridge of the folder. Raises ConversionError if it does not convert."""
    require_support(folder.architecture)
    from megatron.bridge import AutoBridge

    try:
        if not folder.has_weights:
            import transformers

            config = transformers.AutoConfig.from_pretrained(folder.path)
            if folder.headers:
                config.state = _Names(folder.headers)
            return AutoBridge.from_hf_config(config)
        bridge = AutoBridge.from_hf_pretrained(folder.path, trust_remote_code=False)
        if folder.stored or folder.has_other_layout:
            from megatron_trainer.weights import folder_state

            folder_state.use(bridge, folder)
        return bridge
    except (ValueError, OSError, KeyError, TypeError) as error:
        text = " ".join(str(error).split())[:400]
        raise ConversionError(f"{folder.path / 'config.json'} is refused: {text}") from error


def make_provider(bridge: Any, dtype: str) -> Any:
    """Return Bridge's configuration of the model, unchanged but for the dtype, tied to no device."""
    import torch

    from megatron_trainer.bridge import vision_layers

    provider = bridge.to_megatron_provider(load_weights=False)
    vision_layers.follow_config(provider)
    if layers := _left_out_prediction(bridge):
        provider.mtp_num_layers = layers
    kind = dtype_of(dtype)
    provider.fp16, provider.bf16 = kind is torch.float16, kind is torch.bfloat16
    provider.params_dtype = provider.pipeline_dtype = provider.autocast_dtype = kind
    # Rows that no token of the source has belong to a run's layout, not to the weights.
    provider.should_pad_vocab = False
    return provider


def _left_out_prediction(bridge: Any) -> int:
    """Layers of multi-token prediction that the files have and Bridge leaves out.

    config.json of Qwen3-Next does not state its layer, and Bridge has GLM-5 without.
    """
    config = getattr(bridge.hf_pretrained, "config", bridge.hf_pretrained)
    if config.architectures == ["Qwen3NextForCausalLM"]:
        before, layers = "mtp.", 1
    elif config.architectures == ["GlmMoeDsaForCausalLM"]:
        before = f"model.layers.{config.num_hidden_layers}."
        layers = getattr(config, "num_nextn_predict_layers", None) or 0
    else:
        return 0
    state = getattr(bridge.hf_pretrained, "state", None)
    found = state is not None and any(name.startswith(before) for name in state.source.get_all_keys())
    return layers if found else 0


def make_model(bridge: Any, dtype: str) -> Any:
    """Return a Megatron model without weights, on the CPU. Raises ConversionError."""
    from megatron.core.transformer.enums import AttnBackend

    from megatron_trainer.bridge.family_layers import build_locally

    provider = make_provider(bridge, dtype)
    build_locally(provider, loads_weights=True)
    for name, value in ON_CPU.items():
        if hasattr(provider, name):
            setattr(provider, name, value)
    if getattr(provider, "is_vision_language", False):
        # Gemma 3 refuses all but this, under which Transformer Engine takes its bias for images.
        provider.attention_backend = AttnBackend.auto
    try:
        provider.finalize()
        (model,) = provider.provide_distributed_model(wrap_with_ddp=False, use_cpu_initialization=True)
    except (ValueError, TypeError, ImportError, RuntimeError, AssertionError, StopIteration) as error:
        text = " ".join(str(error).split())[:400] or type(error).__name__
        raise ConversionError(f"Megatron cannot build this model on a CPU: {text}") from error
    from megatron.core.utils import unwrap_model

    return unwrap_model(model).eval()
