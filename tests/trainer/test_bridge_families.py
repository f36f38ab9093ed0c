"""Every architecture that the operator fine-tunes: a small random model is imported and trained.

With the arguments that the operator renders, on two ranks; then the weights are exported, adapters merged.
"""

import importlib.util
import os
from pathlib import Path
from typing import Any

import pytest
from megatron_contract.exit_codes import ExitCode
from megatron_trainer.weights import huggingface_folder
from megatron_trainer.weights.tensors import records

from testkit.fine_tuned import CASES, Case
from testkit.weights.families import by_name, write_model
from testkit.weights.warm import WarmConverter
from tests.trainer.bridge_run import LENGTH, RecipeGang, in_float32, write_samples, write_tokenizer
from tests.trainer.warm_process import WarmProcess

ITERATIONS = 2
CLOSE, ROUNDED = 1e-5, 0.02
"""Largest differences of logits up to 2, in float32."""
NEMOTRON_3 = {"Nemotron 3 Nano", "Nemotron 3 Super", "Nemotron 3.5 Lightning"}
WITH_EXPERTS = NEMOTRON_3 | {
    *("Qwen3-MoE", "GPT-OSS", "GLM-4.5 without MTP", "Moonlight", "K-EXAONE", "OLMoE"),
    *("K-EXAONE 2.0", "GLM-5", "GLM-5.2"),
}
ATTENTION = {"q_proj", "k_proj", "v_proj", "o_proj"}
LATENT = {"q_proj", "kv_a_proj_with_mqa", "kv_b_proj", "o_proj"}
LOW_RANK = LATENT - {"q_proj"} | {"q_a_proj", "q_b_proj"}
OF_V4 = {"wq_a", "wq_b", "wkv", "wo_a", "wo_b"}
ADAPTED = {
    "DeepSeek-V4": OF_V4,
    "DeepSeek-V4 without MTP": OF_V4,
    "Moonlight": LATENT,
    "GLM-5": LOW_RANK,
    "GLM-5.2": LOW_RANK,
}
"""Family -> the layers that get an adapter, where its attention is not made of queries, keys and values."""
PREDICTION = {"GLM-5": "model.layers.2.", "GLM-5.2": "model.layers.4."}
"""Family -> what names of its multi-token prediction begin with, unless it is `mtp.`."""
SELECTING = {"DeepSeek-V4", "DeepSeek-V4 without MTP", "GLM-5", "GLM-5.2"}
"""Families whose layers attend to the tokens that an indexer selects: rounded weights select others."""
HYBRID = NEMOTRON_3 | {"Nemotron-H"}
STATE_SPACE = {"in_proj", "out_proj"}
_EP: dict[str, int | bool] = {
    **{"tensorModelParallelSize": 1, "expertModelParallelSize": 2, "sequenceParallel": False},
}
RESUMED = (
    *(case for case in CASES if case.recipe == "deepseek-v4-flash-sft"),
    *(case for case in CASES if case.recipe in ("nemotron-nano2-9b-lora", "nemotron3-ultra-550b-a55b-sft")),
    *(case for case in CASES if case.recipe == "glm5.2-sft" and "contextParallelSize" in case.parallelism),
    # This function saves no optimizer.
    Case("nemotron_3_5_lightning_sft_openmathinstruct2_packed_config", "Nemotron 3.5 Lightning", _EP),
)
pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("modelopt") is None or "MEGATRON_BRIDGE_TRAINING" not in os.environ,
    reason="takes minutes: run make bridge-training",
)


class Models:
    """Per family a folder with its model, the checkpoint imported from it, and samples."""

    def __init__(self, converter: WarmConverter, factory: pytest.TempPathFactory) -> None:
        self._converter, self._factory = converter, factory
        self._found: dict[str, Path] = {}

    def __getitem__(self, name: str) -> Path:
        if name not in self._found:
            folder = self._factory.mktemp("model")
            write_model(by_name(name), folder / "model", "bfloat16")
            write_tokenizer(folder / "model")
            write_samples(folder / "samples")
            words = ["import", "--from", folder / "model", "--to", folder / "weights"]
            ended = self._converter.convert(*words, log=folder / "log")
            assert ended.code == 0, ended.output
            self._found[name] = folder
        return self._found[name]


