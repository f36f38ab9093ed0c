"""Extra states of layers that a checkpoint of other layers lacks."""

from pathlib import Path

import pytest

pytest.importorskip("megatron.core", reason="make setup-trainer")

import torch
from megatron.core.dist_checkpointing.mapping import LocalNonpersistentObject, ShardedObject
from megatron_trainer.checkpoints.extra_states import keep_own
from torch.distributed import checkpoint

LACKING, STORED = "decoder.final_layernorm._extra_state", "decoder.layers.linear_qkv._extra_state"


def _object(key: str) -> ShardedObject:
    return ShardedObject(key, f"the model's own {key}", (1,), (0,))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A checkpoint as Megatron's own layers leave it: their norm has no extra state."""
    state = {"decoder.final_layernorm.weight": torch.ones(2), _object(STORED).unique_key: "of the checkpoint"}
    checkpoint.save(state, checkpoint_id=tmp_path / "release", no_dist=True)
    return tmp_path / "release"


def test_an_extra_state_that_the_checkpoint_lacks_stays_that_of_the_model(folder: Path) -> None:
    wanted = {"model": {LACKING: _object(LACKING)}}
    keep_own(wanted, folder)
    kept = wanted["model"][LACKING]
    assert isinstance(kept, LocalNonpersistentObject)
    assert kept.unwrap() == f"the model's own {LACKING}"


def test_what_the_checkpoint_has_is_loaded(folder: Path) -> None:
    stored = _object(STORED)
    wanted = {"model": {STORED: stored}}
    keep_own(wanted, folder)
    assert wanted["model"][STORED] is stored


def test_anything_else_that_is_missing_is_left_to_megatron_which_refuses_it(
    folder: Path, tmp_path: Path
) -> None:
    rng, state = _object("rng_state"), _object(LACKING)
    wanted = {"rng_state": rng}
    keep_own(wanted, folder)
    assert wanted["rng_state"] is rng
    elsewhere = {"model": [state]}
    keep_own(elsewhere, tmp_path / "no-checkpoint")
    assert elsewhere["model"] == [state]


def test_metadata_is_not_read_for_a_model_without_extra_states(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "megatron_trainer.checkpoints.extra_states.FileSystemReader",
        lambda _: pytest.fail("the metadata was read"),
    )
    keep_own({"rng_state": _object("rng_state"), "layers": [{"weight": torch.ones(2)}]}, folder)
