"""Parts of a model that Megatron-Bridge does not build: an export has them as the base's folder does."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, Final

from megatron_trainer.weights.conversion_error import ConversionError
from megatron_trainer.weights.huggingface_folder import HuggingFaceFolder

_RADIO: Final = ("vision_model.radio_model.input_conditioner.", "vision_model.radio_model.summary_idxs")
_PARTS: Final[Mapping[str, tuple[str, ...]]] = {
    "Qwen3OmniMoeForConditionalGeneration": ("talker.", "code2wav."),
    "NemotronH_Nano_VL_V2": _RADIO,
    "NemotronH_Nano_Omni_Reasoning_V3": (
        *_RADIO,
        "vision_model.radio_model.model.patch_generator.video_embedder.",
        "sound_encoder.encoder.feature_extractor.",
    ),
}
"""Architecture -> how the names of such tensors begin."""
_STEP: Final = "Step3p7ForConditionalGeneration"
"""Its layers of multi-token prediction are none of Bridge's model; config.json has their number."""


def _parts(folder: HuggingFaceFolder) -> tuple[str, ...]:
    """How the names of such tensors of a folder begin."""
    if folder.architecture == _STEP:
        text: Mapping[str, Any] = folder.config.get("text_config") or {}
        first = text.get("num_hidden_layers", 0)
        predicted = range(first, first + (text.get("num_nextn_predict_layers") or 0))
        return tuple(f"model.layers.{number}." for number in predicted)
    return _PARTS.get(folder.architecture, ())


def without(folder: HuggingFaceFolder) -> HuggingFaceFolder:
    """Return the folder with the tensors alone that a model in Megatron has."""
    parts = _parts(folder)
    kept = {name: header for name, header in folder.headers.items() if not name.startswith(parts)}
    return replace(folder, headers=kept) if parts else folder


def tensors(folder: HuggingFaceFolder) -> Iterator[tuple[str, Any]]:
    """Yield the others."""
    if parts := _parts(folder):
        kept = {name: header for name, header in folder.headers.items() if name.startswith(parts)}
        yield from replace(folder, headers=kept).tensors()


def require(folder: HuggingFaceFolder) -> None:
    """Raise ConversionError if a folder that an export begins with lacks the weights of its other parts."""
    parts = _parts(folder)
    if parts and not folder.has_weights and folder.config.get("enable_audio_output", True):
        named = " and ".join(part.removesuffix(".") for part in parts)
        raise ConversionError(
            f"{named} of {folder.architecture} are not in checkpoints of Megatron; give the folder with its "
            "weights: --base FOLDER"
        )
