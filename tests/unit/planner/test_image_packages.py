"""Settings that need a package which the project's image for GPUs lacks are refused without another image."""

from typing import Any

import pytest
from megatron_operator import catalog

from tests.unit.planner.conftest import Resolve
from tests.unit.planner.planning_errors import errors

FUSED_OFF = {"no-persist-layer-norm": True, "no-masked-softmax-fusion": True}


@pytest.mark.parametrize(
    ("settings", "is_refused"),
    [
        ({}, True),
        ({"megatronArgs": FUSED_OFF}, True),
        ({"parallelism": {"sequenceParallel": False}}, True),
        ({"megatronArgs": FUSED_OFF, "parallelism": {"sequenceParallel": False}}, False),
        ({"megatronArgs": FUSED_OFF, "parallelism": {"tensorModelParallelSize": 1}}, False),
        ({"image": "own"}, False),
    ],
)
def test_local_layers_on_gpus_need_apex_or_none_of_its_kernels(
    resolve: Resolve, settings: dict[str, Any], is_refused: bool
) -> None:
    resolved = resolve("llama3.2-1b", 8, training={"transformerImpl": "local"}, **settings)
    refusal = (
        "spec.training.transformerImpl: local requires Apex, which the trainer image lacks; leave it out, or"
        " set megatronArgs no-persist-layer-norm and no-masked-softmax-fusion: true and"
        " parallelism.sequenceParallel: false"
    )
    assert errors(resolved) == ([refusal] if is_refused else [])


def test_flash_attention_is_refused_without_its_package(resolve: Resolve) -> None:
    training = {"attentionBackend": "flash"}
    assert errors(resolve("llama3-8b", 8, training=training)) == [
        "spec.training.attentionBackend: flash requires FlashAttention, which the trainer image lacks; set"
        " auto or fused"
    ]
    assert errors(resolve("llama3-8b", 8, training=training, image="own")) == []
    for kernel in ("auto", "fused"):
        assert errors(resolve("llama3-8b", 8, training={"attentionBackend": kernel})) == []


def test_batch_invariance_is_refused_without_its_attention(resolve: Resolve) -> None:
    args = {"batch-invariant-mode": True, "flash-attention-version": "3"}
    settings = {"megatronArgs": args, "training": {"attentionBackend": "flash"}}
    assert errors(resolve("llama3-8b", 8, megatronArgs={"batch-invariant-mode": True})) == [
        "spec.megatronArgs.batch-invariant-mode: requires FlashAttention, which the trainer image lacks;"
        " leave it out"
    ]
    assert errors(resolve("llama3-8b", 8, **settings, image="own")) == []


@pytest.mark.parametrize("flag", ["use-flash-attn", "use-flash-attn-v2"])
def test_older_flags_of_flash_attention_are_left_out_instead(resolve: Resolve, flag: str) -> None:
    (found,) = errors(resolve("llama3-8b", 8, megatronArgs={flag: True}))
    assert "; leave it out: training.attentionBackend" in found


def test_no_recipe_of_the_catalog_has_flash_attention() -> None:
    assert [entry.name for entry in catalog.load() if entry.training.attention_backend == "flash"] == []
