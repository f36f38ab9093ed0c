"""Recommendations for each row of Megatron-Bridge's recipe index."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from megatron_operator.api.errors import FieldError, InvalidRecipeError
from megatron_operator.planner.candidates import Query
from megatron_operator.planner.recommend import recommend

from tests.unit.planner.recommendations import LIBRARY, PLATFORM, choices

QUICK_REFERENCE = [
    # What is wanted, as in Megatron-Bridge's recipe index: model, GPUs, mode, tokens of a sample, recipe.
    ("try it for the first time", "llama3.2-1b", 2, "pretrain", None, "llama3.2-1b"),
    ("fine-tune a 7-8B model", "8b", 2, "sft", None, "llama3-8b-sft"),
    ("fine-tune a 7-8B model", "8b", 8, "sft", None, "llama3-8b-sft"),
    ("fine-tune a 7-8B model", "7b", 4, "sft", None, "qwen2-7b-sft"),
    ("LoRA on 1 GPU", "8b", 1, "lora", None, "llama3-8b-lora"),
    ("pretrain a dense 70B", "70b", 32, "pretrain", None, "llama3-70b"),
    ("pretrain a dense 70B", "70b", 64, "pretrain", None, "llama3-70b"),
    ("train a small MoE", "moe", 8, "pretrain", None, "qwen3-30b-a3b"),
    ("train a large MoE (235B+)", "qwen3-235b", 256, "pretrain", None, "qwen3-235b-a22b"),
    ("train a large MoE (235B+)", "qwen3-235b", 512, "pretrain", None, "qwen3-235b-a22b"),
    ("long-context training", "llama3-8b", 16, "pretrain", 131072, "llama3-8b-128k"),
    ("VLM fine-tuning", "qwen3-vl-8b", 4, "sft", None, "qwen3-vl-8b-sft"),
    ("VLM fine-tuning", "qwen3-vl-8b", 8, "sft", None, "qwen3-vl-8b-sft"),
    ("diffusion training", "diffusion", 8, "pretrain", None, "wan2.1-1.3b"),
]
DECISION_TREE = [
    ("a recipe for size and mode: use it", "llama3-8b", 8, "pretrain", None, "llama3-8b"),
    ("no exact match: the closest size", "llama3-20b", 8, "pretrain", None, "llama3-8b"),
    ("SFT", "llama3-70b", 32, "sft", None, "llama3-70b-sft"),
    ("PEFT has the lowest requirement", "llama3-8b", 1, "lora", None, "llama3-8b-lora"),
    ("1 GPU: only PEFT", None, 1, "lora", None, "qwen2-7b-lora"),
    ("8 GPUs: 8B to 16B, small MoE", None, 8, "pretrain", None, "qwen3-30b-a3b"),
    ("16 to 64 GPUs: 70B dense, medium MoE", None, 32, "pretrain", None, "qwen2-72b"),
    ("128+ GPUs: 405B+, large MoE", None, 256, "pretrain", None, "deepseek-v3"),
    ("128+ GPUs: 405B+, large MoE", "deepseek", 256, "pretrain", None, "deepseek-v3"),
    ("128+ GPUs: 405B+, large MoE", "kimi", 512, "pretrain", None, "kimi-k2"),
    ("above 8K: the variant for it", "llama3-8b", 4, "pretrain", 16384, "llama3-8b-16k"),
    ("above 8K: the variant for it", "llama3-8b", 8, "pretrain", 65536, "llama3-8b-64k"),
    ("above 8K: the nearest variant", "llama3-8b", 16, "pretrain", 100_000, "llama3-8b-128k"),
    ("up to 8K: the default", "llama3-8b", 8, "pretrain", 4096, "llama3-8b"),
]
INDEX = [
    # Its tables: the smallest number of GPUs of each row.
    ("Llama", "llama3.2-1b", 2, "pretrain", None, "llama3.2-1b"),
    ("Llama", "llama3-8b", 2, "pretrain", 8192, "llama3-8b"),
    ("Llama", "llama3-70b", 32, "pretrain", 8192, "llama3-70b"),
    ("Llama", "llama3-70b", 64, "pretrain", 16384, "llama3-70b-16k"),
    ("Llama", "llama3-70b", 128, "pretrain", 65536, "llama3-70b-64k"),
    ("Llama", "llama3.1-405b", 128, "pretrain", 8192, "llama3.1-405b"),
    ("Llama", "llama3-8b", 2, "sft", None, "llama3-8b-sft"),
    ("Llama", "llama3-70b", 16, "sft", None, "llama3-70b-sft"),
    # The index has 64 for it, where full fine-tuning needs 110 GiB of each GPU; its function is for 128.
    ("Llama", "llama3.1-405b", 128, "sft", None, "llama3.1-405b-sft"),
    ("Llama", "llama3-70b", 8, "lora", None, "llama3-70b-lora"),
    ("Llama", "llama3.1-405b", 32, "lora", None, "llama3.1-405b-lora"),
    ("Qwen3 MoE", "qwen3-30b-a3b", 8, "pretrain", None, "qwen3-30b-a3b"),
    ("Qwen3 MoE", "qwen3-30b-a3b", 8, "sft", None, "qwen3-30b-a3b-sft"),
    ("Qwen3 MoE", "qwen3-235b-a22b", 256, "sft", None, "qwen3-235b-a22b-sft"),
    ("DeepSeek", "deepseek-v2-lite", 8, "pretrain", None, "deepseek-v2-lite"),
    ("DeepSeek", "deepseek-v2", 128, "pretrain", None, "deepseek-v2"),
    ("DeepSeek", "deepseek-v3", 256, "pretrain", None, "deepseek-v3"),
    ("GLM-4.5", "glm4.5-355b", 256, "pretrain", None, "glm4.5-355b"),
    ("GLM-4.5", "glm4.5-air", 32, "sft", None, "glm4.5-air-sft"),
    ("others", "nemotron4-15b", 8, "pretrain", None, "nemotron4-15b"),
]


@pytest.mark.parametrize(
    ("want", "model", "gpus", "mode", "seq", "best"), [*QUICK_REFERENCE, *DECISION_TREE, *INDEX]
)
def test_every_row_of_the_recipe_index_finds_its_recipe(
    want: str, model: str | None, gpus: int, mode: str, seq: int | None, best: str
) -> None:
    found = choices(model, gpus, mode=mode, seq=seq)
    assert found[0].entry.name == best, want
    assert found[0].plan is not None, found[0].reasons
    assert found[0].plan.world_size == gpus
    assert all(recommendation.reasons for recommendation in found)


WHOLE_INDEX = {
    # The models of its tables by mode: what Megatron-Bridge 0.6.2 has no function for is not in the list.
    ("pretrain", "sft", "lora"): (
        "llama3.2-1b llama3-8b llama3-70b llama3.1-405b"
        " qwen2-0.5b qwen2-1.5b qwen2-7b qwen2-72b"
        " qwen2.5-0.5b qwen2.5-1.5b qwen2.5-7b qwen2.5-14b qwen2.5-32b qwen2.5-72b"
        " qwen3-0.6b qwen3-1.7b qwen3-4b qwen3-8b qwen3-14b qwen3-32b qwen3-30b-a3b qwen3-235b-a22b"
        " glm4.5-355b glm4.5-air gemma2-2b gemma2-9b gemma2-27b gemma3-1b"
        " nemotron-h-8b nemotron-h-56b nemotron3-nano-30b-a3b nemotron3-super-120b-a12b nemotron-nano2-9b"
        " moonlight-16b-a3b olmoe-7b gpt-oss-20b gpt-oss-120b qwen3-vl-8b qwen3-vl-30b-a3b qwen3-vl-235b-a22b"
    ),
    ("pretrain", "sft"): "qwen3-next-80b-a3b minimax-m3 wan2.1-1.3b wan2.1-14b flux1-12b",
    ("pretrain",): (
        "deepseek-v2-lite deepseek-v2 deepseek-v3 nemotron4-15b nemotron4-340b gpt3-175b kimi-k2 qwen2.5-3b"
    ),
    ("sft", "lora"): (
        "ministral3-14b gemma3-vl-4b gemma3-vl-12b gemma3-vl-27b qwen2.5-vl-7b glm4.5v-106b"
        " nemotron-nano2-vl-12b"
    ),
}
MODELS = [(modes, model) for modes, models in WHOLE_INDEX.items() for model in models.split()]


@contextmanager
def without_planning() -> Iterator[None]:
    raise InvalidRecipeError([FieldError("spec", "is not planned", "read the name only")])
    yield


@pytest.mark.parametrize(("modes", "model"), MODELS, ids=[model for _, model in MODELS])
def test_every_model_of_the_recipe_index_is_found_in_every_mode_that_it_has(
    modes: tuple[str, ...], model: str
) -> None:
    for mode in ("pretrain", "sft", "lora"):
        query = Query(model, 8, "h100-sxm", mode, None)
        if mode not in modes:
            with pytest.raises(InvalidRecipeError, match=rf"no {mode} recipe like '{model}'; set --mode"):
                recommend(query, PLATFORM, LIBRARY, without_planning)
            continue
        best = recommend(query, PLATFORM, LIBRARY, without_planning)[0].entry
        assert mode in best.modes
        assert best.name in (model, f"{model}-{mode}")
