"""Recipe functions of this project, for models that Megatron-Bridge 0.6.2 builds and has no function for.

They return a ConfigContainer as Bridge's own functions do: from the settings that those share
(`megatron.bridge.recipes.common`) and the model of a Hugging Face configuration. The catalog names the source
of each one's hyperparameters.
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final

_FULL: Final = {"recompute_granularity": "full", "recompute_method": "uniform", "recompute_num_layers": 1}
_MINIMAX_M2: Final = "MiniMaxAI/MiniMax-M2"
_SUPER: Final = "Llama-3_3-Nemotron-Super-49B-v1"
_ULTRA: Final = "Llama-3_1-Nemotron-Ultra-253B-v1"


def _pretraining(hub_name: str, *, steps: int, batch: int, length: int, **model: Any) -> Any:
    """Return the configuration of a run from random weights, with the optimizer's states in FP32.

    `length`: tokens of a sample. `model`: further fields of the model's configuration.
    """
    import torch
    from megatron.bridge import AutoBridge
    from megatron.bridge.recipes.common import _pretrain_common

    config = _pretrain_common()
    config.model = AutoBridge.from_hf_pretrained(hub_name).to_megatron_provider(load_weights=False)
    config.tokenizer.tokenizer_model = hub_name
    _set(config.model, pipeline_dtype=torch.bfloat16, seq_length=length, cuda_graph_impl="none", **model)
    config.dataset.seq_length = length
    _set(config.train, train_iters=steps, global_batch_size=batch, micro_batch_size=1)
    config.scheduler.lr_warmup_iters = 2000
    return config


def _set(owner: Any, **values: Any) -> None:
    for name, value in values.items():
        setattr(owner, name, value)


def _falcon_h1(size: str, *, tp: int = 1, pp: int = 1) -> Any:
    """Pretrain a Falcon-H1 by Nemotron-H's schedule (`nemotronh_4b_pretrain_1gpu_h100_bf16_config`)."""
    return _pretraining(
        f"tiiuae/Falcon-H1-{size}-Base",
        steps=1_168_251,
        batch=768,
        length=8192,
        tensor_model_parallel_size=tp,
        pipeline_model_parallel_size=pp,
        expert_tensor_parallel_size=None,
        sequence_parallel=tp > 1,
        # Its feed-forward layers have multipliers between the operations that this fuses.
        bias_activation_fusion=False,
        **_FULL,
    )


def _llama_nemotron(model: str, *, pp: int) -> Any:
    """Pretrain a Llama-Nemotron by Llama 3's schedule (`llama3_70b_pretrain_32gpu_h100_bf16_config`)."""
    return _pretraining(
        f"nvidia/{model}",
        steps=1_168_251,
        batch=512,
        length=8192,
        tensor_model_parallel_size=8,
        pipeline_model_parallel_size=pp,
        sequence_parallel=True,
        **_FULL,
    )


def _llama_nemotron_sft(model: str, *, pp: int, batch: int) -> Any:
    """Fine-tune a Llama-Nemotron as `llama31_70b_sft_32gpu_h100_bf16_config` does Llama 3.1 70B."""
    import torch
    from megatron.bridge import AutoBridge
    from megatron.bridge.recipes.common import _sft_common

    name, length = f"nvidia/{model}", 4096
    config = _sft_common()
    config.model = AutoBridge.from_hf_pretrained(name).to_megatron_provider(load_weights=False)
    config.tokenizer.tokenizer_model = name
    _set(
        config.model,
        tensor_model_parallel_size=8,
        pipeline_model_parallel_size=pp,
        pipeline_dtype=torch.bfloat16,
        sequence_parallel=True,
        seq_length=length,
        cuda_graph_impl="none",
        **_FULL,
    )
    config.dataset.seq_length = config.dataset.offline_packing_specs.packed_sequence_size = length
    _set(config.train, train_iters=1000, global_batch_size=batch, micro_batch_size=1)
    _set(config.optimizer, adam_beta2=0.98, use_precision_aware_optimizer=False)
    _set(config.scheduler, lr_warmup_iters=50, max_lr=5e-6)
    return config


def minimax_m2_pretrain_128gpu_h100_bf16_config() -> Any:
    """Pretrain MiniMax-M2 by MiniMax-M3's schedule (`minimax_m3_pretrain_256gpu_h100_bf16_config`)."""
    return _pretraining(
        _MINIMAX_M2,
        steps=1_000_000,
        batch=2048,
        length=4096,
        tensor_model_parallel_size=1,
        pipeline_model_parallel_size=2,
        expert_model_parallel_size=32,
        expert_tensor_parallel_size=1,
        **_FULL,
    )


_K_EXAONE_2: Final = {
    "tensor_model_parallel_size": 4,
    "pipeline_model_parallel_size": 16,
    "expert_model_parallel_size": 32,
    "pipeline_model_parallel_layout": "|".join(["Et*6", *["t*5"] * 14, "t*2mL"]),
    **_FULL,
}
"""The layout of K-EXAONE 2.0's functions in Megatron-Bridge's later release, for 512 H100s."""


