"""Writes and reads checkpoints of Megatron that hold weights only: format torch_dist, tracker `release`.

Megatron's loop and Bridge both start a new run from such a checkpoint, without optimizer and at iteration 0.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from megatron_trainer.checkpoints import selection
from megatron_trainer.checkpoints.selection import RELEASE, TRACKER
from megatron_trainer.flags import FSDP_FORMAT
from megatron_trainer.weights import cpu_model
from megatron_trainer.weights.conversion_error import ConversionError
from megatron_trainer.weights.tensors import TensorSource, name_of

SOURCE_FOLDER = "huggingface"
"""Configuration and tokenizer of the source, inside the checkpoint's folder."""
_NOT_OF_THE_MODEL = ("optimizer.", "rng_state", "rerun_state_machine", "chained_")
ADAPTER = ".adapter."
CONTENT = {"singleton_local_shards": False, "chained_optim_avoid_prefix": True}
"""How the parts of a model are named in its checkpoint."""


def save(model: Any, source: TensorSource, bridge: Any, dtype: str, folder: Path) -> None:
    """Write `folder`/release and the tracker, with the tensors of `source` under the names of `model`.

    `run_config.yaml` describes the model as Bridge derives it from config.json, not as it was built here.
    """
    from megatron.core import dist_checkpointing

    from megatron_trainer.weights.checkpoint_writer import StreamedSave

    release = folder / RELEASE
    release.mkdir()
    strategy = StreamedSave(tensors(model), source)
    dist_checkpointing.save(state(model), str(release), strategy, content_metadata=CONTENT)
    _describe_model(bridge, dtype, release / "run_config.yaml")
    (folder / TRACKER).write_text(f"{RELEASE}\n", encoding="utf-8")


def state(model: Any) -> dict[str, Any]:
    """Return what a checkpoint of a model holds, for Megatron to save."""
    return {
        "checkpoint_version": 3.0,
        "iteration": 0,
        "model": model.sharded_state_dict(metadata=CONTENT),
    }


def _describe_model(bridge: Any, dtype: str, file: Path) -> None:
    from megatron.bridge.training.config import CheckpointConfig, ConfigContainer, LoggerConfig
    from megatron.core.optimizer import OptimizerConfig

    provider = cpu_model.make_provider(bridge, dtype)
    # Both name the folder of the machine that converts.
    for name in ("hf_model_id", "generation_config"):
        if hasattr(provider, name):
            setattr(provider, name, None)
    ConfigContainer(
        model=provider,
        train=None,
        optimizer=OptimizerConfig(use_distributed_optimizer=False),
        ddp=None,
        scheduler=None,
        dataset=None,
        logger=LoggerConfig(),
        tokenizer=None,
        checkpoint=CheckpointConfig(save_optim=False, save_rng=False),
        dist=None,
    ).to_yaml(str(file))


def find(folder: Path, flag: str) -> Path:
    """Return the directory with the shards: that which the tracker names, or `folder` itself.

    Raises ConversionError if there is none, or one that is incomplete.
    """
    if not folder.is_dir():
        raise ConversionError(f"{flag} {folder} is not a folder; give the checkpoints' folder of a run")
    found = folder
    if (folder / TRACKER).is_file():
        text = (folder / TRACKER).read_text(encoding="utf-8").strip()
        if text != RELEASE and not text.isdecimal():
            raise ConversionError(
                f"{folder / TRACKER} holds {text[:20]!r}; write an iteration or release into it"
            )
        found = folder / (RELEASE if text == RELEASE else f"iter_{int(text):07}")
    if reason := selection.why_incomplete(found):
        if selection.why_incomplete(found, FSDP_FORMAT) is None:
            reason += f" (of a run with Megatron FSDP it is one in {FSDP_FORMAT}, which is not converted)"
        raise ConversionError(
            f"{flag} {found} is not a complete checkpoint in the format torch_dist: {reason}; give a folder "
            f"with {TRACKER}, or one of its iterations"
        )
    return found


def names(directory: Path) -> dict[str, tuple[int, ...]]:
    """Return names and shapes of the model's tensors in a checkpoint. Raises ConversionError."""
    from torch.distributed.checkpoint import FileSystemReader

    try:
        described = FileSystemReader(directory).read_metadata().state_dict_metadata
    except Exception as error:  # a pickle raises anything
        raise ConversionError(f"{directory / '.metadata'} is damaged: {error!r}") from error
    return {
        name: tuple(entry.size)
        for name, entry in described.items()
        if hasattr(entry, "size") and not name.startswith(_NOT_OF_THE_MODEL)
    }


