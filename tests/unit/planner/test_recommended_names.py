"""Recommendations for a model that is named: by the catalog, by Hugging Face, or by neither."""

import pytest
from megatron_operator.api.errors import InvalidRecipeError
from megatron_operator.catalog.hugging_face import NAMES
from megatron_operator.catalog.unsupported_models import why_unsupported

from tests.unit.planner.recommendations import LIBRARY, choices


@pytest.mark.parametrize(
    ("model", "gpus", "mode", "best"),
    [
        ("Qwen/Qwen2.5-7B", 8, "pretrain", "qwen2.5-7b"),
        ("qwen/qwen2.5-7b-instruct", 8, "sft", "qwen2.5-7b-sft"),
        ("mistralai/Mixtral-8x7B-v0.1", 64, "pretrain", "mixtral-8x7b"),
        ("Qwen/Qwen3-8B-Base", 8, "pretrain", "qwen3-8b"),
        ("meta-llama/Llama-3.1-8B", 8, "pretrain", "llama3.1-8b"),
        ("deepseek-ai/DeepSeek-V3", 1024, "pretrain", "deepseek-v3"),
        ("deepseek-ai/DeepSeek-V3", 64, "pretrain", "deepseek-v3"),
        ("zai-org/GLM-4.7-Flash", 16, "pretrain", "glm4.7-flash"),
        ("zai-org/GLM-5.2", 416, "pretrain", "glm5.2"),
        ("inclusionAI/Ling-mini-base-2.0", 8, "pretrain", "ling-mini-2.0"),
        ("baidu/ERNIE-4.5-21B-A3B-Base-PT", 16, "pretrain", "ernie4.5-21b-a3b"),
        ("tencent/Hy3-preview-Base", 256, "pretrain", "hy3"),
        ("mistralai/Mistral-Small-24B-Base-2501", 16, "pretrain", "mistral-small-24b"),
        ("XiaomiMiMo/MiMo-7B-Base", 8, "pretrain", "mimo-7b"),
        ("meta-llama/Llama-3.3-70B-Instruct", 32, "sft", "llama3.1-70b-sft"),
        ("7b", 8, "pretrain", "llama2-7b"),
        ("llama3-8b", 32, "lora", "llama3-8b-lora"),
        ("mine/llama3-8b", 8, "pretrain", "llama3-8b"),
        ("qwen3-next-80b-a3b", 64, "pretrain", "qwen3-next-80b-a3b"),
    ],
)
def test_a_model_that_is_named_is_never_replaced(model: str, gpus: int, mode: str, best: str) -> None:
    assert choices(model, gpus, mode=mode)[0].entry.name == best


@pytest.mark.parametrize(
    ("model", "gpus", "mode", "reason"),
    [
        ("meta-llama/Llama-3.3-70B-Instruct", 8, "lora", "has the layers of llama3.1-70b"),
        ("deepseek-ai/DeepSeek-R1", 256, "pretrain", "has the layers of deepseek-v3"),
        ("zai-org/GLM-4.7", 128, "pretrain", "has the layers of glm4.5-355b"),
        ("zai-org/GLM-4.7", 128, "sft", "has the layers of glm4.5-355b"),
        ("glm4.7", 16, "lora", "has the layers of glm4.5-355b"),
        ("GLM-4.7", 128, "pretrain", "has the layers of glm4.5-355b"),
        ("zai-org/GLM-4.7-FP8", 128, "pretrain", "has the layers of glm4.5-355b"),
        # Also where it does not fit.
        ("zai-org/GLM-4.7", 64, "pretrain", "has the layers of glm4.5-355b"),
        ("nvidia/Llama-3.1-Nemotron-Nano-8B-v1", 8, "sft", "has the layers of llama3.1-8b"),
    ],
)
def test_another_release_names_the_model_whose_layers_it_has(
    model: str, gpus: int, mode: str, reason: str
) -> None:
    assert choices(model, gpus, mode=mode)[0].reasons[0] == f"{model} {reason}"


@pytest.mark.parametrize("model", ["meta-llama/Llama-3.1-70B-Instruct", "llama3.1-70b", "deepseek-v3"])
def test_the_model_of_the_entry_itself_has_no_such_reason(model: str) -> None:
    assert not any("has the layers of" in reason for reason in choices(model, 256)[0].reasons)


@pytest.mark.parametrize(
    ("function", "gpus", "mode", "best"),
    [
        ("llama3_8b_pretrain_config", 8, "pretrain", "llama3-8b"),
        ("qwen3_30b_a3b_sft_config", 8, "sft", "qwen3-30b-a3b-sft"),
        ("llama31_8b_peft_1gpu_h100_bf16_config", 1, "lora", "llama3.1-8b-lora"),
    ],
)
def test_a_function_of_megatron_bridge_names_its_model(
    function: str, gpus: int, mode: str, best: str
) -> None:
    found = choices(function, gpus, mode=mode)[0]
    assert found.entry.name == best
    assert "parameters" not in found.reasons[0]


@pytest.mark.parametrize(
    ("model", "mode", "fix"),
    [
        ("mistralai/Mistral-7B-v0.3", "sft", "set --mode pretrain, for which it has mistral-7b"),
        ("Qwen/Qwen2.5-3B", "sft", "set --mode pretrain, for which it has qwen2.5-3b"),
        ("qwen3-next-80b-a3b", "lora", "set --mode sft, for which it has qwen3-next-80b-a3b-sft"),
        ("mixtral-8x7b", "lora", "set --mode pretrain, for which it has mixtral-8x7b"),
    ],
)
def test_a_model_that_has_recipes_of_other_modes_is_answered_with_these(
    model: str, mode: str, fix: str
) -> None:
    with pytest.raises(InvalidRecipeError, match=f"no {mode} recipe like '{model}'; {fix}") as refused:
        choices(model, 8, mode=mode)
    assert refused.value.errors[0].field == "--mode"


