"""Small random models of the families of Hugging Face, and which of them convert on a CPU."""

import json
import tempfile
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from testkit.weights import deepseek_v4
from testkit.weights.deepseek_v4 import DEEPSEEK_V4, SHORT_ENTRIES
from testkit.weights.disturbed import disturb_vectors
from testkit.weights.falcon import FALCON_H1
from testkit.weights.gated_delta import QWEN3_5, QWEN3_5_MOE, QWEN3_NEXT, write_prediction
from testkit.weights.hybrid import NEMOTRON_3, NEMOTRON_3_5_LIGHTNING, NEMOTRON_3_SUPER, NEMOTRON_H
from testkit.weights.llama_nemotron import LLAMA_NEMOTRON
from testkit.weights.step import STEP, STEP_PREDICTING

VOCABULARY = 256
"""Entries of the vocabulary of every model."""
BASE: dict[str, Any] = {
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": VOCABULARY,
    "max_position_embeddings": 128,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "pad_token_id": None,
}
HEADS = {"head_dim": 16}
EXPERTS = {"moe_intermediate_size": 32, "num_experts": 4, "num_experts_per_tok": 2}
GEMMA = {**BASE, **HEADS, "query_pre_attn_scalar": 16, "sliding_window": 16}


ROUTED = {
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
    "n_shared_experts": 1,
    "first_k_dense_replace": 1,
    "n_group": 1,
    "topk_group": 1,
}
LATENT = {
    **BASE,
    **ROUTED,
    "num_key_value_heads": 4,
    "kv_lora_rank": 32,
    "q_lora_rank": 48,
    "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 8,
    "v_head_dim": 16,
}
_LOCAL_EXPERTS = {"num_local_experts": 4, "num_experts_per_tok": 2}
MINIMAX_M2: dict[str, Any] = {**BASE, **HEADS, **_LOCAL_EXPERTS, "intermediate_size": 32, "rotary_dim": 8}
"""A part of each head is rotated, as in the published model."""
_ERNIE = {
    "moe_num_experts": 4,
    "moe_k": 2,
    "moe_intermediate_size": 32,
    "moe_num_shared_experts": 1,
    "moe_layer_start_index": 1,
}
OLMOE_OF_BRIDGE: dict[str, Any] = {
    **{"model.num_layers": 2, "model.hidden_size": 64, "model.ffn_hidden_size": 32},
    **{"model.moe_ffn_hidden_size": 32, "model.num_attention_heads": 4, "model.num_query_groups": 4},
    **{"model.kv_channels": 16, "model.num_moe_experts": 4, "model.moe_router_topk": 2},
}
"""A small OLMoE for Megatron-Bridge's functions, which have the architecture themselves."""


@dataclass(frozen=True)
class Family:
    """A family by the classes of transformers, with the sizes of a small model of it.

    Its classes are NAMEForCausalLM and NAMEConfig, unless `config` names the latter.
    """

    name: str
    prefix: str
    sizes: dict[str, Any] = field(default_factory=dict)
    config_class: str = ""
    predicts: bool = False
    """Whether its folder has a layer of multi-token prediction, which transformers leaves out."""
    published_as: str = ""
    """What published folders name in `architectures`, where it is not the class of transformers."""
    model_type: str = ""
    """What they name in `model_type`, where that is not transformers' of the class."""

    @property
    def model(self) -> str:
        """The class of the model."""
        return f"{self.prefix}ForCausalLM"

    @property
    def architecture(self) -> str:
        """The name in `architectures` of config.json."""
        return self.published_as or self.model

    @property
    def config(self) -> str:
        """The class of the configuration."""
        return self.config_class or f"{self.prefix}Config"


