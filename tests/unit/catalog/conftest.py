"""A small catalog and a platform, so that the tests do not depend on the shipped entries."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from megatron_operator import catalog
from megatron_operator.api.errors import InvalidRecipeError
from megatron_operator.api.platform import PlatformConfig
from megatron_operator.api.recipe import MegatronRecipeSpec
from megatron_operator.catalog import Catalog, ResolvedRecipe

SMALL = """
templates:
  small-base:
    model: {positionEmbeddingType: rope, hiddenDropout: 0.0, vocabSize: 1000}
    training: {bf16: true, lrDecayStyle: cosine}
    data:
      split: 99,1,0
      tokenizer: {tokenizerType: GPT2BPETokenizer, vocabFile: /data/v.json, mergeFile: /data/m.txt}
    corrections:
      - {published: nothing, megatron: something, why: it must}
entries:
  small-1:
    extends: small-base
    aliases: [small]
    description: a small model
    model: {numLayers: 4, hiddenSize: 64, numAttentionHeads: 4, maxPositionEmbeddings: 128}
    training: {seqLength: 128, globalBatchSize: 32, lr: 1.0e-3, minLr: 1.0e-4,
               trainIters: 1000, lrWarmupIters: 20}
    layouts:
      - accelerators: [h100-sxm]
        count: 8
        parallelism: {tensorModelParallelSize: 2, sequenceParallel: true, recomputeGranularity: full,
                      recomputeMethod: uniform, recomputeNumLayers: 1}
        training: {microBatchSize: 2}
        source: a paper
    source: a paper
    corrections:
      - {published: a, megatron: b, why: c}
  small-2:
    extends: small-1
    description: a smaller one
    model: {numLayers: 2, hiddenDropout: null}
    source: the same paper
"""

Resolve = Callable[..., ResolvedRecipe]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "small.yaml").write_text(SMALL)
    return tmp_path


@pytest.fixture
def small(folder: Path) -> Catalog:
    return catalog.load(folder)


@pytest.fixture
def platform() -> PlatformConfig:
    return PlatformConfig.model_validate(
        {
            "accelerators": {
                "h100": {
                    "hardware": "h100-sxm",
                    "topology": ["rack"],
                    "env": {"NCCL_X": "1", "Y": "profile"},
                },
                "laptop": {"platform": "cpu", "hardware": "cpu", "resourceName": None, "perNode": 2},
            },
            "defaultAccelerator": "h100",
            "image": "registry/trainer:1",
            "queue": "research",
            "checkpoint": {"size": "3Ti", "storageClassName": "fast"},
            "dataStorageClassName": "bulk",
        }
    )


@pytest.fixture
def resolve(small: Catalog, platform: PlatformConfig) -> Resolve:
    """`resolve(recipe="small-1", ...)`; mock data and 8 of the default accelerator by default."""

    def run(namespace: str | None = None, platform: PlatformConfig = platform, **spec: Any) -> ResolvedRecipe:
        filled = {"accelerator": {"count": 8}, "data": {"mockData": True}} | spec
        return catalog.resolve(MegatronRecipeSpec.model_validate(filled), platform, small, namespace)

    return run


@pytest.fixture
def refusal(resolve: Resolve) -> Callable[..., dict[str, str]]:
    """What `resolve` refuses: field -> the whole line."""

    def run(**spec: Any) -> dict[str, str]:
        with pytest.raises(InvalidRecipeError) as refused:
            resolve(**spec)
        return {error.field: str(error) for error in refused.value.errors}

    return run
