"""Variables of `env` are refused with values against which Megatron has an assertion."""

from typing import Any

import pytest
from megatron_operator.api.errors import InvalidRecipeError

HOPPER, BLACKWELL, BRIDGE, CPU = "llama3-8b-64-gpus", "llama3.1-8b-queued", "llama3.1-8b-sft", "tiny-gpt"
TENSOR = {"parallelism": {"tensorModelParallelSize": 2, "contextParallelSize": 1}}
DATA_ONLY = {"parallelism": {"tensorModelParallelSize": 1, "contextParallelSize": 1}}
FSDP = {"parallelism": {"tensorModelParallelSize": 2, "useMegatronFsdp": True}}
EXPERTS = {
    "recipe": "mixtral-8x7b",
    "parallelism": {
        "tensorModelParallelSize": 2,
        "pipelineModelParallelSize": 1,
        "expertModelParallelSize": 8,
        "recomputeGranularity": "selective",
    },
    "megatronArgs": {"overlap-moe-expert-parallel-comm": True},
}
CONNECTIONS = "CUDA_DEVICE_MAX_CONNECTIONS"


def refusals(run: Any, golden: str, env: dict[str, str], **change: Any) -> list[str]:
    try:
        run(golden, lambda spec: spec.update(change | {"env": env})).build()
    except InvalidRecipeError as refused:
        return [str(error) for error in refused.errors]
    return []


@pytest.mark.parametrize(
    ("change", "env", "refused"),
    [
        ({}, {"NVTE_FUSED_ATTN": "0"}, [("NVTE_FUSED_ATTN", "'0'", "1", "auto")]),
        ({}, {"NVTE_FLASH_ATTN": "", "NVTE_UNFUSED_ATTN": "1"}, [("NVTE_FLASH_ATTN", "''", "1", "auto")]),
        (
            {"training": {"attentionBackend": "fused"}},
            {"NVTE_FLASH_ATTN": "1", "NVTE_UNFUSED_ATTN": "1"},
            [("NVTE_FLASH_ATTN", "'1'", "0", "fused"), ("NVTE_UNFUSED_ATTN", "'1'", "0", "fused")],
        ),
        (
            {"training": {"attentionBackend": "unfused"}},
            {"NVTE_FLASH_ATTN": "0", "NVTE_FUSED_ATTN": "0"},
            [],
        ),
        ({}, {"NVTE_FLASH_ATTN": "1", "NVTE_FUSED_ATTN": "1", "NVTE_DEBUG": "1"}, []),
    ],
)
def test_kernels_of_attention_are_those_of_the_field(
    run: Any, change: dict[str, Any], env: dict[str, str], refused: list[tuple[str, ...]]
) -> None:
    for recipe in (HOPPER, BLACKWELL):
        assert refusals(run, recipe, env, **DATA_ONLY, **change) == [
            f"spec.env.{name}: {value}, and Megatron requires {expected} with attentionBackend {backend};"
            " leave it out, and set training.attentionBackend"
            for name, value, expected, backend in refused
        ]


@pytest.mark.parametrize(
    ("recipe", "change", "value", "is_refused"),
    [
        (HOPPER, TENSOR, "8", True),
        (HOPPER, TENSOR, "1", False),
        (HOPPER, DATA_ONLY, "8", False),
        (HOPPER, EXPERTS, "8", False),
        (BLACKWELL, TENSOR, "8", False),
        (HOPPER, FSDP, "8", False),
        (CPU, {}, "8", False),
    ],
    ids=[
        *("TP", "TP with Megatron's value", "no TP", "overlapped experts", "TP on Blackwell", "FSDP"),
        "no GPU",
    ],
)
def test_connections_are_one_where_megatron_asserts_it(
    run: Any, recipe: str, change: dict[str, Any], value: str, is_refused: bool
) -> None:
    error = (
        f"spec.env.{CONNECTIONS}: '8', and Megatron requires 1 with TP or CP on GPUs before Blackwell; leave"
        " it out, or plan with TP 1 and CP 1"
    )
    assert refusals(run, recipe, {CONNECTIONS: value}, **change) == [error] * is_refused


def test_connections_of_fsdp_are_not_one(run: Any) -> None:
    assert refusals(run, HOPPER, {CONNECTIONS: "1"}, **FSDP) == [
        f"spec.env.{CONNECTIONS}: 1, which Megatron refuses with useMegatronFsdp; leave it out"
    ]


def test_hardware_that_is_not_known_may_have_more_connections(run: Any) -> None:
    planned = run(HOPPER, lambda spec: spec.update(TENSOR | {"env": {CONNECTIONS: "8"}}))
    profile = planned.resolved.profile.model_copy(update={"hardware": "some-gpu"})
    planned.resolved = planned.resolved.model_copy(update={"profile": profile})
    assert planned.env()[CONNECTIONS] == "8"


def test_megatron_bridge_reads_the_kernels_by_itself(run: Any) -> None:
    assert refusals(run, BRIDGE, {"NVTE_FUSED_ATTN": "0", CONNECTIONS: "8"}) == []
