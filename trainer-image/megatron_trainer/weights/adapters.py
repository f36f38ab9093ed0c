"""LoRA adapters that Megatron-Bridge trained, merged into the weights that they belong to."""

import re
from pathlib import Path
from typing import Any, Final

from megatron_trainer.bridge import saved_lora
from megatron_trainer.bridge.saved_lora import AdaptersError
from megatron_trainer.bridge.weights_record import WeightsRecord
from megatron_trainer.checkpoints import selection
from megatron_trainer.weights import checkpoint
from megatron_trainer.weights.conversion_error import ConversionError
from megatron_trainer.weights.huggingface_folder import HuggingFaceFolder
from megatron_trainer.weights.tensors import TensorSource

_ITERATION: Final = re.compile(r"iter_\d{7,}")


def present(directory: Path) -> bool:
    """Whether a checkpoint holds adapters in place of the model's weights."""
    return any(checkpoint.ADAPTER in name for name in checkpoint.names(directory))


def frozen_weights(directory: Path, folder: HuggingFaceFolder) -> Path | None:
    """The checkpoint that the adapters of another one were trained on; None for the weights in `folder`.

    The record of the run with the adapters names them, else its configuration. A run may have trained on
    where this is a run's folder, which is not read then. Raises ConversionError if the recorded weights have
    changed, or are gone and were no import of such a `folder`, and if `folder` has none where it must.
    """
    try:
        below = saved_lora.weights_below(directory)
    except AdaptersError as error:
        raise ConversionError(str(error)) from error
    recorded = WeightsRecord.read(directory.parent)
    if recorded is not None:
        state = recorded.why_unusable()
        if state is None:
            return checkpoint.find(recorded.weights, "--from")
        if recorded.weights.is_dir() or _ITERATION.fullmatch(recorded.weights.name):
            raise ConversionError(
                f"{directory} holds adapters of the weights in {recorded.weights}, which {state}; restore "
                "them, with their volume mounted at the same place"
            )
    elif below is not None and not _is_of_a_run(below):
        return checkpoint.find(below, "--from")
    if not folder.has_weights:
        raise ConversionError(
            f"{directory} holds adapters; give the folder with the weights that they were trained on: "
            "--base FOLDER"
        )
    return None


def _is_of_a_run(folder: Path) -> bool:
    """Whether the tracker in a folder names an iteration, not the release of an import."""
    return selection.read_tracker(folder) not in (None, selection.RELEASE)


def load(model: Any, directory: Path) -> Any:
    """Put the adapters of a checkpoint beside the weights of `model`; returns Bridge's LoRA.

    Raises ConversionError unless they are LoRA and fit the model.
    """
    try:
        lora = saved_lora.read(directory)
    except AdaptersError as error:
        raise ConversionError(str(error)) from error
    lora([model], training=False)
    checkpoint.load(directory, model, keep=checkpoint.ADAPTER)
    return lora


def merged(model: Any, weights: TensorSource, directory: Path) -> tuple[TensorSource, dict[str, Any]]:
    """Return `weights` with the adapters of a checkpoint added, and what is merged, for the audit.

    `model` gives the adapters their places; of its memory only theirs is used. The products are computed in
    float32 and rounded once. Raises ConversionError unless they are LoRA.
    """
    from megatron.bridge.peft.lora_layers import LoRALinear

    lora = load(model, directory)
    adapted = {}
    for name, module in model.named_modules():
        if isinstance(module, LoRALinear):
            module.adapter.float()
            adapted[f"{name}.weight"] = module
        elif hasattr(module, "adapter"):
            raise ConversionError(f"{directory}: the adapter of {name} is a {type(module).__name__}")

    def source(name: str) -> Any:
        weight = weights(name)
        if name not in adapted:
            return weight
        module = adapted[name]
        base = module.to_wrap.weight
        unused, base.data = base.data, weight.float()
        try:
            return module.weight.detach().to(weight.dtype)
        finally:
            base.data = unused

    return source, {"merged": {"rank": lora.dim, "alpha": lora.alpha, "tensors": sorted(adapted)}}
