"""Parts of a model that Megatron-Bridge does not build: an export has them as the base's folder does."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, Final

from megatron_trainer.weights.conversion_error import ConversionError
from megatron_trainer.weights.huggingface_folder import HuggingFaceFolder

_PARTS: Final[Mapping[str, tuple[str, ...]]] = {
    "Qwen3OmniMoeForConditionalGeneration": ("talker.", "code2wav."),
}
"""Architecture -> how the names of such tensors begin."""


def without(folder: HuggingFaceFolder) -> HuggingFaceFolder:
    """Return the folder with the tensors alone that a model in Megatron has."""
    parts = _PARTS.get(folder.architecture, ())
    kept = {name: header for name, header in folder.headers.items() if not name.startswith(parts)}
    return replace(folder, headers=kept) if parts else folder


def tensors(folder: HuggingFaceFolder) -> Iterator[tuple[str, Any]]:
    """Yield the others."""
    if parts := _PARTS.get(folder.architecture, ()):
        kept = {name: header for name, header in folder.headers.items() if name.startswith(parts)}
        yield from replace(folder, headers=kept).tensors()


def require(folder: HuggingFaceFolder) -> None:
    """Raise ConversionError if a folder that an export begins with lacks the weights of its other parts."""
    parts = _PARTS.get(folder.architecture, ())
    if parts and not folder.has_weights and folder.config.get("enable_audio_output", True):
        named = " and ".join(part.removesuffix(".") for part in parts)
        raise ConversionError(
            f"{named} of {folder.architecture} are not in checkpoints of Megatron; give the folder with its "
            "weights: --base FOLDER"
        )
