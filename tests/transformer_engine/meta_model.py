"""Megatron's GPTModel with Transformer Engine's layers on the meta device: shapes without memory."""

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from effects import flags
from megatron.core.dist_checkpointing.dict_utils import nested_values
from megatron.core.dist_checkpointing.mapping import ShardedTensor, apply_factories
from megatron.core.process_groups_config import ProcessGroupCollection
from megatron.training.models.gpt import GPTModelBuilder
from megatron_trainer.platform import gpu
from real_model import SPLIT
from stages import Megatron, Started
from torch.overrides import TorchFunctionMode


class CudaIsMeta(TorchFunctionMode):
    """Whatever is asked for on "cuda" is made on the meta device, whose tensors claim to be CUDA's."""

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if function is torch.Tensor.cuda:
            return args[0]
        if function is torch.Tensor.type and len(args) == 1 and not kwargs:
            return function(args[0]).replace(".meta.", ".cuda.")
        if kwargs.get("device") is not None and torch.device(kwargs["device"]).type == "cuda":
            kwargs["device"] = "meta"
        kwargs.pop("pin_memory", None)
        return function(*args, **kwargs)


@contextlib.contextmanager
def meta_device() -> Iterator[None]:
    """All tensors that are made meanwhile have a shape and no memory."""
    with torch.device("meta"), CudaIsMeta():
        yield


def whole(megatron: Megatron, words: list[str]) -> Any:
    """The model that these words describe, whatever they split it over, on one rank."""
    kept = [word for group in flags(words) if group[0] not in SPLIT for word in group]
    [model] = chunks(start(megatron, kept, 1))
    return model


def start(megatron: Megatron, words: list[str], world_size: int, rank: int = 0) -> Started:
    """A rank whose process groups are made and whose model is not."""
    words, _ = gpu.adapt(words)
    started = megatron.start(words, world_size, keep_groups=True, rank=rank)
    started.model.transformer.perform_initialization = False
    started.model.transformer.init_model_with_meta_device = True
    return started


def chunks(started: Started) -> list[Any]:
    """The model chunks of the rank: as many as virtual pipeline stages."""
    virtual = started.args.virtual_pipeline_model_parallel_size
    groups = ProcessGroupCollection.use_mpu_process_groups()
    with meta_device():
        return [
            GPTModelBuilder(started.model).build_model(groups, vp_stage=chunk if virtual else None)
            for chunk in range(virtual or 1)
        ]


def parameters(model: Any) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


def layer_types(model: Any) -> set[str]:
    return {type(module).__name__ for module in model.modules()}


def sharded_tensors(state: Any) -> Iterator[ShardedTensor]:
    """The tensors of a sharded state. Fused ones are taken apart, as a save does."""
    apply_factories(state)
    return (value for value in nested_values(state) if isinstance(value, ShardedTensor))