def exaone_moe_2_0_750b_a37_pretrain_512gpu_h100_bf16_config() -> Any:
    """Pretrain K-EXAONE 2.0 with the settings of the later release's function, which has this name."""
    from megatron.bridge import recipes

    config = recipes.exaone_moe_236b_a23b_pretrain_64gpu_h100_bf16_config()
    _set(config.model, **_K_EXAONE_2)
    return config


def exaone_moe_2_0_750b_a37_sft_512gpu_h100_bf16_config() -> Any:
    """Fine-tune K-EXAONE 2.0 with the settings of the later release's function, which has this name."""
    from megatron.bridge import recipes

    config = recipes.exaone_moe_236b_a23b_sft_64gpu_h100_bf16_config()
    _set(config.model, **_K_EXAONE_2)
    return config


def exaone_moe_2_0_750b_a37_peft_128gpu_h100_bf16_config(peft_scheme: str = "lora") -> Any:
    """Train adapters of K-EXAONE 2.0 with the settings of the later release's function of this name."""
    from megatron.bridge import recipes

    config = recipes.exaone_moe_236b_a23b_peft_16gpu_h100_bf16_config(peft_scheme)
    _set(
        config.model,
        pipeline_model_parallel_size=8,
        expert_model_parallel_size=16,
        pipeline_model_parallel_layout="|".join(["Et*11", *["t*10"] * 6, "t*7mL"]),
        recompute_granularity="selective",
        recompute_modules=["core_attn", "moe", "shared_experts"],
    )
    return config


def glm51_sft_416gpu_h100_bf16_200k_config() -> Any:
    """Fine-tune GLM-5.1 as `glm52_sft_608gpu_h100_bf16_200k_config` does GLM-5.2, in stages of equal size.

    Each of its layers selects tokens itself, so stages may begin with any of them.
    """
    from megatron.bridge import recipes

    config = recipes.glm52_sft_608gpu_h100_bf16_200k_config()
    _set(config.model, pipeline_model_parallel_size=13, pipeline_model_parallel_layout=None)
    return config


def gemma4_vl_31b_sft_16gpu_h100_bf16_config() -> Any:
    """Fine-tune Gemma 4 31B as `gemma4_vl_26b_sft_8gpu_h100_bf16_config` does 26B-A4B, in one stage.

    Its layers are Megatron's own (`Gemma4DenseProvider`), whose fused softmax would leave out the mask.
    """
    from megatron.bridge import AutoBridge, recipes

    name = "google/gemma-4-31B-it"
    config = recipes.gemma4_vl_26b_sft_8gpu_h100_bf16_config()
    config.model = AutoBridge.from_hf_pretrained(name).to_megatron_provider(load_weights=False)
    _set(
        config.model,
        tensor_model_parallel_size=8,
        sequence_parallel=False,
        seq_length=4096,
        freeze_vision_model=True,
        transformer_impl="local",
        masked_softmax_fusion=False,
        cuda_graph_impl="none",
        **_FULL,
    )
    config.dataset.hf_processor_path = name
    return config


FUNCTIONS: Final[Mapping[str, Callable[..., Any]]] = {
    "falcon_h1_0p5b_pretrain_1gpu_h100_bf16_config": partial(_falcon_h1, "0.5B"),
    "falcon_h1_1p5b_pretrain_1gpu_h100_bf16_config": partial(_falcon_h1, "1.5B"),
    "falcon_h1_1p5b_deep_pretrain_1gpu_h100_bf16_config": partial(_falcon_h1, "1.5B-Deep"),
    "falcon_h1_3b_pretrain_8gpu_h100_bf16_config": partial(_falcon_h1, "3B"),
    "falcon_h1_7b_pretrain_8gpu_h100_bf16_config": partial(_falcon_h1, "7B"),
    "falcon_h1_34b_pretrain_32gpu_h100_bf16_config": partial(_falcon_h1, "34B", tp=2, pp=2),
    "llama_nemotron_super_49b_pretrain_64gpu_h100_bf16_config": partial(_llama_nemotron, _SUPER, pp=4),
    "llama_nemotron_super_49b_sft_32gpu_h100_bf16_config": partial(
        _llama_nemotron_sft, _SUPER, pp=4, batch=8
    ),
    "llama_nemotron_ultra_253b_pretrain_576gpu_h100_bf16_config": partial(_llama_nemotron, _ULTRA, pp=18),
    "llama_nemotron_ultra_253b_sft_144gpu_h100_bf16_config": partial(
        _llama_nemotron_sft, _ULTRA, pp=18, batch=32
    ),
    **{
        function.__name__: function
        for function in (
            minimax_m2_pretrain_128gpu_h100_bf16_config,
            exaone_moe_2_0_750b_a37_pretrain_512gpu_h100_bf16_config,
            exaone_moe_2_0_750b_a37_sft_512gpu_h100_bf16_config,
            exaone_moe_2_0_750b_a37_peft_128gpu_h100_bf16_config,
            glm51_sft_416gpu_h100_bf16_200k_config,
            gemma4_vl_31b_sft_16gpu_h100_bf16_config,
        )
    },
}
"""Functions by the names that the catalog has; Bridge has none of these."""