def test_models_of_its_size_are_named_where_a_model_cannot_be_fine_tuned() -> None:
    with pytest.raises(InvalidRecipeError, match=r"size: qwen2-7b-lora or qwen2\.5-7b-lora$"):
        choices("mistralai/Mistral-7B-v0.3", 8, mode="lora")


def test_only_layouts_of_functions_that_the_operator_starts_count_as_published() -> None:
    # Its function for 8 GPUs is for samples of 32,768 tokens, split over ranks.
    best = choices("qwen3-8b", 8, mode="sft")[0]
    assert not best.published
    assert best.reasons[0] == "its layout is planned; one for 4 x h100-sxm/h200 is published"


@pytest.mark.parametrize("model", ["mosaicml/mpt-7b", "mpt-7b", "Qwen/Qwen9-7B"])
def test_a_model_that_the_catalog_lacks_is_not_replaced_by_one_of_its_size(model: str) -> None:
    with pytest.raises(InvalidRecipeError, match=f"no pretrain recipe like '{model}'"):
        choices(model, 8)


@pytest.mark.parametrize(
    ("model", "reason"),
    [
        ("XiaomiMiMo/MiMo-V2-Flash", "differ in query groups and rotary base"),
        ("moonshotai/Kimi-K3", "it is not in Megatron-Bridge 0.6.2"),
        ("tiiuae/falcon-7b", "it is not in Megatron-Bridge 0.6.2, which has Falcon-H1"),
    ],
)
@pytest.mark.parametrize("mode", ["pretrain", "lora"])
def test_a_known_model_that_no_recipe_trains_is_answered_with_the_reason(
    model: str, reason: str, mode: str
) -> None:
    with pytest.raises(InvalidRecipeError, match=f"no {mode} recipe like '{model}': .*{reason}") as refused:
        choices(model, 256, mode=mode)
    assert "did you mean" not in str(refused.value)


def test_the_reason_of_a_model_is_not_that_of_one_whose_name_goes_on() -> None:
    assert why_unsupported("moonshotai/Kimi-K3") is not None
    assert why_unsupported("moonshotai/Kimi-K35") is None
    assert why_unsupported("moonshotai/Kimi-K2") is None


@pytest.mark.parametrize(
    ("model", "name", "reason"),
    [
        ("tiiuae/Falcon-H1-7B-Base", "falcon-h1-7b", "the kernels of its state-space layers"),
        ("tiiuae/Falcon-H1-1.5B-Deep-Instruct", "falcon-h1-1.5b-deep", "kernels of its state-space layers"),
    ],
)
def test_a_model_that_is_planned_only_is_named_with_its_reason(model: str, name: str, reason: str) -> None:
    best = choices(model, 256)[0]
    assert best.entry.name == name
    assert best.plan is not None
    assert not best.runnable
    assert any("planned only" in each and reason in each for each in best.reasons)


@pytest.mark.parametrize("model", ["MiniMaxAI/MiniMax-M2", "MiniMaxAI/MiniMax-M2.5", "minimax-m2.7"])
def test_releases_of_the_same_layers_belong_to_one_recipe(model: str) -> None:
    best = choices(model, 256)[0]
    assert best.entry.name == "minimax-m2"
    assert best.runnable


def test_a_model_whose_kernels_the_image_lacks_is_named_with_them() -> None:
    best = choices("qwen3-next-80b-a3b-sft", 64, mode="sft")[0]
    (reason,) = (each for each in best.reasons if each.startswith("planned only"))
    assert "lacks the kernels of its gated delta net (flash-linear-attention)" in reason


def test_another_mode_of_a_model_is_offered() -> None:
    expected = "set --mode pretrain, for which it has falcon-h1-7b, or name another"
    with pytest.raises(InvalidRecipeError, match=expected):
        choices("tiiuae/Falcon-H1-7B-Base", 256, mode="lora")


def test_a_release_of_llama_nemotron_belongs_to_a_recipe_that_starts() -> None:
    best = choices("nvidia/Llama-3_3-Nemotron-Super-49B-v1_5", 256)[0]
    assert best.entry.name == "llama3.3-nemotron-super-49b"
    assert best.runnable


def test_every_name_of_hugging_face_belongs_to_an_entry() -> None:
    names = LIBRARY.names()
    missing = [entry for entry in NAMES.values() if not any(name.startswith(entry) for name in names)]
    assert missing == []


def test_a_later_generation_is_not_the_model_that_is_named() -> None:
    with pytest.raises(InvalidRecipeError, match="no sft recipe like 'kimi-k2'; set --mode pretrain"):
        choices("kimi-k2", 256, mode="sft")


@pytest.mark.parametrize(
    ("model", "mode", "best"),
    [
        ("LGAI-EXAONE/K-EXAONE-2.0-750B-A37B", "pretrain", "k-exaone2-750b-a37b"),
        ("stepfun-ai/Step-3.5-Flash", "pretrain", "step3.5-196b-a11b"),
        ("black-forest-labs/FLUX.1-dev", "pretrain", "flux1-12b"),
        ("Qwen/Qwen3-Omni-30B-A3B-Instruct", "sft", "qwen3-omni-30b-a3b-sft"),
    ],
)
def test_the_source_of_an_entry_is_its_name_too(model: str, mode: str, best: str) -> None:
    assert choices(model, 64, mode=mode)[0].entry.name == best
