"""Gated delta nets predict several tokens where the imported weights have the layer for it."""

from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import torch.distributed.checkpoint
from megatron_contract.exit_codes import ExitCode
from megatron_trainer.bridge import model_folder
from megatron_trainer.worker.failures import classify


def predicted(weights: Path, stated: int | None, tensor: str, variant: str | None = "gated_delta_net") -> int:
    """Layers of prediction that a model has beside weights with this tensor."""
    torch.distributed.checkpoint.save({tensor: torch.zeros(1)}, checkpoint_id=weights, no_dist=True)
    model = SimpleNamespace(experimental_attention_variant=variant, mtp_num_layers=stated)
    model_folder.predict(model, weights)
    return model.mtp_num_layers or 0


@pytest.mark.parametrize("model", ["", "language_model."])
@pytest.mark.parametrize("stated", [None, 1])
def test_a_layer_of_prediction_among_the_weights_is_in_the_model(
    stated: int | None, model: str, tmp_path: Path
) -> None:
    assert predicted(tmp_path, stated, f"{model}mtp.layers.0.eh_proj.weight") == 1


@pytest.mark.parametrize("stated", [None, 1])
def test_a_layer_of_prediction_that_the_weights_lack_is_not_trained_from_random_ones(
    stated: int | None, tmp_path: Path
) -> None:
    assert predicted(tmp_path, stated, "language_model.decoder.final_layernorm.weight") == 0


def test_other_models_keep_the_layers_of_their_function(tmp_path: Path) -> None:
    assert predicted(tmp_path, 1, "decoder.final_layernorm.weight", variant=None) == 1


def test_weights_that_the_volume_does_not_return_are_no_wrong_data(tmp_path: Path) -> None:
    # Reads of address 0 of a process's memory fail with EIO.
    (tmp_path / ".metadata").symlink_to("/proc/self/mem")
    model = SimpleNamespace(experimental_attention_variant="gated_delta_net", mtp_num_layers=None)
    with pytest.raises(Exception, match="Input/output error") as raised:
        model_folder.predict(model, tmp_path)
    assert classify(raised.value).code == ExitCode.WORKER_DIED
