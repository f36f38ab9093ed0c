"""LoRA adapters that Megatron-Bridge trained, merged into the weights that they belong to."""

import dataclasses
from pathlib import Path
from typing import Any

from megatron_trainer.weights import checkpoint
from megatron_trainer.weights.conversion_error import ConversionError

_LORA = "megatron.bridge.peft.lora.LoRA"
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


def merge(model: Any, directory: Path) -> dict[str, Any]:
    """Add the adapters of a checkpoint to the weights of `model`; returns what was merged, for the audit.

    The products are computed in float32 and rounded once. Raises ConversionError unless they are LoRA.
    """
    from megatron.bridge.peft.lora_layers import LoRALinear

    lora = load(model, directory)
    merged = []
    for name, module in list(model.named_modules()):
        if not isinstance(module, LoRALinear):
            if hasattr(module, "adapter"):
                raise ConversionError(f"{directory}: the adapter of {name} is a {type(module).__name__}")
            continue
        base = module.to_wrap
        dtype = base.weight.dtype
        module.float()
        base.weight.data = module.weight.to(dtype)
        if getattr(base, "bias", None) is not None:
            base.bias.data = base.bias.to(dtype)
        owner, _, attribute = name.rpartition(".")
        setattr(model.get_submodule(owner), attribute, base)
        merged.append(f"{name}.weight")
    return {"merged": {"rank": lora.dim, "alpha": lora.alpha, "tensors": sorted(merged)}}


def _read_settings(directory: Path) -> Any:
    import yaml
    from megatron.bridge.peft.lora import LoRA

    file = directory / "run_config.yaml"
    try:
        settings = yaml.safe_load(file.read_text(encoding="utf-8"))["peft"]
        kind = settings["_target_"]
    except (OSError, yaml.YAMLError, KeyError, TypeError) as error:
        raise ConversionError(f"{file} does not describe the adapters: {error!r}") from error
    if kind != _LORA:
        raise ConversionError(f"{file}: adapters of {kind} are not merged; only those of {_LORA} are")
    names = {field.name for field in dataclasses.fields(LoRA) if field.init} - _NOT_OF_THE_WEIGHTS
    return LoRA(**{name: value for name, value in settings.items() if name in names})