_V2 = {**LATENT, "topk_method": "greedy"}
_V3 = {**LATENT, "norm_topk_prob": True, "num_nextn_predict_layers": 0}
_GLM = {**BASE, **HEADS, **ROUTED, "num_nextn_predict_layers": 0, "attention_bias": True, "use_qk_norm": True}
_FLASH = {**_V3, "rms_norm_eps": 1e-6}
_GLM5 = {
    **{**LATENT, "norm_topk_prob": True, "num_nextn_predict_layers": 0, "rms_norm_eps": 1e-6},
    **{"index_topk": 8, "index_head_dim": 16, "index_n_heads": 4, "indexer_rope_interleave": True},
}
GLM5_SHARED: dict[str, Any] = {
    **{**_GLM5, "num_hidden_layers": 4, "num_nextn_predict_layers": 1},
    **{"index_topk_freq": 2, "index_skip_topk_offset": 1},
}
"""Each second layer attends to the tokens that the one before it selected, as most of GLM-5.2 do."""
_LLAMA3 = {
    **{"rope_type": "llama3", "rope_theta": 1000000.0, "factor": 16.0, "low_freq_factor": 1.0},
    **{"high_freq_factor": 4.0, "original_max_position_embeddings": 8192},
}
_EXAONE = {
    **{**BASE, "sliding_window": None, "layer_types": ["full_attention"] * 2, "tie_word_embeddings": True},
    "rope_parameters": _LLAMA3,
}
_AS_PUBLISHED = "ExaoneMoEForCausalLM"
_K_EXAONE = {
    **{
        **BASE,
        **HEADS,
        **EXPERTS,
        "num_shared_experts": 1,
        "first_k_dense_replace": 1,
        "num_hidden_layers": 4,
    },
    **{"sliding_window": 16, "sliding_window_pattern": 4, "routed_scaling_factor": 2.5},
}
K_EXAONE_2: dict[str, Any] = {**_K_EXAONE, "first_k_dense_replace": 2, "num_nextn_predict_layers": 1}
"""K-EXAONE with a second dense layer."""
_OLMOE = {**BASE, **EXPERTS, "num_key_value_heads": 4, "intermediate_size": 32}
_SHARED = {**BASE, **EXPERTS, "shared_expert_intermediate_size": 32}
_HY3 = {
    **{**BASE, **HEADS, **EXPERTS, "num_shared_experts": 1, "first_k_dense_replace": 1},
    **{"num_nextn_predict_layers": 0, "initializer_range": 0.02},
}

