"""Which checkpoints are converted."""

from pathlib import Path

import pytest
import torch
from megatron_trainer.weights import checkpoint
from megatron_trainer.weights.conversion_error import ConversionError
from torch.distributed import checkpoint as distributed_checkpoint
from torch.distributed.checkpoint import FileSystemWriter


def test_a_checkpoint_of_megatron_fsdp_is_named_as_such(tmp_path: Path) -> None:
    state = {"model": {"layer": torch.zeros(2)}}
    folder = tmp_path / "iter_0000010"
    distributed_checkpoint.save(state, storage_writer=FileSystemWriter(folder), no_dist=True)
    with pytest.raises(ConversionError, match="of a run with Megatron FSDP it is one in fsdp_dtensor"):
        checkpoint.find(folder, "--from")


def test_an_incomplete_checkpoint_is_not(tmp_path: Path) -> None:
    with pytest.raises(ConversionError, match=r"the save did not finish; give a folder"):
        checkpoint.find(tmp_path, "--from")
