"""CUDA graphs are refused with modules, and beside recomputation, with which Megatron does not start."""

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


CAPACITY = "moe-expert-capacity-factor"
PADDED = {CAPACITY: 1.0, "moe-pad-expert-input-to-capacity": True}
OTHERWISE = (
    "set moe-expert-capacity-factor and moe-pad-expert-input-to-capacity: true, or moe_router and"
    " moe_preprocess instead"
)


@pytest.mark.parametrize(
    ("recipe", "captured", "error"),
    [
        (
            "llama3-8b",
            graphs("transformer_engine", "attn", "moe_router"),
            "moe_router without experts; leave it out",
        ),
        ("llama3-8b", graphs("transformer_engine", "attn", "mlp"), None),
        (
            "mixtral-8x7b",
            graphs("transformer_engine", "moe"),
            f"moe, where the number of tokens of each expert varies; {OTHERWISE}",
        ),
        ("mixtral-8x7b", graphs("transformer_engine", "moe") | PADDED, None),
        (
            "mixtral-8x7b",
            graphs("local", "moe", "moe_preprocess") | PADDED,
            "moe and moe_router, a part of it; leave one of the two out",
        ),
        (
            "mixtral-8x7b",
            graphs("transformer_engine", "attn", "mlp"),
            "mlp, and the model has no dense layers (moeLayerFreq); leave it out",
        ),
        (
            "mixtral-8x7b",
            graphs("transformer_engine", "moe_preprocess"),
            "moe_preprocess without moe_router; set both, or leave it out",
        ),
        ("mixtral-8x7b", graphs("local", "moe_preprocess"), None),
        (
            "mixtral-8x7b",
            graphs("transformer_engine", "moe_router", "moe_preprocess") | {CAPACITY: 1.0},
            f"moe_preprocess with {CAPACITY}, with which it copies the number of tokens to the host;"
            f" leave moe_preprocess or {CAPACITY} out",
        ),
        ("mixtral-8x7b", graphs("transformer_engine", "moe_router") | {CAPACITY: 1.0}, None),
    ],
)
def test_graphs_have_only_modules_of_the_model_that_ask_nothing_of_the_host(
    resolve: Any, recipe: str, captured: dict[str, Any], error: str | None
) -> None:
    found = errors(resolve(recipe, 128, megatronArgs=captured))
    assert found == ([f"spec.megatronArgs.cuda-graph-modules: {error}"] if error else [])


def test_dense_layers_beside_experts_are_captured(resolve: Any) -> None:
    run = {"megatronArgs": graphs("transformer_engine", "mlp"), "parallelism": selective("layernorm")}
    assert errors(resolve("deepseek-v3", 1024, **run)) == []


def test_modules_by_their_older_name_are_refused_by_that_name(resolve: Any) -> None:
    args = {"cuda-graph-impl": "transformer_engine", "cuda-graph-scope": ["attn", "moe_router"]}
    (found,) = errors(resolve("llama3-8b", 8, megatronArgs=args))
    assert found == "spec.megatronArgs.cuda-graph-scope: moe_router without experts; leave it out"


def test_shared_experts_are_recomputed_or_overlapped(resolve: Any) -> None:
    flag = "moe-shared-expert-overlap"

    def run(**args: Any) -> list[str]:
        return errors(
            resolve("deepseek-v3", 1024, parallelism=selective("shared_experts"), megatronArgs=args)
        )

    assert run(**{flag: True}) == [
        f"spec.parallelism.recomputeModules: shared_experts with megatronArgs.{flag}: true; leave it or"
        f" megatronArgs.{flag} out"
    ]
    assert run() == run(**{flag: False}) == []
