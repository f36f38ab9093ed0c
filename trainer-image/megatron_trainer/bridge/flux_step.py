"""FLUX's training step, which counts its tokens as Wan's does; Megatron-Bridge's own counts none."""

from typing import Any

import torch
from megatron.bridge.diffusion.models.flux.flux_step import FluxForwardStep


class CountingFluxStep(FluxForwardStep):
    """Bridge's step. On a CPU its products are rounded to BF16 too, as Bridge asks of a GPU alone."""

    def __init__(self, device: str) -> None:
        super().__init__()
        self._device = device

    def __call__(self, state: Any, data_iterator: Any, model: Any) -> Any:
        """Return what Bridge's loop takes of a micro batch."""
        self._bridge_state = state
        with torch.autocast(self._device, dtype=torch.bfloat16):
            return super().__call__(state, data_iterator, model)

    def _prepare_batch_for_pipeline(self, batch: dict[str, Any]) -> dict[str, Any]:
        samples, _, height, width = batch["latents"].shape
        tokens = height // 2 * (width // 2) + batch["prompt_embeds"].shape[1]
        self._bridge_state._flops_seqlen_sum += samples * tokens
        self._bridge_state._flops_seqlen_sq_sum += samples * tokens**2
        prepared: dict[str, Any] = super()._prepare_batch_for_pipeline(batch)
        return prepared
