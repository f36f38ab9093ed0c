"""Writes a checkpoint in the format torch_dist one tensor at a time.

Megatron's own writer (`FileSystemWriterAsync` of megatron.core 0.19.2) holds every tensor before it writes
the first, and torch's holds them until it has written the last. The files are Megatron's, byte for byte.
"""

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from megatron.core.dist_checkpointing.strategies.torch import (
    MCoreSavePlanner,
    TorchDistSaveShardedStrategy,
    _replace_state_dict_keys_with_sharded_keys,
    mcore_to_pyt_state_dict,
)
from torch.distributed import checkpoint
from torch.distributed.checkpoint import CheckpointException, FileSystemWriter
from torch.distributed.checkpoint.filesystem import DEFAULT_SUFFIX, SerializationFormat, _write_item
from torch.distributed.checkpoint.planner import WriteItemType
from torch.futures import Future

from megatron_trainer.weights.tensors import TensorSource


class StreamedSave(TorchDistSaveShardedStrategy):
    """Megatron's strategy to save, with tensors that are made when they are written.

    `tensors` are the model's, by name, memory that is never touched. In place of a part of one, the
    checkpoint gets that part of what `source` returns for its name.
    """

    def __init__(self, tensors: Iterable[tuple[str, Any]], source: TensorSource) -> None:
        super().__init__()
        self._parts = _Parts(tensors, source)

    def save(self, sharded_state_dict: Any, checkpoint_dir: Path) -> None:
        """Write all shards, as the strategy of Megatron does. Raises what the source raises."""
        state, _, _ = _replace_state_dict_keys_with_sharded_keys(sharded_state_dict, True)
        try:
            checkpoint.save(
                mcore_to_pyt_state_dict(state),
                storage_writer=_OneFile(checkpoint_dir),
                planner=_Planner(self._parts),
                no_dist=True,
            )
        except CheckpointException as error:
            # torch wraps whatever was raised, also SystemExit.
            raise next(iter(error.failures.values()))[0] from None


class _Parts:
    """Makes parts of tensors, and keeps the one tensor that it made last: gate and up are parts of one."""

    def __init__(self, tensors: Iterable[tuple[str, Any]], source: TensorSource) -> None:
        self._names = {tensor.untyped_storage().data_ptr(): name for name, tensor in tensors}
        self._source = source
        self._last = ""
        self._value: Any = None

    def __call__(self, part: Any) -> Any:
        name = self._names[part.untyped_storage().data_ptr()]
        if name != self._last:
            self._value = None
            self._value = self._source(name).contiguous()
            self._last = name
        offset = self._value.storage_offset() + part.storage_offset()
        found = self._value.as_strided(part.shape, part.stride(), offset)
        # A tensor is stored with the whole memory that it is a view of.
        return found.clone() if found.nbytes != found.untyped_storage().nbytes() else found


class _Planner(MCoreSavePlanner):
    def __init__(self, parts: _Parts) -> None:
        super().__init__(
            dedup_replicated_tensors=False, flatten_state_dict=False, flatten_sharded_tensors=False
        )
        self._parts = parts

    def resolve_data(self, write_item: Any) -> Any:
        data = super().resolve_data(write_item)
        return self._parts(data) if isinstance(data, torch.Tensor) else data


class _OneFile(FileSystemWriter):
    @property
    def checkpoint_id(self) -> str:
        # It is pickled, and a Path that Python 3.13 pickled cannot be read by 3.12.
        return str(self.path)

    def write_data(self, plan: Any, planner: Any) -> Any:
        name = f"__0_0{DEFAULT_SUFFIX}"
        items = sorted(plan.items, key=lambda item: item.type != WriteItemType.BYTE_IO)
        with (self.path / name).open("wb") as stream:
            written = [
                _write_item(
                    self.transforms,
                    stream,
                    planner.resolve_data(item),
                    item,
                    name,
                    SerializationFormat.TORCH_SAVE,
                )
                for item in items
            ]
            stream.flush()
            os.fsync(stream.fileno())
        done: Any = Future()
        done.set_result(written)
        return done
