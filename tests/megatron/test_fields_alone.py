"""Each typed field, alone in a recipe: what Megatron refuses, the operator refuses too."""

import copy
from collections.abc import Iterator
from typing import Any

import cases
import pytest
from megatron_operator.api.base import ApiModel
from megatron_operator.api.errors import InvalidRecipeError
from megatron_operator.api.model import ModelSpec
from megatron_operator.api.training import ParallelismSpec, TrainingSpec
from pydantic import ValidationError
from real_model import sizes
from stages import Megatron, NotAccepted

SECTIONS: dict[str, type[ApiModel]] = {
    "model": ModelSpec,
    "parallelism": ParallelismSpec,
    "training": TrainingSpec,
}
DENSE = {"recipe": "llama3-8b", "accelerator": {"type": "h100-sxm", "count": 64}}
LEARNED_POSITIONS = {"recipe": "gpt3-1.3b", "accelerator": {"type": "a100-80", "count": 8}}
EXPERTS = {"recipe": "mixtral-8x7b", "accelerator": {"type": "h100-sxm", "count": 64}}
EXPERT_GROUPS = {"recipe": "deepseek-v3", "accelerator": {"type": "h100-sxm", "count": 1024}}
LATENT = {
    "accelerator": {"type": "h100-sxm", "count": 8},
    "model": {
        **{"numLayers": 2, "hiddenSize": 512, "ffnHiddenSize": 1024, "numAttentionHeads": 8, "swiglu": True},
        **{"multiLatentAttention": True, "qLoraRank": 64, "kvLoraRank": 32, "qkHeadDim": 64},
        **{"qkPosEmbHeadDim": 32, "vHeadDim": 64, "vocabSize": 32000, "normalization": "RMSNorm"},
        **{"maxPositionEmbeddings": 512, "disableBiasLinear": True},
    },
    "training": {"seqLength": 512, "globalBatchSize": 8, "trainIters": 10, "lr": 1e-4, "bf16": True},
}
OF_EXPERTS = ("model.moe", "model.mtp", "parallelism.expert", "parallelism.pipeline", "parallelism.num")
"""Fields that a model with experts answers otherwise."""
COUNTS = (0, 1, 2, 7, 9)
SHARES = (0.0, 0.5, 1.0)
TEXTS: dict[str, tuple[str, ...]] = {
    "model.moeLayerFreq": ("2", "[0]+[1]*31", "[0]*3+[1]*58"),
    "model.windowAttnSkipFreq": ("2",),
    "model.windowSize": ("512,0",),
    "parallelism.pipelineModelParallelLayout": ("Et*16|t*16L", "Et*8|t*8|t*8|t*8L", "Et*12|t*12L"),
    "training.stepBatchSizeSchedule": ("0:128 10B:256 50B:512",),
    "training.trainTokens": ("1B",),
}
"""Values of texts that have a form."""
WITHOUT_TRANSFORMER_ENGINE = {"training.usePrecisionAwareOptimizer"}
"""Megatron refuses these where Transformer Engine is not installed."""


def fields(prefixes: tuple[str, ...]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Path below `spec` and JSON schema of each field whose path begins with one of `prefixes`."""
    for section, model in SECTIONS.items():
        for name, schema in model.model_json_schema(by_alias=True)["properties"].items():
            path = f"{section}.{name}"
            if path.startswith(prefixes) and path not in WITHOUT_TRANSFORMER_ENGINE:
                yield path, schema


def values(path: str, schema: dict[str, Any]) -> Iterator[object]:
    """Values of each type that the field takes."""
    for kind in schema.get("anyOf", [schema]):
        match kind:
            case {"enum": choices}:
                yield from choices
            case {"const": value}:
                yield value
            case {"type": "boolean"}:
                yield from (True, False)
            case {"type": "integer"}:
                yield from COUNTS
            case {"type": "number"}:
                yield from SHARES
            case {"type": "string"}:
                yield from TEXTS[path]
            case {"type": "array", "items": {"enum": choices}}:
                yield from ([choice] for choice in choices)


def with_field(base: dict[str, Any], path: str, value: object) -> dict[str, Any]:
    section, name = path.split(".")
    spec = copy.deepcopy(base) | {"data": {"mockData": True}}
    return spec | {section: spec.get(section, {}) | {name: value}}


def refused_by_megatron_alone(
    megatron: Megatron, base: dict[str, Any], prefixes: tuple[str, ...]
) -> tuple[list[str], int]:
    """Fields that the operator accepts on top of `base`, and with which Megatron does not start.

    The second result is the number of recipes that the operator accepts.
    """
    found, started = [], set()
    for path, schema in fields(prefixes):
        for value in values(path, schema):
            try:
                case = cases.build(path, with_field(base, path, value), packages=())
            except (InvalidRecipeError, ValidationError):
                continue
            if tuple(case.words) in started:
                continue
            started.add(tuple(case.words))
            try:
                megatron.start(case.trainer_words, case.world_size)
            except NotAccepted as refusal:
                found.append(f"{path} {value}: {refusal}")
    return found, len(started)


@pytest.mark.parametrize(
    ("base", "prefixes", "accepted"),
    [
        (DENSE, ("",), 100),
        (LEARNED_POSITIONS, ("model.", "training.fp", "training.attention"), 20),
        (EXPERTS, OF_EXPERTS, 20),
        (EXPERT_GROUPS, ("model.moeRouter", "model.numExperts", "model.positionEmbedding"), 15),
    ],
    ids=["dense", "learned positions", "experts", "groups of experts"],
)
def test_a_field_that_megatron_refuses_is_refused_before_a_run_exists(
    megatron: Megatron, base: dict[str, Any], prefixes: tuple[str, ...], accepted: int
) -> None:
    refused, started = refused_by_megatron_alone(megatron, base, prefixes)
    assert refused == []
    assert started > accepted


def test_latent_attention_is_built_with_each_position_embedding_that_is_accepted(megatron: Megatron) -> None:
    choices = dict(fields(("model.positionEmbeddingType",)))
    built = []
    for path, schema in choices.items():
        for value in values(path, schema):
            try:
                case = cases.build(path, with_field(LATENT, path, value), packages=())
            except InvalidRecipeError:
                continue
            built.append(value)
            assert sizes(megatron, case.words).total > 0
    assert built == ["learned_absolute", "rope", "none"]
