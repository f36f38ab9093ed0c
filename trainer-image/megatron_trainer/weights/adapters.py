"""Adapters that Megatron-Bridge trained, merged into the weights that they belong to."""

import contextlib
import ctypes
import mmap
import re
from collections.abc import Iterator, Mapping
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
_MAGNITUDE: Final = "weight_magnitude"
_MMAP_THRESHOLD: Final = -3
"""M_MMAP_THRESHOLD of mallopt(3)."""
_SMALL: Final = 128 << 10
"""Bytes from which on a block of memory is returned to the kernel when it is freed: glibc's default."""


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


def place(model: Any, directory: Path) -> Any:
    """Build the adapters of a checkpoint beside the weights of `model`; returns Bridge's LoRA or DoRA.

    They have no values, and their memory is never touched. Raises ConversionError for other adapters.
    """
    try:
        lora = saved_lora.read(directory, dora=True)
    except AdaptersError as error:
        raise ConversionError(str(error)) from error
    # glibc raises this threshold by itself, and keeps what is freed of smaller blocks.
    ctypes.CDLL(None).mallopt(_MMAP_THRESHOLD, _SMALL)
    build = lora.transform

    # Bridge passes what the signature names.
    def build_empty(module: Any, name: str | None = None, prefix: str | None = None) -> Any:
        built = build(module, name, prefix)
        for parameter in built.adapter.parameters() if hasattr(built, "adapter") else ():
            parameter.data = _reserved(parameter.data)
        return built

    lora.transform = build_empty
    with _without_norms():
        lora([model], training=False)
    return lora


@contextlib.contextmanager
def _without_norms() -> Iterator[None]:
    """Keep DoRA from computing the magnitudes it begins with, which would read all weights of the model."""
    from megatron.bridge.peft.dora_layers import DoRALinear

    inner = DoRALinear._get_weight_norm
    DoRALinear._get_weight_norm = lambda layer: layer.to_wrap.weight.new_empty(len(layer.to_wrap.weight))
    try:
        yield
    finally:
        DoRALinear._get_weight_norm = inner


def _reserved(tensor: Any) -> Any:
    """Return a tensor of the same shape and dtype in memory that is not taken before it is written.

    That of `torch.empty` may be what a tensor left that was freed, such as another adapter.
    """
    import torch

    memory = mmap.mmap(-1, tensor.nbytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    return torch.frombuffer(memory, dtype=tensor.dtype).view(tensor.shape)


def merged(model: Any, weights: TensorSource, directory: Path) -> tuple[TensorSource, dict[str, Any]]:
    """Return `weights` with the adapters of a checkpoint added, and what is merged, for the audit.

    `model` gives the adapters their places; its memory is never touched. Each adapter is read for its weight.
    The products are computed in float32 and rounded once. Raises ConversionError unless they are LoRA or DoRA
    and fit the model.
    """
    from megatron.bridge.peft.dora_layers import DoRALinear
    from megatron.bridge.peft.lora_layers import LoRALinear

    lora = place(model, directory)
    ranks = saved_lora.tensor_parallel_size(directory)
    adapter = checkpoint.source(directory, model, keep=checkpoint.ADAPTER)
    adapted = {}
    for name, module in model.named_modules():
        if isinstance(module, LoRALinear | DoRALinear):
            adapted[f"{name}.weight"] = module
        elif hasattr(module, "adapter"):
            raise ConversionError(f"{directory}: the adapter of {name} is a {type(module).__name__}")

    def source(name: str) -> Any:
        weight = weights(name)
        if name not in adapted:
            return weight
        module, prefix = adapted[name], f"{name.removesuffix('.weight')}{checkpoint.ADAPTER}"
        parts = {part: adapter(prefix + part) for part, _ in module.adapter.named_parameters()}
        if isinstance(module, DoRALinear):
            parts[_MAGNITUDE] = _in_order_of_rows(name, parts[_MAGNITUDE], module, ranks)
            return _with_magnitudes(module, weight, parts)
        with _holding(module, weight.float(), {part: value.float() for part, value in parts.items()}):
            return module.weight.detach().to(weight.dtype)

    kind = type(lora).__name__.lower()
    details = {"type": kind, "rank": lora.dim, "alpha": lora.alpha, "tensors": sorted(adapted)}
    return source, {"merged": details}


@contextlib.contextmanager
def _holding(module: Any, weight: Any, parts: Mapping[str, Any]) -> Iterator[None]:
    """Have a layer and its adapter these values meanwhile."""
    values = {module.to_wrap.weight: weight}
    values |= {parameter: parts[part] for part, parameter in module.adapter.named_parameters()}
    unused = {parameter: parameter.data for parameter in values}
    try:
        for parameter, value in values.items():
            parameter.data = value
        yield
    finally:
        for parameter, memory in unused.items():
            parameter.data = memory


def _with_magnitudes(module: Any, weight: Any, parts: Mapping[str, Any]) -> Any:
    """The weight of a layer with DoRA: rows of W + s B A, scaled to the magnitudes (DoRA, equation 5).

    The norms of these rows are rounded as in training, where rows that were not trained have a scale of 1.
    """
    with _holding(module, weight, parts):
        scale = (parts[_MAGNITUDE] / module._get_weight_norm()).detach().float()
    product = module.scaling * parts["linear_out.weight"].float() @ parts["linear_in.weight"].float()
    return ((weight.float() + product) * scale[:, None]).to(weight.dtype)


def _in_order_of_rows(name: str, magnitudes: Any, module: Any, ranks: int) -> Any:
    """Magnitudes of DoRA, [outputs], in the order of the rows of their weight.

    Bridge 0.6.2 saves those of a gated `linear_fc1` rank by rank, each with its rows of gate and up, and the
    rows of the weight in that of gate and up.
    """
    gated = name.endswith("linear_fc1.weight") and module.to_wrap.config.gated_linear_unit
    return magnitudes.view(ranks, 2, -1).transpose(0, 1).reshape(-1) if gated else magnitudes
