"""What a function leaves open or has itself, compared with the folder of the model and with its weights.

Megatron-Bridge only logs what a checkpoint lacks, so layers that are not in it would stay random.
"""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from megatron_contract.exit_codes import ExitCode

from megatron_trainer.checkpoints import selection
from megatron_trainer.read_errors import is_temporary
from megatron_trainer.worker.failures import RankError

_SIZES: Final[tuple[str, ...]] = (
    *("hybrid_layer_pattern", "hidden_size", "ffn_hidden_size", "num_attention_heads", "num_query_groups"),
    *("kv_channels", "mamba_num_heads", "mamba_head_dim", "mamba_state_dim", "mamba_num_groups"),
    *("mtp_hybrid_override_pattern", "share_embeddings_and_output_weights", "vocab_size"),
)
"""Fields of Bridge's configuration on which the shapes of a hybrid model's weights depend."""
_EXPERTS: Final = ("num_moe_experts", "moe_ffn_hidden_size", "moe_shared_expert_intermediate_size")
"""The same of its experts; the configuration of a folder has some even where the model has none."""
_OLMOE: Final[tuple[str, ...]] = (
    *("num_layers", "hidden_size", "num_attention_heads", "num_query_groups", "kv_channels", "vocab_size"),
    *("num_moe_experts", "moe_ffn_hidden_size", "moe_router_topk", "rotary_base", "layernorm_epsilon"),
)
"""The same of OLMoE, and what changes its logits."""
_GEMMA3: Final[tuple[str, ...]] = (
    *("num_layers", "hidden_size", "ffn_hidden_size", "num_attention_heads", "num_query_groups"),
    *("kv_channels", "window_size", "rotary_base", "rope_scaling_factor", "softmax_scale"),
)
"""The same of Gemma 3, whose tokenizer has more tokens than the model."""
_LANGUAGE: Final = "language_model."
"""What names of tensors begin with in a model that also reads images."""
_OF_CLASS: Final[Mapping[str, tuple[str, ...]]] = {
    "Gemma3ModelProvider": _GEMMA3,
    "OlMoEModelProvider": _OLMOE,
}


def follow(model: Any, folder: Path, *, rows_differ: bool = False) -> None:
    """Give a `model` of such a function the vocabulary of config.json in `folder`, if it is left open.

    The tokenizer's may be smaller, and Megatron drops rows of a checkpoint that the model lacks. Raises
    RankError with BAD_DATA if the sizes differ; `rows_differ`: those of the vocabulary may.
    """
    sizes = _SIZES if hasattr(model, "hybrid_layer_pattern") else _OF_CLASS.get(type(model).__name__, ())
    if not sizes:
        return
    of_folder = _provider(folder)
    model.vocab_size = model.vocab_size or of_folder.vocab_size
    if sizes is _SIZES and model.num_moe_experts:
        sizes += _EXPERTS
    differing = [
        f"{name} {getattr(of_folder, name, None)!r} instead of {getattr(model, name)!r}"
        for name in sizes
        if not (rows_differ and name == "vocab_size")
        and not _equal(getattr(model, name), getattr(of_folder, name, None))
    ]
    if differing:
        raise RankError(
            ExitCode.BAD_DATA,
            f"{folder}/config.json is of another model than the recipe's: {', '.join(differing)}; name the "
            "recipe of this model, or the folder of the recipe's model",
        )


def _equal(own: Any, other: Any) -> bool:
    """Whether two settings are the same, with a list for a tuple and floats of any precision."""
    if isinstance(own, float) and isinstance(other, int | float):
        return math.isclose(own, other, rel_tol=1e-6)
    if isinstance(own, list | tuple) and isinstance(other, list | tuple):
        return len(own) == len(other) and all(map(_equal, own, other))
    return bool(own == other)


def vocabulary(folder: Path) -> int:
    """Return the rows of the vocabulary that config.json in `folder` names."""
    return int(_provider(folder).vocab_size)


def _provider(folder: Path) -> Any:
    """Return Bridge's configuration of the model in `folder`."""
    import transformers
    from megatron.bridge import AutoBridge

    config = transformers.AutoConfig.from_pretrained(str(folder))
    return AutoBridge.from_hf_config(config).to_megatron_provider(load_weights=False)


def predict(model: Any, weights: Path) -> None:
    """Give a model of gated delta nets multi-token prediction where the imported `weights` have its layer.

    config.json of Qwen3-Next does not state it, and without it the run would drop its weights. Functions of
    Qwen3.5-VL always have it, and where the weights do not, it would stay random. Raises RankError with
    BAD_DATA for weights that are missing or damaged, and OSError for a volume that cannot be read for a
    while.
    """
    if getattr(model, "experimental_attention_variant", None) != "gated_delta_net":
        return
    predicts = any(name.removeprefix(_LANGUAGE).startswith("mtp.") for name in _tensors(weights))
    model.mtp_num_layers = (model.mtp_num_layers or 1) if predicts else None


def _tensors(weights: Path) -> list[str]:
    """Names of the tensors of the checkpoint that the tracker in `weights` names, or of `weights` itself."""
    from torch.distributed.checkpoint import FileSystemReader

    try:
        text = selection.read_tracker(weights) or "."
        directory = selection.directory(weights, int(text)) if text.isdecimal() else weights / text
        return list(FileSystemReader(directory).read_metadata().state_dict_metadata)
    except Exception as error:  # a pickle raises anything
        if is_temporary(error):
            raise
        text = " ".join(str(error).split())[:300]
        message = (
            f"checkpoint.pretrained_checkpoint: {weights} cannot be read: {text}; import the weights again"
        )
        raise RankError(ExitCode.BAD_DATA, message) from error
