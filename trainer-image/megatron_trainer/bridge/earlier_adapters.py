"""Adapters that another run trained: trained on, or merged into the weights that this run starts from."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from megatron.bridge.peft.lora_layers import LoRALinear
from megatron.bridge.peft.utils import load_peft_adapter_checkpoint
from megatron.bridge.training import pretrain, setup
from megatron_contract.exit_codes import ExitCode

from megatron_trainer.bridge import saved_lora
from megatron_trainer.bridge.saved_lora import AdaptersError
from megatron_trainer.bridge.starting_weights import FIELD
from megatron_trainer.worker.failures import RankError


def train_on(directory: Path) -> None:
    """Have Bridge's loop begin with the adapters in `directory` in place of those that it initializes."""
    inner = setup._apply_peft_transformation

    def with_values(peft: Any, models: Any) -> Any:
        transformed = inner(peft, models)
        _load(transformed, directory, peft)
        return transformed

    setup._apply_peft_transformation = with_values


def merge_into(config: Any, base: Path, directory: Path) -> None:
    """Have Bridge's loop begin with the weights in `base` and the adapters in `directory` added to them.

    Raises RankError with BAD_DATA unless they are LoRA.
    """
    try:
        lora = saved_lora.read(directory)
    except AdaptersError as error:
        fix = "train them further by a recipe of mode lora, or start from other weights"
        raise RankError(ExitCode.BAD_DATA, f"{FIELD}: {error}; {fix}") from error
    inner: Callable[..., Any] = pretrain.setup

    def with_weights(state: Any, *args: Any, **kwargs: Any) -> Any:
        def load(models: list[Any]) -> list[Any]:
            # Without optimizer, iteration and random state, as of any pretrained checkpoint.
            state.cfg.checkpoint.finetune = True
            setup._load_checkpoint_from_path(
                load_dir=str(base),
                state=state,
                model=models,
                optimizer=None,
                opt_param_scheduler=None,
                checkpointing_context={},
                ignore_ckpt_step=True,
            )
            merge(models, lora, directory)
            return models

        setup._register_pre_wrap_hook(state.cfg.model, load)
        return inner(state, *args, **kwargs)

    pretrain.setup = with_weights
    # They are loaded above: Bridge would load them again, without the adapters.
    config.checkpoint.pretrained_checkpoint = None


def merge(models: list[Any], lora: Any, directory: Path) -> None:
    """Add the adapters in `directory` to the weights of a model's stages, which have no adapters then.

    The sums are computed in float32 and rounded once, as an export does. Raises RankError with BAD_DATA for
    other adapters than of linear layers.
    """
    trained = [(parameter, parameter.requires_grad) for model in models for parameter in model.parameters()]
    modes = [model.training for model in models]
    transformed = lora(models, training=False)
    lora.set_params_to_save(transformed)
    _load(transformed, directory, lora)
    for model in transformed:
        for name, module in list(model.named_modules()):
            if isinstance(module, LoRALinear):
                _merge_layer(model, name, module)
            elif hasattr(module, "adapter"):
                kind = type(module).__name__
                raise RankError(ExitCode.BAD_DATA, f"{FIELD}: the adapter of {name} is a {kind}, not merged")
    for parameter, flag in trained:
        parameter.requires_grad_(flag)
    for model, mode in zip(models, modes, strict=True):
        model.train(mode)


def _merge_layer(model: Any, name: str, module: Any) -> None:
    weight = module.to_wrap.weight
    own = weight.data
    module.adapter.float()
    weight.data = own.float()
    with torch.no_grad():
        weight.data = module.weight.to(own.dtype)
    parent, _, leaf = name.rpartition(".")
    setattr(model.get_submodule(parent), leaf, module.to_wrap)


def _load(models: Any, directory: Path, peft: Any) -> None:
    from megatron.core import dist_checkpointing

    metadata = dist_checkpointing.load_content_metadata(str(directory))
    kwargs = {"metadata": metadata} if metadata is not None else None
    with torch.no_grad():
        load_peft_adapter_checkpoint(models, str(directory), peft, model_sd_kwargs=kwargs)
