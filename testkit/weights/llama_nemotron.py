"""Sizes of a small Llama-Nemotron, by the names of the published config.json."""

from typing import Any, Final


def _block(attention: bool, ffn: float | None) -> dict[str, Any]:
    """A layer's settings. `ffn`: the multiplier of its width; None without a feed-forward part."""
    return {
        "attention": {
            **{"n_heads_in_group": 2 if attention else None, "no_op": not attention},
            **{"replace_with_linear": False, "num_sink_tokens": None, "window_length": None},
        },
        "ffn": {"ffn_mult": ffn, "no_op": ffn is None, "replace_with_linear": False},
    }


LLAMA_NEMOTRON: Final[dict[str, Any]] = {
    **{"hidden_size": 64, "num_hidden_layers": 6, "num_attention_heads": 4, "vocab_size": 256},
    **{"max_position_embeddings": 16384, "bos_token_id": 0, "eos_token_id": 1, "pad_token_id": None},
    "rope_theta": 500000.0,
    "rope_scaling": {
        **{"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0},
        "original_max_position_embeddings": 8192,
    },
    "block_configs": [
        *(_block(True, 2.625), _block(False, 12.0), _block(True, None)),
        *(_block(False, None), _block(True, 7.0), _block(True, 2.625)),
    ],
}
"""Layers with all parts are 256 or 512 wide; others have no attention, no feed-forward part, or neither."""
