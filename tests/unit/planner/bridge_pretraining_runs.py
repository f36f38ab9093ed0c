"""Recipes of engine bridge that pretrain, as planned and as refused."""

from typing import Any

import pytest
from megatron_contract.bridge_run import BridgeRun, Value
from megatron_operator import catalog, manifests
from megatron_operator.api.errors import InvalidRecipeError
from megatron_operator.api.platform import PlatformConfig
from megatron_operator.api.recipe import MegatronRecipeSpec
from megatron_operator.planner import PlannedRun, admit

TOKENIZER = {"tokenizerType": "HuggingFaceTokenizer", "tokenizerModel": "/data/tokenizer"}
VOLUME = {"volume": {"claimName": "corpus"}}
BLEND: dict[str, Any] = {
    **VOLUME,
    "tokenizer": TOKENIZER,
    "blend": [{"path": "web_text_document", "weight": 0.7}, {"path": "code_text_document", "weight": 0.3}],
}
SOURCES: dict[str, Any] = {
    **VOLUME,
    "sources": [
        {"path": "/data/raw/*.jsonl", "format": "jsonl", "weight": 0.75},
        {"path": "/data/raw/docs.parquet", "column": "body", "weight": 0.25},
    ],
    "prepare": {"workers": 2},
}
INIT: dict[str, Any] = {"modelFolder": "/data/model"}


def planned(recipe: str = "deepseek-v2-lite", count: int = 8, **spec: Any) -> PlannedRun:
    asked = {"recipe": recipe, "accelerator": {"type": "h100-sxm", "count": count}, "init": INIT}
    platform = {"bridgeImage": "bridge", "accelerators": {"h100-sxm": {}, "cpu": {"platform": "cpu"}}}
    return admit(
        "run",
        MegatronRecipeSpec.model_validate(asked | {"data": BLEND} | spec),
        PlatformConfig.model_validate(platform),
        catalog.load(),
    )


def overrides(recipe: str = "deepseek-v2-lite", count: int = 8, **spec: Any) -> dict[str, Value]:
    return dict(BridgeRun.from_arguments(planned(recipe, count, **spec).arguments).overrides)


def refusals(recipe: str = "deepseek-v2-lite", count: int = 8, **spec: Any) -> list[str]:
    with pytest.raises(InvalidRecipeError) as refused:
        manifests.build(planned(recipe, count, **spec), "")
    return [f"{error.field}: {error.message}; {error.fix}" for error in refused.value.errors]
