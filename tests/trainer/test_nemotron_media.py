"""Images, sound and text from tar files to a fine-tuned Nemotron VL or Omni, and its weights out."""

import functools
import importlib.util
import os
from pathlib import Path
from typing import Any

import pytest
from megatron_trainer.weights import huggingface_folder
from megatron_trainer.weights.tensors import records

from testkit import image_text, omni_text
from testkit.fine_tuned import NEMOTRON_CASES, Case
from testkit.nemotron import FAMILIES
from testkit.weights.warm import WarmConverter
from tests.trainer.bridge_run import RecipeGang
from tests.trainer.sample_runs import (
    ITERATIONS,
    SAMPLES,
    SAVED_EVERY,
    Volumes,
    data_volumes,
    name_of,
    prepare,
    recipe,
    trained,
    undisturbed_and_killed,
)
from tests.trainer.warm_process import WarmProcess

LENGTH = 256
OMNI, VL = "Nemotron 3 Nano Omni", "Nemotron Nano 2 VL"
KILLED = [NEMOTRON_CASES[0], NEMOTRON_CASES[4]]
UNDISTURBED = [case for case in NEMOTRON_CASES if case not in KILLED]
FROZEN = {OMNI: {"vision_model", "sound_encoder"}, VL: set[str]()}
"""Parts that the functions of a family freeze."""
ADAPTED = {OMNI: {"language_model", "vision_model"}, VL: {"language_model", "vision_model", "mlp1"}}
"""Parts that adapters change."""
CLOSE, ROUNDED = {OMNI: 3e-5, VL: 1e-5}, 0.01
"""Largest differences of logits up to 2, in float32."""
pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("av") is None or "MEGATRON_BRIDGE_TRAINING" not in os.environ,
    reason="takes minutes: run make bridge-training",
)


def media(family: str) -> str:
    return "media" if family == OMNI else "images"


def spec(case: Case, iterations: int, **data: Any) -> dict[str, Any]:
    return recipe(case, media(case.family), LENGTH, iterations, **data)


@pytest.fixture(scope="module")
def volumes(tmp_path_factory: pytest.TempPathFactory, converter: WarmConverter) -> Volumes:
    """The data volumes of both families, with two tar files."""

    @functools.cache
    def make(family: str) -> Path:
        shards = omni_text.write_shards if family == OMNI else image_text.write_shards
        return data_volumes(tmp_path_factory.mktemp, converter, FAMILIES, media(family), shards)(family)

    return make


@pytest.mark.parametrize("name", FAMILIES)
def test_logits_are_those_of_transformers_and_the_weights_come_back_bit_for_bit(
    name: str, tmp_path: Path, converter: WarmConverter
) -> None:
    found = converter.prove_nemotron(name, tmp_path)

    assert found["difference"] < 1e-5
    assert found["of other pictures"] > 0.1
    assert found["identical files"] is True
    assert found.get("of other sounds", 1) > 0.1


def test_an_export_without_the_weights_that_are_not_trained_is_refused(
    volumes: Volumes, tmp_path: Path, converter: WarmConverter
) -> None:
    ended = converter.convert(
        "export", "--from", volumes(VL) / "weights", "--to", tmp_path / "out", log=tmp_path / "log"
    )

    assert ended.code != 0
    assert "of NemotronH_Nano_VL_V2 are not in checkpoints of Megatron" in ended.output
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("name", FAMILIES)
def test_the_loss_counts_the_answers_alone_without_an_empty_thought(name: str, volumes: Volumes) -> None:
    case = next(case for case in NEMOTRON_CASES if case.family == name)
    volume = volumes(name)
    root = prepare(spec(case, ITERATIONS), volume)
    from megatron_trainer.bridge import image_text as samples

    processor = samples.load_processor(str(volume / "model"))
    for number in range(SAMPLES):
        file = "training.jsonl" if number < 18 else "validation.jsonl"
        batch = samples.collate([samples.sample(root / file, number % 18)], processor, LENGTH)
        counted = batch["labels"][0][batch["loss_mask"][0] > 0]
        colour = list(image_text.COLOURS)[number % len(image_text.COLOURS)]
        answer = omni_text.answer(number) if name == OMNI else colour
        assert processor.tokenizer.decode(counted) == f"{answer}{FAMILIES[name].end}"


@pytest.mark.parametrize("case", KILLED, ids=name_of)
def test_a_killed_run_resumes_with_the_losses_of_an_undisturbed_one_and_is_exported(
    case: Case,
    volumes: Volumes,
    tmp_path_factory: pytest.TempPathFactory,
    warm_bridge: WarmProcess,
    converter: WarmConverter,
) -> None:
    volume = volumes(case.family)
    undisturbed = undisturbed_and_killed(
        spec(case, ITERATIONS), spec(case, 100), volume, tmp_path_factory, warm_bridge
    )
    assert_exported(undisturbed, case, volume, converter)


@pytest.mark.parametrize(
    ("case", "data"),
    [*((case, {}) for case in UNDISTURBED), *((case, {"mockData": True}) for case in KILLED)],
    ids=lambda value: name_of(value) if isinstance(value, Case) else str(value),
)
def test_a_model_is_trained_and_exported(
    case: Case,
    data: dict[str, Any],
    volumes: Volumes,
    tmp_path: Path,
    warm_bridge: WarmProcess,
    converter: WarmConverter,
) -> None:
    volume = volumes(case.family)
    run = trained(spec(case, SAVED_EVERY), data, volume, tmp_path, warm_bridge)
    assert_exported(run, case, volume, converter)


def assert_exported(run: RecipeGang, case: Case, volume: Path, converter: WarmConverter) -> None:
    """Export the weights of a run: they are those that it trained, and others where it trains."""
    target, source = run.save.parent / "exported", volume / "model"
    ended = converter.convert(
        "export", "--from", run.save, "--to", target, "--base", source, log=run.save.parent / "log"
    )
    assert ended.code == 0, ended.output
    before, after = (
        records(huggingface_folder.read(folder, "", weights=True).tensors()) for folder in (source, target)
    )
    assert before.keys() == after.keys()
    changed = {name.split(".")[0] for name in before if before[name] != after[name]}
    parts, adapted = {name.split(".")[0] for name in before}, case.recipe.endswith("-lora")
    assert changed == (ADAPTED[case.family] if adapted else parts - FROZEN[case.family])
    found = converter.prove_nemotron_run(run.save, source, target, run.save.parent / "logits.json")
    # Weights merged into those of bfloat16 are rounded to it.
    assert found["difference"] < (ROUNDED if adapted else CLOSE[case.family])
