"""The tensors of a Megatron model, made of those of a Hugging Face folder one at a time."""

import contextlib
from collections.abc import Iterator
from typing import Any

import torch

from megatron_trainer.weights import checkpoint
from megatron_trainer.weights.conversion_error import ConversionError
from megatron_trainer.weights.huggingface_folder import HuggingFaceFolder


class FolderTensors:
    """The tensors of `model` by name, mapped by the `bridge` of the folder, in the model's dtypes.

    `model` gives names and shapes; its memory is never touched. Follows `load_weights_hf_to_megatron` of
    Bridge 0.6.2, which fills a model.
    """

    def __init__(self, bridge: Any, model: Any, folder: HuggingFaceFolder) -> None:
        """Plan the conversion. Raises ConversionError if the folder lacks weights of the model."""
        self._misfit = f"the weights of {folder.path} do not fit its config.json:"
        self._tensors = dict(checkpoint.tensors(model))
        self._bridge = bridge._model_bridge
        self._state = bridge.hf_pretrained.state
        with self._refused():
            tasks = self._bridge.build_conversion_tasks(bridge.hf_pretrained, [model])
        self._tasks = {task.param_name: task for task in tasks if task and task.megatron_module is not None}
        self._layer = ""
        self._groups: dict[str, Any] = {}
        """Of that layer, the tensors that hold all its experts."""
        needed = [name for name, tensor in self._tensors.items() if tensor.is_floating_point()]
        if absent := [name for name in needed if name not in self._tasks]:
            raise ConversionError(
                f"{self._misfit} nothing for {', '.join(absent[:3])} ({len(absent)} of {len(needed)} tensors "
                "of Megatron's model)"
            )

    def __call__(self, name: str) -> Any:
        """Make one tensor. Raises ConversionError if the weights do not fit the model or are not numbers."""
        model = self._tensors[name]
        task = self._tasks.get(name)
        if task is None:
            return model
        with self._refused(), torch.no_grad():
            value = task.mapping.hf_to_megatron(self._weights(name, task.mapping), task.megatron_module)
        if value.shape != model.shape:
            raise ConversionError(
                f"{self._misfit} {name} would have shape {list(value.shape)} instead of {list(model.shape)}"
            )
        if value.isnan().any():
            raise ConversionError(f"{self._misfit} {name} would have values that are not numbers")
        return value.to(model.dtype)

    def _weights(self, name: str, mapping: Any) -> Any:
        """Read what a mapping needs; experts of a layer that share a tensor share what was read of it."""
        if not getattr(mapping, "is_grouped_export", False):
            return self._bridge.maybe_modify_loaded_hf_weight(mapping.hf_param, self._state)
        layer, key = name.partition(".experts.")[0], str(mapping.hf_param)
        if layer != self._layer:
            self._layer, self._groups = layer, {}
        if key not in self._groups:
            self._groups[key] = self._bridge.maybe_modify_loaded_hf_weight(mapping.hf_param, self._state)
        return self._groups[key]

    @contextlib.contextmanager
    def _refused(self) -> Iterator[None]:
        """Raise ConversionError in place of the errors of Bridge."""
        try:
            yield
        except (ValueError, KeyError, RuntimeError, AttributeError) as error:
            text = " ".join(str(error).split())[:400]
            raise ConversionError(f"{self._misfit} {text}") from error
