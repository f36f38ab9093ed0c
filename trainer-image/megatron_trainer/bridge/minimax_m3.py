"""Has Megatron-Bridge train MiniMax-M3 on images, each of which attends to itself alone.

Bridge 0.6.2 has patches of all images of a batch attend to one another, as transformers once did.
"""

import contextlib
from collections.abc import Iterator
from typing import Any

import torch


def install() -> None:
    """Call it once in a process, after Bridge is imported."""
    from megatron.bridge.models.minimax_m3.modeling_minimax_m3_vl import MiniMaxM3VisionModel

    together = MiniMaxM3VisionModel.forward

    def each_alone(self: Any, pixel_values: torch.Tensor, image_grid_thw: torch.Tensor) -> torch.Tensor:
        """Return features [1, patches, hidden] of the patches of all images."""
        images = pixel_values.split(image_grid_thw.prod(-1).tolist())
        grids = image_grid_thw.split(1)
        features = [together(self, *image) for image in zip(images, grids, strict=True)]
        return torch.cat(features, dim=1)

    MiniMaxM3VisionModel.forward = each_alone


@contextlib.contextmanager
def whole() -> Iterator[None]:
    """Have functions that are called meanwhile return the whole model, of which they take the text's part."""
    from megatron.bridge.models.minimax_m3.minimax_m3_bridge import MiniMaxM3VLModelProvider

    text_only = MiniMaxM3VLModelProvider.to_text_provider
    MiniMaxM3VLModelProvider.to_text_provider = _itself
    try:
        yield
    finally:
        MiniMaxM3VLModelProvider.to_text_provider = text_only


def _itself(provider: Any) -> Any:
    return provider
