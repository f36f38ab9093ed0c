"""Values of a random model that make a mix-up of its tensors visible."""

from typing import Any


def disturb_vectors(model: Any) -> None:
    """Add noise to norms, biases and sinks, which are trivial in a new model: a mix-up would go unseen."""
    import torch

    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for value in model.state_dict().values():
            if value.dim() == 1 and value.is_floating_point():
                value.add_(0.05 * torch.randn(value.shape, generator=generator))
