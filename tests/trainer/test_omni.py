"""Images, sound and text from tar files to a fine-tuned Qwen3-Omni, and its weights out."""

import importlib.util
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from megatron_trainer.weights import huggingface_folder
from megatron_trainer.weights.tensors import records

from testkit.fine_tuned import OMNI_CASES, Case
from testkit.image_text import COLOURS
from testkit.omni_text import FAMILIES, answer, write_shards
from testkit.sound_text import TONES, seconds, tone
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
KILLED, UNDISTURBED = OMNI_CASES
NAME = KILLED.family
pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("av") is None or "MEGATRON_BRIDGE_TRAINING" not in os.environ,
    reason="takes minutes: run make bridge-training",
)


def spec(case: Case, iterations: int, **data: Any) -> dict[str, Any]:
    return recipe(case, "media", LENGTH, iterations, **data)


@pytest.fixture(scope="module")
def volumes(tmp_path_factory: pytest.TempPathFactory, converter: WarmConverter) -> Volumes:
    """The data volume of the family, with two tar files."""
    return data_volumes(tmp_path_factory.mktemp, converter, FAMILIES, "media", write_shards)


def test_logits_are_those_of_transformers_and_the_weights_come_back_bit_for_bit(
    tmp_path: Path, converter: WarmConverter
) -> None:
    found = converter.prove_media(NAME, tmp_path)

    assert found["difference"] < 1e-5
    assert found["of other pictures"] > 0.1
    assert found["of other sounds"] > 0.01
    assert found["identical files"] is True


def test_an_export_without_the_weights_of_what_speaks_is_refused(
    volumes: Volumes, tmp_path: Path, converter: WarmConverter
) -> None:
    volume = volumes(NAME)
    ended = converter.convert(
        "export", "--from", volume / "weights", "--to", tmp_path / "out", log=tmp_path / "log"
    )

    assert ended.code != 0
    assert (
        "talker and code2wav of Qwen3OmniMoeForConditionalGeneration are not in checkpoints" in ended.output
    )
    assert not (tmp_path / "out").exists()


def test_the_loss_counts_the_answers_alone_and_every_picture_and_sound_is_its_own(volumes: Volumes) -> None:
    volume = volumes(NAME)
    root = prepare(spec(KILLED, ITERATIONS), volume)
    from megatron_trainer.bridge import image_text

    processor = image_text.load_processor(str(volume / "model"))
    for number in range(SAMPLES):
        file = "training.jsonl" if number < 18 else "validation.jsonl"
        example = image_text.sample(root / file, number % 18)
        batch = image_text.collate([example], processor, LENGTH)
        counted = batch["labels"][0][batch["loss_mask"][0] > 0]
        assert processor.tokenizer.decode(counted) == f"{answer(number)}{FAMILIES[NAME].end}"
        picture, sound = (part for part in example["conversation"][0]["content"] if part["type"] != "text")
        colour, heard = answer(number).split()
        assert picture["image"].getpixel((0, 0)) == COLOURS[colour]
        assert heard in TONES
        assert np.abs(sound["audio"].samples - tone(heard, seconds(number))).max() < 1e-4


def test_a_killed_run_resumes_with_the_losses_of_an_undisturbed_one_and_is_exported(
    volumes: Volumes,
    tmp_path_factory: pytest.TempPathFactory,
    warm_bridge: WarmProcess,
    converter: WarmConverter,
) -> None:
    volume = volumes(NAME)
    undisturbed = undisturbed_and_killed(
        spec(KILLED, ITERATIONS), spec(KILLED, 100), volume, tmp_path_factory, warm_bridge
    )
    assert_exported(undisturbed, volume, converter)


@pytest.mark.parametrize(
    ("case", "data"),
    [(UNDISTURBED, {}), (UNDISTURBED, {"mockData": True})],
    ids=lambda value: name_of(value) if isinstance(value, Case) else str(value),
)
def test_a_model_is_trained_on_images_and_sound_and_exported(
    case: Case,
    data: dict[str, Any],
    volumes: Volumes,
    tmp_path: Path,
    warm_bridge: WarmProcess,
    converter: WarmConverter,
) -> None:
    volume = volumes(case.family)
    run = trained(spec(case, SAVED_EVERY), data, volume, tmp_path, warm_bridge)
    assert_exported(run, volume, converter)


def assert_exported(run: RecipeGang, volume: Path, converter: WarmConverter) -> None:
    """Export the weights of a run: they are those that it trained, and of what speaks those of the model."""
    target, source = run.save.parent / "exported", volume / "model"
    ended = converter.convert(
        "export", "--from", run.save, "--to", target, "--base", source, log=run.save.parent / "log"
    )
    assert ended.code == 0, ended.output
    before, after = (
        records(huggingface_folder.read(folder, "", weights=True).tensors()) for folder in (source, target)
    )
    assert before.keys() == after.keys()
    changed = {name for name in before if before[name] != after[name]}
    assert {".".join(name.split(".")[:2]) for name in changed} >= {
        f"thinker.{part}" for part in ("audio_tower", "lm_head", "model", "visual")
    }
    assert {name.partition(".")[0] for name in changed} == {"thinker"}
    found = converter.prove_media_run(run.save, source, target, run.save.parent / "logits.json")
    assert found["difference"] < 1e-5
