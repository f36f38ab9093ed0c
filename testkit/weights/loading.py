"""Models of Megatron filled by Megatron's own reader of checkpoints, to compare conversions with."""

from pathlib import Path
from typing import Any


def load(directory: Path, model: Any, *, keep: str | None = None) -> None:
    """Load a checkpoint's tensors into the model; with `keep` only those whose name contains it.

    Raises ConversionError for tensors that only one of the two has.
    """
    from megatron.core import dist_checkpointing
    from megatron_trainer.weights import checkpoint

    wanted = checkpoint.sharded(directory, model, keep)
    loaded = dist_checkpointing.load({"model": wanted}, str(directory))["model"]
    _, unexpected = model.load_state_dict(loaded, strict=False)
    assert not unexpected, unexpected


def load_adapters(directory: Path, model: Any) -> None:
    """Put the adapters of a checkpoint beside the weights of `model`."""
    from megatron_trainer.weights import adapters, checkpoint

    adapters.place(model, directory)
    load(directory, model, keep=checkpoint.ADAPTER)