FAMILIES = (
    Family("Llama", "Llama", {**BASE, "tie_word_embeddings": False}),
    Family("Llama, tied embedding", "Llama", {**BASE, "tie_word_embeddings": True}),
    Family("Mistral", "Mistral", {**BASE, **HEADS, "sliding_window": None}),
    Family("Qwen2", "Qwen2", BASE),
    Family("Qwen3", "Qwen3", {**BASE, **HEADS}),
    Family("Qwen3-MoE", "Qwen3Moe", {**BASE, **HEADS, **EXPERTS, "norm_topk_prob": True}),
    Family("DeepSeek-V2", "DeepseekV2", _V2),
    Family("DeepSeek-V2 without q_lora_rank", "DeepseekV2", {**_V2, "q_lora_rank": None}),
    Family("DeepSeek-V3 without MTP", "DeepseekV3", _V3),
    Family("DeepSeek-V3", "DeepseekV3", {**_V3, "num_nextn_predict_layers": 1}, predicts=True),
    Family("DeepSeek-V4 without MTP", "DeepseekV4", DEEPSEEK_V4),
    Family("DeepSeek-V4 with short entries", "DeepseekV4", SHORT_ENTRIES),
    Family("DeepSeek-V4", "DeepseekV4", {**DEEPSEEK_V4, "num_nextn_predict_layers": 1}, predicts=True),
    Family("Kimi-K2", "DeepseekV3", _V3, model_type="kimi_k2"),
    Family("Moonlight", "DeepseekV3", {**_V3, "q_lora_rank": None}),
    Family("GPT-OSS", "GptOss", {**BASE, **HEADS, **_LOCAL_EXPERTS, "sliding_window": 16}),
    Family("GLM-4.5 without MTP", "Glm4Moe", _GLM),
    Family("GLM-4.5", "Glm4Moe", {**_GLM, "num_nextn_predict_layers": 1}, predicts=True),
    Family("GLM-4.7-Flash", "Glm4MoeLite", {**_FLASH, "num_nextn_predict_layers": 1}, predicts=True),
    Family("GLM-5 without MTP", "GlmMoeDsa", _GLM5),
    Family("GLM-5", "GlmMoeDsa", {**_GLM5, "num_nextn_predict_layers": 1}, predicts=True),
    Family("GLM-5.2", "GlmMoeDsa", GLM5_SHARED, predicts=True),
    Family("ERNIE-4.5 MoE", "Ernie4_5_Moe", {**BASE, **_ERNIE}),
    Family("MiniMax-M2", "MiniMaxM2", MINIMAX_M2),
    Family("Falcon-H1", "FalconH1", FALCON_H1),
    Family("Falcon-H1 without a norm of the mixer", "FalconH1", {**FALCON_H1, "mamba_rms_norm": False}),
    Family("Nemotron", "Nemotron", {**BASE, **HEADS}),
    Family("Llama-Nemotron", "LlamaNemotron", LLAMA_NEMOTRON, published_as="DeciLMForCausalLM"),
    Family("EXAONE 4.0", "Exaone4", _EXAONE),
    Family("K-EXAONE without MTP", "ExaoneMoe", _K_EXAONE, published_as=_AS_PUBLISHED),
    Family(
        "K-EXAONE",
        "ExaoneMoe",
        {**_K_EXAONE, "num_nextn_predict_layers": 1},
        predicts=True,
        published_as=_AS_PUBLISHED,
    ),
    Family("K-EXAONE 2.0", "ExaoneMoe", K_EXAONE_2, predicts=True, published_as=_AS_PUBLISHED),
    Family("Hy3", "HYV3", {**_HY3, "num_nextn_predict_layers": 1}, predicts=True),
    Family(
        "MiMo",
        "Qwen2",
        {**BASE, "num_nextn_predict_layers": 1},
        predicts=True,
        published_as="MiMoForCausalLM",
        model_type="mimo",
    ),
    Family("OLMoE", "Olmoe", _OLMOE),
    Family("Gemma", "Gemma", {**BASE, **HEADS}),
    Family("Gemma 2", "Gemma2", GEMMA),
    Family("Gemma 3", "Gemma3", {**GEMMA, "num_hidden_layers": 6}, "Gemma3TextConfig"),
    Family("Nemotron-H", "NemotronH", NEMOTRON_H),
    Family("Nemotron 3 Nano", "NemotronH", NEMOTRON_3),
    Family("Nemotron 3 Super without MTP", "NemotronH", {**NEMOTRON_3, "moe_latent_size": 32}),
    Family("Nemotron 3 Super", "NemotronH", NEMOTRON_3_SUPER, predicts=True),
    Family("Nemotron 3.5 Lightning", "NemotronH", NEMOTRON_3_5_LIGHTNING, predicts=True),
    Family("Qwen3-Next without MTP", "Qwen3Next", QWEN3_NEXT),
    Family("Qwen3-Next", "Qwen3Next", QWEN3_NEXT, predicts=True),
    Family("Qwen3.5, text", "Qwen3_5", QWEN3_5, "Qwen3_5TextConfig"),
    Family("Qwen3.5 with experts, text", "Qwen3_5Moe", QWEN3_5_MOE, "Qwen3_5MoeTextConfig"),
    Family("Step-3.5 without MTP", "Step3p5", STEP),
    Family("Step-3.5", "Step3p5", STEP_PREDICTING, predicts=True),
    Family("Mixtral", "Mixtral", {**BASE, **_LOCAL_EXPERTS, "sliding_window": None}),
    Family("Qwen2-MoE", "Qwen2Moe", _SHARED),
)


def by_name(name: str) -> Family:
    """Return the family of a name in the table."""
    return next(family for family in FAMILIES if family.name == name)


