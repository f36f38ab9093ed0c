"""Builds the diffusion models of the installed megatron-bridge without memory, and writes their sizes.

A process of its own, because the stand-ins that it needs (`stand_ins`) stay in it:

    python tests/bridge/diffusion_models.py sizes.json

JSON: `{"parameters": {NAME: NUMBER}, "flops": {NAME: NUMBER}}`: FLOPs are those of one sample of Wan, forward
and backward, as its provider counts them.
"""

import json
import logging
import os
import sys
import warnings
from pathlib import Path
from typing import Any

import stand_ins
import torch

LATENTS, TEXT = 37440, 512
WAN = {
    "wan2.1-1.3b": {},
    "wan2.1-14b": {
        "num_layers": 40,
        "hidden_size": 5120,
        "ffn_hidden_size": 13824,
        "num_attention_heads": 40,
        "crossattn_emb_size": 5120,
    },
}
"""Sizes that the recipe functions set in `WanModelProvider`."""


class Norm(torch.nn.Module):
    """Stands for Transformer Engine's RMS norm."""

    def __init__(self, hidden_size: int, **_: object) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.empty(hidden_size))


class Attention(torch.nn.Module):
    """Stands for Transformer Engine's attention, which has no parameters."""

    def __init__(self, *_: object, **__: object) -> None:
        super().__init__()


class TimeEmbedding(torch.nn.Module):
    """Stands for `TimestepEmbedding` of diffusers: two linear layers with biases."""

    def __init__(self, in_channels: int, time_embed_dim: int, **_: object) -> None:
        super().__init__()
        self.linear_1 = torch.nn.Linear(in_channels, time_embed_dim)
        self.linear_2 = torch.nn.Linear(time_embed_dim, time_embed_dim)


def start_one_rank() -> None:
    """Make the process groups of one rank."""
    from megatron.core import parallel_state

    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}
    store = torch.distributed.HashStore()
    torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    parallel_state.initialize_model_parallel()


def use_megatrons_layers(module: Any) -> None:
    """Replace Transformer Engine's layers in a module of layer specs by those that need no GPU."""
    from megatron.core.tensor_parallel import ColumnParallelLinear, RowParallelLinear

    module.TEColumnParallelLinear, module.TERowParallelLinear = ColumnParallelLinear, RowParallelLinear
    module.TENorm, module.TEDotProductAttention = Norm, Attention


def counted(model: torch.nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


def main() -> None:
    """Build all models and write the file that is named on the command line."""
    warnings.filterwarnings("ignore")
    logging.disable(logging.CRITICAL)
    stand_ins.install()
    from megatron.bridge.diffusion.models.flux import flux_layer_spec
    from megatron.bridge.diffusion.models.flux.flux_provider import FluxProvider
    from megatron.bridge.diffusion.models.wan import wan_layer_spec, wan_model
    from megatron.bridge.diffusion.models.wan.wan_provider import WanModelProvider

    start_one_rank()
    for module in (flux_layer_spec, wan_layer_spec):
        use_megatrons_layers(module)
    wan_model.ParallelTimestepEmbedding = TimeEmbedding
    wan_model.Wan3DRopeEmbeddings = Attention  # rotations have no parameters, and are put on a GPU
    setting = {"use_cpu_initialization": True, "perform_initialization": False}
    done: dict[str, dict[str, int]] = {"parameters": {}, "flops": {}}
    with torch.device("meta"):
        flux = FluxProvider(guidance_embed=True, **setting)
        flux.finalize()
        done["parameters"]["flux1-12b"] = counted(flux.provide())
        for name, sizes in WAN.items():
            fusions = {"gradient_accumulation_fusion": False, "apply_rope_fusion": False}
            wan = WanModelProvider(**fusions, **sizes, **setting)
            wan.finalize()
            done["parameters"][name] = counted(wan.provide())
            done["flops"][name] = wan._get_num_floating_point_operations_with_runtime_stats(
                batch_size=1,
                seqlen_sum=LATENTS,
                seqlen_squared_sum=LATENTS**2,
                cross_seqlen_sum=TEXT,
                cross_seqlen_product_sum=LATENTS * TEXT,
            )
    Path(sys.argv[1]).write_text(json.dumps(done))
    os._exit(0)  # hollow modules fail at interpreter shutdown


if __name__ == "__main__":
    main()
