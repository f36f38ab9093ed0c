"""Flags that Megatron accepts alone: the operator refuses the combinations that Megatron refuses."""

from typing import Any

import cases
import pytest
from megatron_operator.api.errors import InvalidRecipeError
from megatron_operator.planner.checks.passthrough import passthrough_arguments
from stages import Megatron, NotAccepted

MOCK = {"data": {"mockData": True}}
DENSE = MOCK | {"recipe": "llama3-8b", "accelerator": {"type": "h100-sxm", "count": 8}}
EXPERTS = MOCK | {"recipe": "mixtral-8x7b", "accelerator": {"type": "h100-sxm", "count": 64}}
SHARED = MOCK | {
    "recipe": "deepseek-v3",
    "accelerator": {"type": "h100-sxm", "count": 1024},
    "parallelism": {"recomputeGranularity": "selective", "recomputeModules": ["shared_experts"]},
}
CAPACITY = {"moe-expert-capacity-factor": 1.0}
PADDED = CAPACITY | {"moe-pad-expert-input-to-capacity": True}


def graphs(*modules: str, kind: str = "transformer_engine") -> dict[str, Any]:
    return {"cuda-graph-impl": kind, "cuda-graph-modules": list(modules)}


REFUSED = [
    (DENSE, graphs("attn", "moe_router"), "only supported for MoE"),
    (DENSE, graphs("moe_preprocess"), "only supported with moe_router"),
    (DENSE, graphs("moe_preprocess", kind="local"), "only supported for MoE"),
    (EXPERTS, graphs("moe"), "only supported with drop-padding MoE"),
    (EXPERTS, graphs("moe") | CAPACITY, "only supported with drop-padding MoE"),
    (EXPERTS, graphs("moe", "moe_router") | PADDED, "must not contain both"),
    (EXPERTS, graphs("moe", "moe_preprocess", kind="local") | PADDED, "must not contain both"),
    (EXPERTS, graphs("attn", "mlp"), "only supported for dense layers"),
    (EXPERTS, graphs("moe_preprocess"), "only supported with moe_router"),
    (EXPERTS, graphs("moe_router", "moe_preprocess") | CAPACITY, "DtoH copies"),
    (DENSE, {"eval-micro-batch-size": 3}, "must be divisible by"),
    (DENSE, {"eval-global-batch-size": 7}, "must be divisible by"),
    (SHARED, {"moe-shared-expert-overlap": True}, "cannot work with --moe-shared-expert-overlap"),
]
ACCEPTED = [
    (DENSE, graphs("attn", "mlp")),
    (EXPERTS, graphs("moe") | PADDED),
    (EXPERTS, graphs("moe_router")),
    (EXPERTS, graphs("moe_preprocess", kind="local")),
    (EXPERTS, graphs("moe_router", "moe_preprocess") | PADDED),
    (SHARED, graphs("mlp")),
    (DENSE, {"eval-micro-batch-size": 4, "eval-global-batch-size": 64}),
]


@pytest.mark.parametrize(("base", "flags", "reason"), REFUSED)
def test_combinations_that_megatron_refuses_are_refused(
    megatron: Megatron, base: dict[str, Any], flags: dict[str, Any], reason: str
) -> None:
    case = cases.build("base", base, packages=())
    with pytest.raises(NotAccepted, match=reason):
        megatron.start([*case.words, *passthrough_arguments(flags)], case.world_size)
    with pytest.raises(InvalidRecipeError):
        cases.build("refused", base | {"megatronArgs": flags}, packages=())


@pytest.mark.parametrize(("base", "flags"), ACCEPTED)
def test_combinations_that_megatron_accepts_are_planned(
    megatron: Megatron, base: dict[str, Any], flags: dict[str, Any]
) -> None:
    case = cases.build("accepted", base | {"megatronArgs": flags}, packages=())
    megatron.start(case.words, case.world_size)
