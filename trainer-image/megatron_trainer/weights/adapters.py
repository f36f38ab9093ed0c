"""LoRA adapters that Megatron-Bridge trained, merged into the weights that they belong to."""

import dataclasses
from pathlib import Path
from typing import Any

from megatron_trainer.weights import checkpoint
from megatron_trainer.weights.conversion_error import ConversionError
from megatron_trainer.weights.tensors import TensorSource

_LORA = "megatron.bridge.peft.lora.LoRA"
_OF_IMAGES = "megatron.bridge.peft.lora.VLMLoRA"
"""The same where all else is frozen: it may train parts of a vision-language model as a whole."""
_NOT_OF_THE_WEIGHTS = {"lora_dtype", "params_to_save"}


def present(directory: Path) -> bool:
    """Whether a checkpoint holds adapters in place of the model's weights."""
    return any(checkpoint.ADAPTER in name for name in checkpoint.names(directory))


def load(model: Any, directory: Path) -> Any:
    """Put the adapters of a checkpoint beside the weights of `model`; returns Bridge's LoRA.

    Raises ConversionError unless they are LoRA and fit the model.
    """
    lora = _read_settings(directory)
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


def _read_settings(directory: Path) -> Any:
    import yaml
    from megatron.bridge.peft.lora import LoRA

    file = directory / "run_config.yaml"
    try:
        settings = yaml.safe_load(file.read_text(encoding="utf-8"))["peft"]
        kind = settings["_target_"]
    except (OSError, yaml.YAMLError, KeyError, TypeError) as error:
        raise ConversionError(f"{file} does not describe the adapters: {error!r}") from error
    whole = [name for name in settings if name.startswith("freeze_") and not settings[name]]
    if kind != _LORA and (kind != _OF_IMAGES or whole):
        beside = f", with {', '.join(whole)} false," if whole else ""
        raise ConversionError(f"{file}: adapters of {kind}{beside} are not merged; only those of {_LORA} are")
    names = {field.name for field in dataclasses.fields(LoRA) if field.init} - _NOT_OF_THE_WEIGHTS
    return LoRA(**{name: value for name, value in settings.items() if name in names})
