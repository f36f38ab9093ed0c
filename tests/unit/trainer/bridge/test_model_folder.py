"""Gated delta nets predict several tokens where the imported weights have the layer for it."""

from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import torch.distributed.checkpoint
from megatron_trainer.bridge import model_folder


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
