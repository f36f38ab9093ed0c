"""CUDA graphs are refused beside recomputation with which Megatron does not start."""

from typing import Any

import pytest

from tests.unit.planner.planning_errors import errors


def graphs(kind: str, *modules: str) -> dict[str, Any]:
    return {"cuda-graph-impl": kind, "te-rng-tracker": True} | (
        {"cuda-graph-modules": list(modules)} if modules else {}
    )


def selective(*modules: str) -> dict[str, Any]:
    return {"recomputeGranularity": "selective"} | ({"recomputeModules": list(modules)} if modules else {})


@pytest.mark.parametrize(
    ("kind", "modules", "recomputed", "is_refused"),
    [
        ("transformer_engine", ("attn", "moe_router", "moe_preprocess"), ("moe",), True),
        ("transformer_engine", ("attn",), ("moe",), False),
        ("transformer_engine", ("attn", "moe_router", "moe_preprocess"), ("moe_act",), False),
        ("local", ("attn", "moe_router", "moe_preprocess"), ("moe",), False),
    ],
)
def test_a_part_of_recomputed_experts_is_not_captured(
    resolve: Any, kind: str, modules: tuple[str, ...], recomputed: tuple[str, ...], is_refused: bool
) -> None:
    run = {"megatronArgs": graphs(kind, *modules), "parallelism": selective(*recomputed)}
    found = errors(resolve("qwen3-30b-a3b", 32, **run))
    error = (
        "spec.megatronArgs.cuda-graph-modules: moe_router with recomputeModules moe: a graph cannot have a"
    )
    assert [each.startswith(error) for each in found] == [True] * is_refused


@pytest.mark.parametrize(
    ("captured", "recomputed", "error"),
    [
        (
            graphs("local"),
            (),
            "cuda-graph-impl: local with core_attn recomputed and model.attentionDropout 0.1",
        ),
        (
            graphs("transformer_engine", "attn"),
            ("core_attn",),
            "cuda-graph-modules: attn with core_attn recomputed and model.attentionDropout 0.1",
        ),
        (
            {"cuda-graph-impl": "transformer_engine", "cuda-graph-scope": ["full"]},
            ("mlp",),
            "cuda-graph-impl: transformer_engine with mlp recomputed and model.hiddenDropout 0.1",
        ),
        (graphs("transformer_engine", "mlp"), ("core_attn",), None),
        (graphs("transformer_engine", "attn"), ("mlp",), None),
        (graphs("none"), (), None),
    ],
)
def test_what_draws_random_numbers_is_not_recomputed_in_a_graph(
    resolve: Any, captured: dict[str, Any], recomputed: tuple[str, ...], error: str | None
) -> None:
    run = {"megatronArgs": captured, "parallelism": selective(*recomputed)}
    found = errors(resolve("gpt3-1.3b", 8, **run))
    assert [each.startswith(f"spec.megatronArgs.{error}: ") for each in found] == [True] * (error is not None)
    without = {"attentionDropout": 0, "hiddenDropout": 0}
    assert errors(resolve("gpt3-1.3b", 8, **run, model=without)) == []
