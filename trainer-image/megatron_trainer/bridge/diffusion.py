"""Diffusion models of Megatron-Bridge, Wan and FLUX: their data, their training steps, their FLOPs."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

from megatron_contract.exit_codes import ExitCode

from megatron_trainer.bridge import diffusion_layers
from megatron_trainer.bridge.rank_noise import RankNoise
from megatron_trainer.worker.failures import RankError

_FLUX_DEV: Final = {
    **{"in_channels": 64, "patch_size": 1, "num_layers": 19, "num_single_layers": 38},
    **{"num_attention_heads": 24, "attention_head_dim": 128, "joint_attention_dim": 4096},
    **{"pooled_projection_dim": 768, "guidance_embeds": True, "axes_dims_rope": [16, 56, 56]},
}
"""Of transformer/config.json of FLUX.1-dev, which Bridge's function would read from the hub."""


def install(platform: str) -> None:
    """Have Bridge make these models without a hub, and on a CPU without Transformer Engine."""
    from megatron.bridge.diffusion.conversion.flux.flux_hf_pretrained import PreTrainedFlux

    PreTrainedFlux._load_config = lambda _: SimpleNamespace(**_FLUX_DEV)
    if platform == "cpu":
        diffusion_layers.install()


def trains(function: str) -> bool:
    """Whether a recipe function trains one of these models."""
    return function.startswith(("flux_", "wan_"))


def is_diffusion(config: Any) -> bool:
    """Whether a run trains a diffusion model."""
    return hasattr(config.dataset, "latents_shape") or hasattr(config.dataset, "packing_buffer_size")


def set_dataset(config: Any, *, fine_tunes: bool) -> None:
    """Give a run latents to read instead of the function's data, in the shapes that the function has."""
    from megatron_trainer.bridge.latents import FluxLatents, WanLatents

    own = config.dataset
    common = {"num_workers": own.num_workers, "seed": config.rng.seed}
    if hasattr(own, "F_latents"):
        config.dataset = WanLatents(
            **common,
            latents_shape=[config.model.in_channels, own.F_latents, own.H_latents, own.W_latents],
            patch=[own.patch_temporal, own.patch_spatial, own.patch_spatial],
            text_length=own.context_seq_len,
            text_channels=own.context_embeddings_dim,
            fine_tunes=fine_tunes,
        )
    else:
        sizes = [own.image_H // own.vae_scale_factor, own.image_W // own.vae_scale_factor]
        config.dataset = FluxLatents(
            **common,
            latents_shape=[own.latent_channels, *sizes],
            text_length=own.prompt_seq_len,
            text_channels=own.context_dim,
            pooled_channels=own.pooled_prompt_dim,
        )


def require_samples(config: Any) -> None:
    """Check the first sample of each folder that a run reads. Raises RankError with BAD_DATA."""
    from megatron_trainer.bridge import latent_shards
    from megatron_trainer.bridge.latents import VALIDATION, sample
    from megatron_trainer.bridge.sample_files import SampleLineError

    dataset = config.dataset
    if dataset.dataset_root is None:
        return
    root = Path(dataset.dataset_root)
    for folder in (root, *([root / VALIDATION] if dataset.do_validation else [])):
        try:
            place = latent_shards.first(folder)
            if place is None:
                fix = "; set training.evalIters: 0 to leave evaluation out" if folder != root else ""
                message = f"data.datasetRoot: {folder} has no tar files with samples of latents{fix}"
                raise RankError(ExitCode.BAD_DATA, message)
            sample(place, dataset)
        except SampleLineError as error:
            raise RankError(ExitCode.BAD_DATA, str(error)) from error


def _is_wan(config: Any) -> bool:
    return hasattr(config.dataset, "patch")


def forward_step(config: Any, platform: str) -> Any:
    """Return the function that runs a micro batch of a model and makes its loss."""
    if _is_wan(config):
        from megatron.bridge.diffusion.models.wan.wan_step import WanForwardStep

        mode = "finetune" if config.dataset.fine_tunes else "pretrain"
        return RankNoise(WanForwardStep(mode=mode), config.rng.seed)
    from megatron_trainer.bridge.flux_step import CountingFluxStep

    return RankNoise(CountingFluxStep("cpu" if platform == "cpu" else "cuda"), config.rng.seed)


def steps() -> list[type]:
    """Return the classes of the training steps."""
    from megatron.bridge.diffusion.models.flux.flux_step import FluxForwardStep
    from megatron.bridge.diffusion.models.wan.wan_step import WanForwardStep

    return [FluxForwardStep, WanForwardStep]


def work(config: Any, state: Any, batch: int) -> tuple[int, float]:
    """Return the tokens of the last step, and the FLOPs of the model for them.

    `state` is Bridge's, in which training steps count the tokens of this rank; `batch` are the samples of
    all. Bridge has no count of FLUX: here 2 FLOPs for each weight of a token's layers and
    4 * tokens^2 * hidden_size for attention, three times for forward and backward.
    """
    from megatron.bridge.training.utils import flop_utils
    from megatron.core.num_microbatches_calculator import get_num_microbatches

    ranks = batch // (config.train.micro_batch_size * get_num_microbatches())
    tokens, squares = (int(sums) * ranks for sums in (state._flops_seqlen_sum, state._flops_seqlen_sq_sum))
    if _is_wan(config):
        flops = flop_utils.num_floating_point_operations(
            config,
            batch,
            tokens,
            squares,
            cross_seqlen_sum=int(state._flops_cross_seqlen_sum) * ranks,
            cross_seqlen_product_sum=int(state._flops_cross_seqlen_product_sum) * ranks,
        )
        return tokens, float(flops)
    model = config.model
    weights = 4 * model.hidden_size**2 + 2 * model.hidden_size * model.ffn_hidden_size
    layers = model.num_joint_layers + model.num_single_layers
    return tokens, 3.0 * layers * (2 * weights * tokens + 4 * squares * model.hidden_size)
