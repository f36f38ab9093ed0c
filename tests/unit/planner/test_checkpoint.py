"""Sizes of checkpoints. `make test-gpu-path` compares them with what Megatron plans to write."""

from pathlib import Path
from typing import Any

import pytest
from megatron_operator.api.errors import InvalidRecipeError
from megatron_operator.manifests.grace import grace_seconds
from megatron_operator.planner import plan
from megatron_operator.planner.estimate.checkpoint import checkpoint_bytes

ROOT = Path(__file__).parents[3]
AWARE_IN_FP8 = {"usePrecisionAwareOptimizer": True, "fp8Format": "hybrid"}
WHOLE = {"useDistributedOptimizer": False, "overlapParamGather": False}


@pytest.mark.parametrize(
    ("training", "parallelism", "expected"),
    [
        ({}, {}, 14),
        ({"bf16": False, "fp16": True}, {}, 14),
        ({"usePrecisionAwareOptimizer": True}, {}, 12),
        (AWARE_IN_FP8 | {"fp8Recipe": "delayed"}, {}, 12),
        (AWARE_IN_FP8 | {"fp8Recipe": "tensorwise"}, {}, 14),
        ({"bf16": False}, {}, 16),
        ({"bf16": False}, WHOLE, 12),
        ({}, {"useMegatronFsdp": True}, 12),
    ],
)
def test_bytes_of_a_parameter_follow_precision_and_optimizer(
    resolve: Any, training: dict[str, Any], parallelism: dict[str, Any], expected: int
) -> None:
    resolved = resolve("llama3-8b", 64, training=training, parallelism=parallelism)
    planned = plan(resolved)
    assert planned.parameters_padded is not None
    assert checkpoint_bytes(resolved, planned) == expected * planned.parameters_padded


def test_a_checkpoint_in_fp32_has_a_longer_grace_period(resolve: Any) -> None:
    seconds = {
        bf16: grace_seconds(resolved, plan(resolved))
        for bf16 in (True, False)
        for resolved in [resolve("llama3-70b", 32, training={"bf16": bf16}, checkpoint={"asyncSave": False})]
    }
    assert seconds[False] > seconds[True]


def test_an_optimizer_that_cannot_resume_is_refused(resolve: Any) -> None:
    with pytest.raises(InvalidRecipeError, match="cannot load a checkpoint of sgd") as refused:
        plan(resolve("llama3-8b", 8, training={"optimizer": "sgd"}))
    assert [error.field for error in refused.value.errors] == ["spec.training.optimizer"]


@pytest.mark.parametrize("optimizer", ["muon", "dist_muon"])
def test_an_optimizer_whose_package_the_image_lacks_is_refused(resolve: Any, optimizer: str) -> None:
    with pytest.raises(InvalidRecipeError, match=f"{optimizer}: .* emerging-optimizers") as refused:
        plan(resolve("llama3-8b", 8, training={"optimizer": optimizer}))
    assert [error.field for error in refused.value.errors] == ["spec.training.optimizer"]


def test_the_trainer_image_lacks_the_package_of_muon() -> None:
    locks = sorted((ROOT / "trainer-image").glob("requirements-*.txt"))
    assert locks
    assert not [lock.name for lock in locks if "emerging-optimizers" in lock.read_text()]