def dtype(directory: Path) -> str:
    """Return the dtype of the largest tensor of a checkpoint's model. Raises ConversionError."""
    from torch.distributed.checkpoint import FileSystemReader

    described = FileSystemReader(directory).read_metadata().state_dict_metadata
    tensors = [(described[name], shape) for name, shape in names(directory).items()]
    largest, _ = max(tensors, key=lambda pair: _count(pair[1]))
    return name_of(largest.properties.dtype)


def _count(shape: tuple[int, ...]) -> int:
    count = 1
    for length in shape:
        count *= length
    return count


def source(directory: Path, model: Any, *, keep: str | None = None) -> TensorSource:
    """Return what reads the model's tensors from a checkpoint, one at a time; the model is not touched.

    With `keep` those alone whose name contains it. Raises ConversionError for tensors that only one of the
    two has, and for damaged files.
    """
    from megatron_trainer.weights.checkpoint_reader import CheckpointTensors

    kept = ((name, tensor) for name, tensor in tensors(model) if keep is None or keep in name)
    return CheckpointTensors(directory, kept, sharded(directory, model, keep))


def sharded(directory: Path, model: Any, keep: str | None = None) -> dict[str, Any]:
    """Return the model's sharded state dict without extra state; with `keep` as in `source`.

    Raises ConversionError if the checkpoint has others.
    """
    from megatron.core import dist_checkpointing
    from megatron.core.dist_checkpointing.dict_utils import nested_values
    from megatron.core.dist_checkpointing.mapping import ShardedBase, ShardedTensor, apply_factories

    metadata = dist_checkpointing.load_content_metadata(str(directory)) or {}
    wanted = {
        name: entry
        for name, entry in model.sharded_state_dict(metadata=metadata).items()
        if not name.endswith("_extra_state") and (keep is None or keep in name)
    }
    # A state-space layer has names of its own for the parts of a tensor.
    parts = dict(wanted)
    apply_factories(parts)
    entries = [entry for entry in nested_values(parts) if isinstance(entry, ShardedBase)]
    shapes = {name: shape for name, shape in names(directory).items() if keep is None or keep in name}
    keys = {entry.key for entry in entries}
    problems = [f"{name} is missing" for name in sorted(keys - shapes.keys())]
    problems += [f"{name} is unexpected" for name in sorted(shapes.keys() - keys)]
    # Layers that are stacked have an entry each.
    problems += sorted(
        {
            f"{entry.key} has shape {list(shapes[entry.key])}, config.json needs {list(entry.global_shape)}"
            for entry in entries
            if isinstance(entry, ShardedTensor)
            and entry.key in shapes
            and not _fits(shapes[entry.key], entry)
        }
    )
    if problems:
        more = f", and {len(problems) - 5} more" if len(problems) > 5 else ""
        raise ConversionError(
            f"{directory} is not a checkpoint of this model: {', '.join(problems[:5])}{more}"
        )
    return wanted


def _fits(shape: tuple[int, ...], entry: Any) -> bool:
    """Whether a tensor of a checkpoint is that of the model.

    Rows that a run adds to the vocabulary are left out; Megatron would fill missing ones with zeros. Of any
    other tensor that is larger, such as the layers of a deeper model, a part would be read.
    """
    needed = tuple(entry.global_shape)
    if entry.allow_shape_mismatch and shape[1:] == needed[1:]:
        return shape >= needed
    return shape == needed


def tensors(model: Any) -> Iterator[tuple[str, Any]]:
    """Yield the model's weights under Megatron's names, a tied output layer once."""
    for name, value in model.state_dict().items():
        if value is not None and not name.endswith("_extra_state") and hasattr(value, "shape"):
            yield name, value


def write_source(folder: Path, target: Path) -> None:
    """Keep the configuration and tokenizer of the source with the checkpoint, for the export."""
    from megatron_trainer.weights.huggingface_folder import copy_small_files

    copy_small_files(folder, target / SOURCE_FOLDER)


def kept_source(folder: Path) -> Path | None:
    """Return the folder that `write_source` made, None if a run wrote the checkpoint."""
    kept = folder / SOURCE_FOLDER
    return kept if kept.is_dir() else None
