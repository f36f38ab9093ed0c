"""The adapters of a checkpoint that Megatron-Bridge has saved, by the configuration in it."""

import dataclasses
from pathlib import Path
from typing import Any, Final

from megatron_trainer.errors import TrainerError

_LORA: Final = "megatron.bridge.peft.lora.LoRA"
_OF_IMAGES: Final = "megatron.bridge.peft.lora.VLMLoRA"
"""The same where all else is frozen: it may train parts of a vision-language model as a whole."""
_DORA: Final = "megatron.bridge.peft.dora.DoRA"
_CONFIG: Final = "run_config.yaml"
_NOT_OF_THE_WEIGHTS: Final = {"lora_dtype", "params_to_save"}


class AdaptersError(TrainerError):
    """Adapters of a checkpoint cannot be merged; the text names it and why."""


def read(directory: Path, *, dora: bool = False) -> Any:
    """Return Bridge's LoRA of a checkpoint, or with `dora` its DoRA where it is that.

    Raises AdaptersError for adapters of another kind.
    """
    from megatron.bridge.peft.dora import DoRA
    from megatron.bridge.peft.lora import LoRA

    file, settings = directory / _CONFIG, _configuration(directory)["peft"]
    kind = settings["_target_"]
    if dora and kind == _DORA:
        return DoRA(**_settings_of(DoRA, settings))
    whole = [name for name in settings if name.startswith("freeze_") and not settings[name]]
    if kind != _LORA and (kind != _OF_IMAGES or whole):
        beside = f", with {', '.join(whole)} false," if whole else ""
        raise AdaptersError(f"{file}: adapters of {kind}{beside} are not merged; only those of {_LORA} are")
    return LoRA(**_settings_of(LoRA, settings))


def _settings_of(kind: Any, settings: dict[str, Any]) -> dict[str, Any]:
    names = {field.name for field in dataclasses.fields(kind) if field.init} - _NOT_OF_THE_WEIGHTS
    return {name: value for name, value in settings.items() if name in names}


def tensor_parallel_size(directory: Path) -> int:
    """The tensor-parallel size at which a checkpoint was saved. Raises AdaptersError."""
    return int((_configuration(directory).get("model") or {}).get("tensor_model_parallel_size") or 1)


def weights_below(directory: Path) -> Path | None:
    """The checkpoint that the adapters of another one were trained on; None where its path is no folder.

    Raises AdaptersError.
    """
    path = (_configuration(directory).get("checkpoint") or {}).get("pretrained_checkpoint")
    return Path(path) if path and Path(path).is_dir() else None


def _configuration(directory: Path) -> dict[str, Any]:
    import yaml

    file = directory / _CONFIG
    try:
        found: dict[str, Any] = yaml.safe_load(file.read_text(encoding="utf-8"))
        found["peft"]["_target_"]
    except (OSError, yaml.YAMLError, KeyError, TypeError) as error:
        raise AdaptersError(f"{file} does not describe the adapters: {error!r}") from error
    return found
