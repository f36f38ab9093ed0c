"""Projections of values that Megatron keeps beside those of keys, without use: Gemma 4 has one of both."""

from typing import Any

from megatron_trainer.weights.tensors import TensorSource


def follow_keys(model: Any, weights: TensorSource) -> TensorSource:
    """Return `weights` with the values' rows of such layers as the keys' are.

    Weight decay and adapters change the unused rows, which no file of Hugging Face has.
    """
    tied = {
        f"{name}.linear_qkv.weight": module
        for name, module in model.named_modules()
        # Bridge's names of it in models with experts, and in dense ones.
        if getattr(module, "_tied_kv", False) or getattr(module, "attention_k_eq_v", False)
    }

    def source(name: str) -> Any:
        tensor = weights(name)
        if name not in tied:
            return tensor
        # The rows of each group of heads: those of its queries, then keys, then values.
        width, groups = tied[name].hidden_size_per_attention_head, tied[name].config.num_query_groups
        rows = tensor.clone().view(groups, -1, width, tensor.shape[-1])
        rows[:, -1] = rows[:, -2]
        return rows.view_as(tensor)

    return source
