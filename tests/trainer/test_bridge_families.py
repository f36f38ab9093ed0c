"""Every architecture that the operator fine-tunes: a small random model is imported and trained.

With the arguments that the operator renders, on two ranks; then the weights are exported, adapters merged.
"""

import importlib.util
import os
from pathlib import Path
from typing import Any

import pytest
from megatron_trainer.weights import huggingface_folder
from megatron_trainer.weights.tensors import records

from testkit.fine_tuned import CASES, Case
from testkit.weights.families import by_name, write_model
from testkit.weights.warm import WarmConverter
from tests.trainer.bridge_run import LENGTH, RecipeGang, write_samples, write_tokenizer
from tests.trainer.warm_process import WarmProcess

ITERATIONS = 2
WITH_EXPERTS = {"Qwen3-MoE", "GPT-OSS"}
ATTENTION = {"q_proj", "k_proj", "v_proj", "o_proj"}
pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("modelopt") is None or "MEGATRON_BRIDGE_TRAINING" not in os.environ,
    reason="takes minutes: run make bridge-training",
)


@pytest.fixture(scope="module")
def imported(converter: WarmConverter, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Per family a folder with its model, the checkpoint imported from it, and samples."""
    found = {}
    for name in {case.family for case in CASES}:
        folder = found[name] = tmp_path_factory.mktemp("model")
        write_model(by_name(name), folder / "model", "bfloat16")
        write_tokenizer(folder / "model")
        write_samples(folder / "samples")
        ended = converter.convert(
            "import", "--from", folder / "model", "--to", folder / "weights", log=folder / "log"
        )
        assert ended.code == 0, ended.output
    return found


def _tensors(folder: Path) -> dict[str, Any]:
    return records(huggingface_folder.read(folder, "", weights=True).tensors())


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.recipe} {case.parallelism}")
def test_a_small_model_is_trained_as_the_operator_renders_it_and_exported(
    case: Case,
    imported: dict[str, Path],
    converter: WarmConverter,
    tmp_path: Path,
    warm_bridge: WarmProcess,
) -> None:
    spec: dict[str, Any] = {
        "recipe": case.recipe,
        "accelerator": {"type": "cpu", "count": 2},
        "init": {"modelFolder": "/data/model", "from": {"megatron": {"path": "/data/weights"}}},
        "data": {"volume": {"claimName": "corpus"}, "datasetRoot": "samples"},
        "parallelism": case.parallelism,
        "training": {
            **{"seqLength": LENGTH, "globalBatchSize": 4, "microBatchSize": 1, "trainIters": ITERATIONS},
            **{"lr": 0.01, "lrWarmupIters": 1, "evalIters": 0},
        },
        "checkpoint": {"saveInterval": ITERATIONS, "volume": {"size": "100Ti"}},
    }
    run = RecipeGang(tmp_path, warm_bridge, imported[case.family], spec)
    run.run_to_end()

    assert sorted(run.losses()) == list(range(1, ITERATIONS + 1))
    source, exported = imported[case.family] / "model", tmp_path / "exported"
    ended = converter.convert(
        "export", "--from", run.save, "--to", exported, "--base", source, log=tmp_path / "log"
    )
    assert ended.code == 0, ended.output
    result = tmp_path / "logits.json"
    if case.recipe.endswith("-lora"):
        found = converter.merged_logits(run.save, source, exported, result)
        print(case, found)
    else:
        found = converter.trained_logits(run.save, exported, result)
        print(case, found)
    before, after = _tensors(source), _tensors(exported)
    changed = {name.split(".")[-2] for name in before if before[name] != after[name]}
    assert before.keys() == after.keys()
    assert changed >= ATTENTION
    if case.recipe.endswith("-lora") and case.family in WITH_EXPERTS:
        assert changed == ATTENTION