def write_model(family: Family, folder: Path, dtype: str = "float32") -> Any:
    """Write a small random model and a tokenizer into `folder`; return the model of transformers."""
    import torch
    import transformers

    # The generator itself: on the stand-in for CUDA torch.manual_seed is another function.
    torch.manual_seed(0)
    classes: Any = transformers
    if family.prefix == "LlamaNemotron":
        from testkit.weights import llama_nemotron_model as classes
    if family.prefix == "Step3p5":
        from testkit.weights import step_model as classes

        classes.install()
    config = getattr(classes, family.config)(**family.sizes)
    model = getattr(classes, family.model)._from_config(config, attn_implementation="eager")
    disturb_vectors(model)
    if family.prefix == "DeepseekV4":
        deepseek_v4.fill(model)
    model = model.to(getattr(torch, dtype)).eval()
    model.save_pretrained(folder)
    if family.prefix == "DeepseekV4":
        deepseek_v4.publish(folder / "model.safetensors")
    if family.prefix == "Step3p5":
        classes.publish_config(folder, family.sizes)
    if family.published_as or family.model_type:
        settings = json.loads((folder / "config.json").read_text())
        settings["architectures"] = [family.architecture]
        settings["model_type"] = family.model_type or settings["model_type"]
        (folder / "config.json").write_text(json.dumps(settings))
    if family.predicts:
        write = {
            **{"ExaoneMoe": _write_exaone_prediction, "NemotronH": _write_hybrid_prediction},
            **{"Step3p5": _write_step_prediction, "Qwen2": _write_mimo_prediction},
        }
        write.get(family.prefix, _write_prediction)(family, folder)
    write_tokenizer(folder)
    return model


def _write_prediction(family: Family, folder: Path) -> None:
    """Add a random layer of multi-token prediction to the file, as the family's published weights have it."""
    import torch
    from safetensors.torch import load_file, save_file

    if family.prefix == "Qwen3Next":
        write_prediction(folder / "model.safetensors")
        return
    if family.prefix == "DeepseekV4":
        deepseek_v4.write_prediction(folder / "model.safetensors")
        return
    layers, width = family.sizes["num_hidden_layers"], family.sizes["hidden_size"]
    larger = replace(family, sizes={**family.sizes, "num_hidden_layers": layers + 1}, predicts=False)
    file, prefix = folder / "model.safetensors", f"model.layers.{layers}."
    tensors = load_file(file)
    dtype = tensors["lm_head.weight"].dtype
    with tempfile.TemporaryDirectory() as other:
        write_model(larger, Path(other), str(dtype).removeprefix("torch."))
        more = load_file(Path(other) / "model.safetensors")
    tensors |= {name: tensor for name, tensor in more.items() if name.startswith(prefix)}
    generator = torch.Generator().manual_seed(2)
    # Those of Hy3 have no copies of embedding and output layer.
    shares = family.prefix != "HYV3"
    for name in ("enorm", "hnorm", "shared_head.norm" if shares else "final_layernorm"):
        tensors[f"{prefix}{name}.weight"] = (torch.rand(width, generator=generator) + 0.5).to(dtype)
    joined = 0.02 * torch.randn(width, 2 * width, generator=generator)
    tensors[f"{prefix}eh_proj.weight"] = joined.to(dtype)
    if shares:
        tensors[f"{prefix}embed_tokens.weight"] = tensors["model.embed_tokens.weight"].clone()
        tensors[f"{prefix}shared_head.head.weight"] = tensors["lm_head.weight"].clone()
    save_file(tensors, file, metadata={"format": "pt"})


def _write_exaone_prediction(_: Family, folder: Path) -> None:
    write_exaone_prediction(folder / "model.safetensors")


