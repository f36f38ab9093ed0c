"""Recipes of Megatron's own loop with latent attention: positions, and CPUs."""

from typing import Any

import pytest
from megatron_operator import catalog
from megatron_operator.api.errors import InvalidRecipeError
from megatron_operator.api.recipe import MegatronRecipeSpec
from megatron_operator.cli.default_platform import default_platform
from megatron_operator.planner import admit

SMALL = {
    **{"numLayers": 2, "hiddenSize": 64, "ffnHiddenSize": 128, "numAttentionHeads": 4, "swiglu": True},
    **{"normalization": "RMSNorm", "positionEmbeddingType": "rope", "maxPositionEmbeddings": 128},
    **{"vocabSize": 256, "qkLayernorm": True, "multiLatentAttention": True, "noRopeFusion": True},
    **{"kvLoraRank": 32, "qkHeadDim": 16, "qkPosEmbHeadDim": 8, "vHeadDim": 16, "disableBiasLinear": True},
}


def admitted(**model: Any) -> list[str]:
    """The arguments of a small model on two CPUs."""
    training = {"seqLength": 64, "globalBatchSize": 4, "trainIters": 2, "lr": 0.01, "bf16": False}
    spec = {"accelerator": {"type": "cpu", "count": 2}, "data": {"mockData": True}, "training": training}
    asked = MegatronRecipeSpec.model_validate(spec | {"model": SMALL | model})
    return admit("run", asked, default_platform(), catalog.load()).arguments


def refused(**model: Any) -> list[str]:
    with pytest.raises(InvalidRecipeError) as raised:
        admitted(**model)
    return [str(error) for error in raised.value.errors]


def test_latent_attention_runs_on_cpus() -> None:
    assert "--multi-latent-attention" in admitted(qLoraRank=48)


def test_queries_of_full_rank_do_not() -> None:
    (error,) = refused()
    assert error.startswith("spec.model.qLoraRank: is not set, which is not supported on platform cpu: ")


def test_its_positions_take_the_settings_of_yarn() -> None:
    words = admitted(qLoraRank=48, ropeType="yarn", rotaryScalingFactor=32, yarnBetaFast=1)
    assert words[words.index("--yarn-beta-fast") + 1] == "1"


@pytest.mark.parametrize(
    ("model", "need"),
    [
        ({"yarnBetaFast": 1}, "ropeType yarn"),
        (
            {"ropeType": "yarn", "rotaryScalingFactor": 2, "noYarnCorrectionRangeRoundToInt": True},
            "a model without multiLatentAttention",
        ),
    ],
)
def test_settings_of_yarn_without_effect_are_refused(model: dict[str, Any], need: str) -> None:
    (error,) = refused(qLoraRank=48, **model)
    assert f"has no effect without {need}" in error
