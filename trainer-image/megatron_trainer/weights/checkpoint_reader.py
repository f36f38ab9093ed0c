"""Reads a checkpoint in the format torch_dist one tensor at a time."""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from megatron.core.dist_checkpointing.dict_utils import nested_values
from megatron.core.dist_checkpointing.mapping import ShardedTensor, apply_factories
from torch.distributed._shard._utils import narrow_tensor_by_index
from torch.distributed.checkpoint import FileSystemReader, LoadPlan
from torch.distributed.checkpoint.metadata import ChunkStorageMetadata
from torch.distributed.checkpoint.planner_helpers import create_read_items_for_chunk_list

from megatron_trainer.weights.conversion_error import ConversionError


class CheckpointTensors:
    """The tensors of a model, by name, as a checkpoint has them.

    `tensors` are the model's, memory that is never touched; `sharded` is its sharded state dict, with the
    place of each part of them in the checkpoint.
    """

    def __init__(
        self, directory: Path, tensors: Iterable[tuple[str, Any]], sharded: Mapping[str, Any]
    ) -> None:
        self._directory = directory
        self._tensors = dict(tensors)
        self._reader = FileSystemReader(directory)
        metadata = self._reader.read_metadata()
        self._reader.set_up_storage_reader(metadata, True)
        self._stored = metadata.state_dict_metadata
        self._shards: dict[int, list[Any]] = defaultdict(list)
        state = dict(sharded)
        apply_factories(state)
        for shard in nested_values(state):
            if isinstance(shard, ShardedTensor):
                self._shards[shard.data.untyped_storage().data_ptr()].append(shard)

    def __call__(self, name: str) -> Any:
        """Read one tensor. Raises ConversionError for a damaged file."""
        model = self._tensors[name]
        value = torch.empty_like(model)
        for shard in self._shards[model.untyped_storage().data_ptr()]:
            part = shard.data
            self._fill(
                shard, value.as_strided(part.shape, part.stride(), part.storage_offset()).detach(), name
            )
        return value

    def _fill(self, shard: Any, part: Any, name: str) -> None:
        """Read a shard of the model into `part`."""
        part = part.view((1,) * shard.prepend_axis_num + tuple(shard.local_shape))
        chunk = ChunkStorageMetadata(torch.Size(shard.global_offset), part.shape)
        items = create_read_items_for_chunk_list(shard.key, self._stored[shard.key], [chunk])
        if sum(item.lengths.numel() for item in items) != part.numel():
            raise ConversionError(f"{self._directory} has a part of {name} only")
        try:
            self._reader.read_data(LoadPlan(items), _Into(part))
        except Exception as error:  # torch.load raises anything
            text = " ".join(str(error).split())[:300] or type(error).__name__
            raise ConversionError(f"{self._directory} cannot be read: {text}") from error


class _Into:
    """The part of torch's LoadPlanner that a reader calls."""

    def __init__(self, part: Any) -> None:
        self._part = part

    def resolve_tensor(self, item: Any) -> Any:
        return narrow_tensor_by_index(self._part, item.dest_offsets, item.lengths)

    def commit_tensor(self, item: Any, tensor: Any) -> None:
        """Nothing to do: the tensor is a view."""