def write_exaone_prediction(file: Path, text: str = "model.") -> None:
    """Add a random layer of multi-token prediction to the file, by the names of LGAI-EXAONE's K-EXAONE.

    `text`: what names of the language model's tensors begin with.
    """
    import torch
    from safetensors.torch import load_file, save_file

    before, final = f"{text}layers.0.", f"{text}norm.weight"
    tensors, generator = load_file(file), torch.Generator().manual_seed(2)
    # Its layer is a dense one, as the first of the model is.
    shapes = {
        f"mtp.layers.0.{name[len(before) :]}": tensors[name] for name in tensors if name.startswith(before)
    }
    norms = ("mtp.norm", "mtp.pre_fc_norm_hidden", "mtp.pre_fc_norm_embedding")
    shapes |= {f"{name}.weight": tensors[final] for name in norms}
    width = len(tensors[final])
    shapes["mtp.fc.weight"] = tensors[final].new_empty(width, 2 * width)
    for name, like in shapes.items():
        drawn = torch.randn(like.shape, generator=generator)
        tensors[name] = (0.02 * drawn if like.dim() > 1 else 1 + 0.05 * drawn).to(like.dtype)
    save_file(tensors, file, metadata={"format": "pt"})


def _write_hybrid_prediction(family: Family, folder: Path) -> None:
    """Add a random block of multi-token prediction to the file, by the names of NVIDIA's Nemotron 3 Super.

    Its parts are those of the model's attention and experts.
    """
    import torch
    from safetensors.torch import load_file, save_file

    file, layers = folder / "model.safetensors", family.sizes["hybrid_override_pattern"]
    tensors, generator = load_file(file), torch.Generator().manual_seed(2)
    shapes: dict[str, torch.Tensor] = {}
    for number, kind in enumerate(family.sizes["mtp_hybrid_override_pattern"]):
        before = f".layers.{layers.index(kind)}."
        parts = {name: name.split(before)[1] for name in tensors if before in name}
        shapes |= {f"mtp.layers.{number}.{part}": tensors[name] for name, part in parts.items()}
    norm = tensors["lm_head.weight"][0]
    shapes |= {f"mtp.layers.0.{name}.weight": norm for name in ("enorm", "hnorm")}
    shapes[f"mtp.layers.{number}.final_layernorm.weight"] = norm
    shapes["mtp.layers.0.eh_proj.weight"] = norm.new_empty(len(norm), 2 * len(norm))
    for name, like in shapes.items():
        drawn = torch.randn(like.shape, generator=generator)
        tensors[name] = (0.02 * drawn if like.dim() > 1 else 1 + 0.05 * drawn).to(like.dtype)
    save_file(tensors, file, metadata={"format": "pt"})


def _write_mimo_prediction(_: Family, folder: Path) -> None:
    """Add a random layer of multi-token prediction to the file, by the names of Xiaomi's MiMo."""
    import torch
    from safetensors.torch import load_file, save_file

    file = folder / "model.safetensors"
    tensors, generator = load_file(file), torch.Generator().manual_seed(2)
    before, after = "model.layers.0.", "model.mtp_layers.0."
    shapes = {f"{after}{name[len(before) :]}": tensors[name] for name in tensors if name.startswith(before)}
    norm = tensors["model.norm.weight"]
    shapes |= {f"{after}{name}_layernorm.weight": norm for name in ("token", "hidden", "final")}
    shapes[f"{after}input_proj.weight"] = norm.new_empty(len(norm), 2 * len(norm))
    for name, like in shapes.items():
        drawn = torch.randn(like.shape, generator=generator)
        tensors[name] = (0.02 * drawn if like.dim() > 1 else 1 + 0.05 * drawn).to(like.dtype)
    save_file(tensors, file, metadata={"format": "pt"})


def _write_step_prediction(family: Family, folder: Path) -> None:
    from testkit.weights import step_model

    step_model.write_prediction(folder / "model.safetensors", family.sizes["num_hidden_layers"])


def write_tokenizer(folder: Path) -> None:
    """Write a tokenizer of VOCABULARY words into `folder`."""
    write_words(folder, VOCABULARY)


def write_words(folder: Path, count: int) -> None:
    """Write a tokenizer of `count` words into `folder`."""
    import transformers
    from tokenizers import Tokenizer, models

    words = {f"t{number}": number for number in range(count)}
    transformers.PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(models.WordLevel(words, unk_token="t0")), unk_token="t0", eos_token="t1"
    ).save_pretrained(folder)
