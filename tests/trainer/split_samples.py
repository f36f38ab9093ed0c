"""Runs a small Wan on two ranks, with whole samples and with samples split over them, and compares both.

A process of its own, because Bridge is imported for a CPU there:

    python -m tests.trainer.split_samples PORT

Prints JSON: the largest differences of outputs and of gradients, and the largest output and gradient.
"""

import json
import logging
import os
import sys
import warnings
from typing import Any

SIZES = {
    **{"num_layers": 2, "hidden_size": 96, "ffn_hidden_size": 128, "num_attention_heads": 4},
    **{"crossattn_emb_size": 96, "text_dim": 32, "transformer_impl": "local", "use_cpu_initialization": True},
    **{"gradient_accumulation_fusion": False, "apply_rope_fusion": False, "bias_activation_fusion": False},
    **{"masked_softmax_fusion": False, "bias_dropout_fusion": False},
}


def _model(ranks: int) -> Any:
    import torch
    from megatron.bridge.diffusion.models.wan.wan_provider import WanModelProvider
    from megatron.core import parallel_state, tensor_parallel

    parallel_state.destroy_model_parallel()
    parallel_state.initialize_model_parallel(context_parallel_size=ranks)
    tensor_parallel.model_parallel_cuda_manual_seed(7)
    torch.manual_seed(3)
    provider = WanModelProvider(context_parallel_size=ranks, bf16=True, params_dtype=torch.bfloat16, **SIZES)
    provider.finalize()
    return provider.provide().bfloat16()


def _computed(ranks: int) -> tuple[Any, Any]:
    """Outputs for two samples of other lengths, and the gradients of the sum of their squares."""
    import torch
    from megatron.bridge.diffusion.models.wan.utils import thd_split_inputs_cp
    from megatron.bridge.diffusion.models.wan.wan_step import wan_data_step
    from megatron.core import parallel_state
    from megatron_trainer.bridge.latent_shards import Latents
    from megatron_trainer.bridge.latents import WanLatents

    from testkit.latents import video

    model = _model(ranks)
    dataset = WanLatents(latents_shape=[16, 2, 4, 6], patch=[1, 2, 2], text_length=6, text_channels=32)
    batch = wan_data_step("thd", iter([dataset.collate([Latents(*video(number)) for number in range(2)])]))
    packed = batch["packed_seq_params"]
    of_latents, of_text = (packed[f"{name}_attention"] for name in ("self", "cross"))
    own = {
        "x": (batch["video_latents"].transpose(0, 1).bfloat16(), of_latents.cu_seqlens_q_padded),
        "context": (batch["context_embeddings"].bfloat16(), of_text.cu_seqlens_kv_padded),
        "mask": (batch["loss_mask"], of_latents.cu_seqlens_q_padded),
    }
    group = parallel_state.get_context_parallel_group()
    parts = {
        name: thd_split_inputs_cp(part, ends, group) if ranks > 1 else part
        for name, (part, ends) in own.items()
    }
    mask = parts.pop("mask")
    time = torch.tensor([500.0], dtype=torch.bfloat16)
    output = model(**parts, t=time, grid_sizes=batch["grid_sizes"], packed_seq_params=packed)
    output = output.float() * mask.unsqueeze(-1)
    output.square().sum().backward()
    gradients = torch.cat([parameter.grad.float().flatten() for parameter in model.parameters()])
    whole = torch.zeros(own["x"][0].shape[0], 1, output.shape[-1])
    positions = torch.arange(len(whole))
    if ranks > 1:
        torch.distributed.all_reduce(gradients, group=group)
        positions = thd_split_inputs_cp(positions[:, None], own["x"][1], group)[:, 0]
    whole[positions] = output.detach()
    if ranks > 1:
        torch.distributed.all_reduce(whole, group=group)
    return whole[own["mask"][0].bool().squeeze(1)], gradients


def _rank(rank: int, port: str) -> None:
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "RANK": str(rank), "WORLD_SIZE": "2"}
    import torch

    torch.distributed.init_process_group("gloo", rank=rank, world_size=2)
    (alone, of_alone), (split, of_split) = _computed(1), _computed(2)
    if rank == 0:
        found = {
            "outputs": float((alone - split).abs().max()),
            "gradients": float((of_alone - of_split).abs().max()),
            "largest output": float(alone.abs().max()),
            "largest gradient": float(of_alone.abs().max()),
        }
        print(json.dumps(found))
    torch.distributed.barrier()


def main() -> None:
    """Import Bridge, fork the second rank and compare."""
    warnings.filterwarnings("ignore")
    os.environ |= {"MEGATRON_PLATFORM": "cpu", "HF_HUB_OFFLINE": "1"}
    from megatron_trainer.platform import cpu

    cpu.install()
    logging.disable(logging.CRITICAL)
    from megatron_trainer.bridge import configuration, diffusion

    configuration.import_bridge()
    diffusion.install(configuration.PLATFORM)
    child = os.fork()
    _rank(0 if child else 1, sys.argv[1])
    sys.stdout.flush()
    if child:
        os.waitpid(child, 0)
    os._exit(0)


if __name__ == "__main__":
    main()
