"""Which checkpoints are converted."""

from pathlib import Path
from typing import Any

import pytest
import torch
from megatron.core.dist_checkpointing.core import CheckpointingConfig, save_config
from megatron.core.dist_checkpointing.mapping import ShardedTensor
from megatron_trainer.weights import checkpoint
from megatron_trainer.weights.conversion_error import ConversionError
from torch.distributed import checkpoint as distributed_checkpoint
from torch.distributed.checkpoint import FileSystemWriter

LAYERS, EMBEDDING = "decoder.layers.weight", "embedding.word_embeddings.weight"


def test_a_checkpoint_of_megatron_fsdp_is_named_as_such(tmp_path: Path) -> None:
    state = {"model": {"layer": torch.zeros(2)}}
    folder = tmp_path / "iter_0000010"
    distributed_checkpoint.save(state, storage_writer=FileSystemWriter(folder), no_dist=True)
    with pytest.raises(ConversionError, match="of a run with Megatron FSDP it is one in fsdp_dtensor"):
        checkpoint.find(folder, "--from")


def test_an_incomplete_checkpoint_is_not(tmp_path: Path) -> None:
    with pytest.raises(ConversionError, match=r"the save did not finish; give a folder"):
        checkpoint.find(tmp_path, "--from")


class Model:
    """A model of stacked layers and a vocabulary, as Megatron describes both."""

    def __init__(self, layers: int = 4, hidden: int = 6, rows: int = 250) -> None:
        self._layers, self._hidden, self._rows = layers, hidden, rows

    def sharded_state_dict(self, metadata: dict[str, Any]) -> dict[str, ShardedTensor]:
        assert metadata == {}
        table = torch.zeros(self._rows, self._hidden)
        layer = torch.zeros(self._hidden, self._hidden)
        return {
            EMBEDDING: ShardedTensor.from_rank_offsets(EMBEDDING, table, allow_shape_mismatch=True),
            **{
                f"decoder.layers.{number}.weight": ShardedTensor.from_rank_offsets(
                    LAYERS, layer, (0, number, self._layers), prepend_axis_num=1
                )
                for number in range(self._layers)
            },
        }


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    """A checkpoint of 4 layers of 6 x 6, and 256 rows of vocabulary."""
    state = {LAYERS: torch.zeros(4, 6, 6), EMBEDDING: torch.zeros(256, 6)}
    distributed_checkpoint.save(state, storage_writer=FileSystemWriter(tmp_path), no_dist=True)
    torch.save({}, tmp_path / "common.pt")
    save_config(CheckpointingConfig("torch_dist"), str(tmp_path))
    return tmp_path


@pytest.mark.parametrize("rows", [250, 256])
def test_rows_that_a_run_added_to_the_vocabulary_are_left_out(saved: Path, rows: int) -> None:
    assert len(checkpoint.sharded(saved, Model(rows=rows))) == 5


@pytest.mark.parametrize(
    ("sizes", "problem"),
    [
        ({"layers": 3}, r"decoder.layers.weight has shape \[4, 6, 6\], config.json needs \[3, 6, 6\]"),
        ({"layers": 5}, r"decoder.layers.weight has shape \[4, 6, 6\], config.json needs \[5, 6, 6\]"),
        ({"hidden": 4}, r"decoder.layers.weight has shape \[4, 6, 6\], config.json needs \[4, 4, 4\]"),
        ({"hidden": 4}, r"word_embeddings.weight has shape \[256, 6\], config.json needs \[250, 4\]"),
        ({"rows": 257}, r"word_embeddings.weight has shape \[256, 6\], config.json needs \[257, 6\]"),
    ],
)
def test_a_checkpoint_of_a_model_of_another_size_is_refused(
    saved: Path, sizes: dict[str, int], problem: str
) -> None:
    with pytest.raises(ConversionError, match=problem):
        checkpoint.sharded(saved, Model(**sizes))