@pytest.fixture(scope="module")
def imported(converter: WarmConverter, tmp_path_factory: pytest.TempPathFactory) -> Models:
    """The models that were asked for."""
    return Models(converter, tmp_path_factory)


def _tensors(folder: Path) -> dict[str, Any]:
    return records(huggingface_folder.read(folder, "", weights=True).tensors())


def _spec(case: Case, iterations: int = ITERATIONS) -> dict[str, Any]:
    return {
        "recipe": case.recipe,
        "accelerator": {"type": "cpu", "count": case.ranks, "perNode": case.ranks},
        "init": {"modelFolder": "/data/model", "from": {"megatron": {"path": "/data/weights"}}},
        "data": {"volume": {"claimName": "corpus"}, "datasetRoot": "samples"},
        "parallelism": case.parallelism,
        "training": {
            **{"seqLength": LENGTH, "globalBatchSize": 4, "microBatchSize": 1, "trainIters": iterations},
            **{"lr": 0.01, "lrWarmupIters": 1, "lrDecayIters": 100, "evalIters": 0},
        },
        "checkpoint": {"saveInterval": ITERATIONS, "volume": {"size": "100Ti"}},
    }


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.recipe} {case.parallelism}")
def test_a_small_model_is_trained_as_the_operator_renders_it_and_exported(
    case: Case,
    imported: Models,
    converter: WarmConverter,
    tmp_path: Path,
    warm_bridge: WarmProcess,
) -> None:
    run = RecipeGang(tmp_path, warm_bridge, imported[case.family], _spec(case), case.overrides)
    run.run_to_end()

    assert sorted(run.losses()) == list(range(1, ITERATIONS + 1))
    source, exported = imported[case.family] / "model", tmp_path / "exported"
    if case.family in SELECTING:
        source = in_float32(source, tmp_path / "base")
    ended = converter.convert(
        "export", "--from", run.save, "--to", exported, "--base", source, log=tmp_path / "log"
    )
    assert ended.code == 0, ended.output
    result = tmp_path / "logits.json"
    if case.recipe.endswith("-lora"):
        found = converter.merged_logits(run.save, source, exported, result)
        # Weights merged into those of bfloat16 are rounded to it, the adapters beside the weights are not.
        assert found["merged"] < (CLOSE if case.family in SELECTING else ROUNDED) < found["unmerged"]
    else:
        assert converter.trained_logits(run.save, exported, result)["difference"] < CLOSE
    before, after = _tensors(source), _tensors(exported)
    changes = {name for name in before if before[name] != after[name]}
    # The head of DeepSeek-V4's streams has names without a dot.
    changed = {name.split(".")[-2:][0] for name in changes}
    assert before.keys() == after.keys()
    attention = ADAPTED.get(case.family, ATTENTION)
    adapted = attention | STATE_SPACE if case.family in HYBRID else attention
    assert changed >= adapted
    if case.recipe.endswith("-lora") and case.family in WITH_EXPERTS:
        assert changed == adapted
    if by_name(case.family).predicts:
        before_each = PREDICTION.get(case.family, "mtp.")
        predicting = {name.split(".")[-2] for name in changes if name.startswith(before_each)}
        assert predicting >= attention


