"""Extra states of Transformer Engine's layers that a checkpoint lacks.

Weights are converted, and runs on CPUs train, with Megatron's own layers, whose norms have no extra state. A
model of Transformer Engine's layers asks for one of each, and Megatron's load fails without it.
"""

from pathlib import Path
from typing import Any

from megatron.core import dist_checkpointing
from megatron.core.dist_checkpointing.dict_utils import dict_list_map_inplace, nested_values
from megatron.core.dist_checkpointing.mapping import LocalNonpersistentObject, ShardedObject
from torch.distributed.checkpoint import FileSystemReader

_NAME = "_extra_state"


def install() -> None:
    """Have every load keep those of the model's own extra states that the checkpoint lacks."""
    inner = dist_checkpointing.load

    def load(sharded_state_dict: Any, checkpoint_dir: Any, *args: Any, **kwargs: Any) -> Any:
        keep_own(sharded_state_dict, Path(checkpoint_dir))
        return inner(sharded_state_dict, checkpoint_dir, *args, **kwargs)

    dist_checkpointing.load = load


def keep_own(sharded_state_dict: Any, folder: Path) -> None:
    """Replace the extra states that a checkpoint lacks by what Megatron's load returns unchanged."""
    if not any(map(_is_extra_state, nested_values(sharded_state_dict))):
        return  # Megatron's own layers have none: a large checkpoint's metadata is not read for nothing.
    try:
        names = FileSystemReader(folder).read_metadata().state_dict_metadata
    except OSError:
        return  # Megatron's load names what is missing.

    def own(value: Any) -> Any:
        lacking = _is_extra_state(value) and value.unique_key not in names
        return LocalNonpersistentObject(value.data) if lacking else value

    dict_list_map_inplace(own, sharded_state_dict)


def _is_extra_state(value: Any) -> bool:
    return isinstance(value, ShardedObject) and _NAME in value.key
