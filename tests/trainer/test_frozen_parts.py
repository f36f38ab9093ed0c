"""Vision-language models of which parts are frozen: the projector alone is trained, or all but the tower."""

import importlib.util
import json
import math
import os
from pathlib import Path
from typing import Any, get_args

import pytest
from megatron_operator.api.fine_tuning import ModelPart
from megatron_trainer.weights import huggingface_folder
from megatron_trainer.weights.tensors import records

from testkit.fine_tuned import FROZEN_CASES, FrozenCase
from testkit.image_models import FAMILIES
from testkit.image_text import VOCABULARY, write_shards
from testkit.weights.warm import WarmConverter
from tests.trainer.bridge_run import RecipeGang
from tests.trainer.sample_runs import (
    ITERATIONS,
    SAVED_EVERY,
    Volumes,
    data_volumes,
    name_of,
    prepare,
    recipe,
)
from tests.trainer.warm_process import WarmProcess

LENGTH = 512
OF_PROJECTORS = (".merger.", ".deepstack_merger_list.", ".multi_modal_projector.", ".embed_vision.")
OF_TOWERS = ("visual.", "vision_tower.")
ALIGNED = next(case for case in FROZEN_CASES if case.freeze is None)
pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("qwen_vl_utils") is None or "MEGATRON_BRIDGE_TRAINING" not in os.environ,
    reason="takes minutes: run make bridge-training",
)


def spec(case: FrozenCase, iterations: int) -> dict[str, Any]:
    frozen = {} if case.freeze is None else {"freeze": list(case.freeze)}
    return recipe(case, "images", LENGTH, iterations) | frozen


def name_with_parts(case: FrozenCase) -> str:
    return f"{name_of(case)}-{'+'.join(case.freeze or ('function',))}"


@pytest.fixture(scope="module")
def volumes(tmp_path_factory: pytest.TempPathFactory, converter: WarmConverter) -> Volumes:
    """The data volumes of families, with two tar files."""
    return data_volumes(tmp_path_factory.mktemp, converter, FAMILIES, "images", write_shards)


def part_of(name: str) -> ModelPart:
    """The part of a model that a tensor of its Hugging Face folder belongs to."""
    if any(words in f".{name}" for words in OF_PROJECTORS):
        return "projector"
    return "vision" if any(words in name for words in OF_TOWERS) else "language"


def changed_tensors(run: RecipeGang, volume: Path, converter: WarmConverter) -> tuple[set[str], set[str]]:
    """Names of the tensors that an export of a run has, and of those whose bytes it has changed."""
    target, source = run.save.parent / "exported", volume / "model"
    ended = converter.convert(
        "export", "--from", run.save, "--to", target, "--base", source, log=run.save.parent / "log"
    )
    assert ended.code == 0, ended.output
    before, after = (
        records(huggingface_folder.read(folder, "", weights=True).tensors()) for folder in (source, target)
    )
    assert before.keys() == after.keys()
    return set(before), {name for name in before if before[name] != after[name]}


@pytest.mark.parametrize("case", FROZEN_CASES, ids=name_with_parts)
def test_tensors_of_frozen_parts_are_exported_bit_for_bit_and_the_others_are_trained(
    case: FrozenCase, volumes: Volumes, tmp_path: Path, warm_bridge: WarmProcess, converter: WarmConverter
) -> None:
    volume, wanted = volumes(case.family), spec(case, ITERATIONS)
    prepare(wanted, volume)
    run = RecipeGang(tmp_path, warm_bridge, volume, wanted)
    run.run_to_end()

    losses = run.losses()
    assert sorted(losses) == list(range(1, ITERATIONS + 1))
    assert all(math.isfinite(loss) for each in losses.values() for loss in each)
    names, changed = changed_tensors(run, volume, converter)
    frozen = case.freeze or ("language", "vision")
    trained = {part for part in get_args(ModelPart) if part not in frozen}
    assert {part_of(name) for name in names} == set(get_args(ModelPart))
    assert {part_of(name) for name in changed} == trained


def test_a_killed_run_that_trains_the_projector_resumes_with_the_losses_of_an_undisturbed_one(
    volumes: Volumes, tmp_path_factory: pytest.TempPathFactory, warm_bridge: WarmProcess
) -> None:
    volume, wanted, longer = volumes(ALIGNED.family), spec(ALIGNED, ITERATIONS), spec(ALIGNED, 100)
    prepare(wanted, volume)
    undisturbed = RecipeGang(tmp_path_factory.mktemp("undisturbed"), warm_bridge, volume, wanted)
    undisturbed.run_to_end()
    run = RecipeGang(tmp_path_factory.mktemp("killed"), warm_bridge, volume, longer)
    run.run_with_a_killed_rank(SAVED_EVERY + 1, until=ITERATIONS)

    expected = undisturbed.distinct_losses()
    assert sorted(expected) == list(range(1, ITERATIONS + 1))
    assert run.distinct_losses(until=ITERATIONS) == expected
    # The function alone would take the tokenizer's vocabulary, padded, and evaluate every 500 iterations.
    assert max(expected[1]) < math.log(VOCABULARY) + 0.05
    lines = (undisturbed.save / "validation.jsonl").read_text().splitlines()
    assert {json.loads(line)["iteration"] for line in lines} == {2, 4}
    assert run.incidents()[0]["resumedFrom"] >= SAVED_EVERY