@pytest.mark.parametrize(
    ("recipe", "targets"),
    [
        ("gemma3-1b-lora", ["linear_qkv", "linear_proj", "linear_fc2"]),
        ("exaone4-1.2b-lora", ["linear_qkv", "linear_proj", "linear_fc2"]),
        ("moonlight-16b-a3b-lora", ["linear_q_proj", "linear_kv_up_proj", "linear_proj"]),
        ("nemotron-nano2-9b-lora", ["linear_qkv", "linear_proj", "out_proj"]),
    ],
)
def test_dora_is_merged_as_it_was_trained(
    recipe: str,
    targets: list[str],
    imported: Models,
    converter: WarmConverter,
    tmp_path: Path,
    warm_bridge: WarmProcess,
) -> None:
    """But for gates, whose magnitudes the comparison would read by rank."""
    case = next(case for case in CASES if case.recipe == recipe)
    spec = _spec(case, 2 * ITERATIONS) | {"peft": {"type": "dora", "targetModules": targets}}
    run = RecipeGang(tmp_path, warm_bridge, imported[case.family], spec, case.overrides)
    run.run_to_end()

    source, exported = imported[case.family] / "model", tmp_path / "exported"
    words = ("export", "--from", run.save, "--to", exported, "--base", source)
    ended = converter.convert(*words, log=tmp_path / "log")
    assert ended.code == 0, ended.output
    found = converter.merged_logits(run.save, source, exported, tmp_path / "logits.json")
    assert found["merged"] < ROUNDED < found["unmerged"]


def test_sequences_that_are_split_over_ranks_have_the_losses_of_whole_ones(
    imported: Models, tmp_path_factory: pytest.TempPathFactory, warm_bridge: WarmProcess
) -> None:
    """But for that of multi-token prediction, which Megatron averages over the tokens of each rank."""
    losses = []
    for case in (case for case in CASES if case.recipe == "glm5.2-sft"):
        folder = tmp_path_factory.mktemp("run")
        # The first step has a learning rate of 0: from the third loss on weights differ by what was learned.
        spec, overrides = _spec(case, 2 * ITERATIONS), {"model.mtp_loss_scaling_factor": 0.0}
        run = RecipeGang(folder, warm_bridge, imported[case.family], spec, overrides)
        run.run_to_end()
        losses.append([loss for _, (loss,) in sorted(run.losses().items())])
    assert [len(each) for each in losses] == [2 * ITERATIONS] * 2
    assert losses[0] == pytest.approx(losses[1], rel=1e-3)


@pytest.mark.parametrize("case", RESUMED, ids=lambda case: case.recipe)
def test_a_killed_run_resumes_with_the_losses_of_an_undisturbed_one(
    case: Case, imported: Models, tmp_path_factory: pytest.TempPathFactory, warm_bridge: WarmProcess
) -> None:

    def gang(name: str, iterations: int) -> RecipeGang:
        folder = tmp_path_factory.mktemp(name)
        spec = _spec(case, iterations)
        return RecipeGang(folder, warm_bridge, imported[case.family], spec, case.overrides)

    undisturbed = gang("undisturbed", 2 * ITERATIONS)
    undisturbed.run_to_end()
    run = gang("killed", 100)
    run.run_with_a_killed_rank(ITERATIONS + 1, until=2 * ITERATIONS)

    expected = undisturbed.distinct_losses()
    assert sorted(expected) == list(range(1, 2 * ITERATIONS + 1))
    assert run.distinct_losses(until=2 * ITERATIONS) == expected
    assert run.incidents()[0]["resumedFrom"] >= ITERATIONS


def test_weights_without_the_prediction_of_the_recipe_end_the_run_before_it_trains(
    imported: Models, tmp_path: Path, warm_bridge: WarmProcess
) -> None:
    (case,) = (case for case in CASES if case.recipe == "nemotron3.5-lightning-sft")
    run = RecipeGang(tmp_path, warm_bridge, imported["Nemotron 3 Nano"], _spec(case))
    run.run_to_end(int(ExitCode.BAD_DATA))
    assert "mtp_hybrid_override_pattern None instead of '*E'" in run.termination(0)["message"]


def test_weights_of_another_model_than_the_recipes_end_the_run_before_it_trains(
    imported: Models, tmp_path: Path, warm_bridge: WarmProcess
) -> None:
    (case,) = (case for case in CASES if case.recipe == "nemotron-nano2-9b-sft")
    run = RecipeGang(tmp_path, warm_bridge, imported[case.family], _spec(case))
    run.run_to_end(int(ExitCode.BAD_DATA))
    message = run.termination(0)["message"]
    assert "config.json is of another model than the recipe's: hybrid_layer_pattern 'M-M*M-' " in message
    assert "hidden_size 64 instead of 4480" in message
