"""Runs on samples that have images or sound beside text: their recipes and data volumes."""

import functools
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from megatron_trainer.data import chats_command

from testkit.fine_tuned import Case
from testkit.image_models import ImageFamily
from testkit.weights.warm import WarmConverter
from tests.trainer.bridge_run import RecipeGang, rendered_preparation
from tests.trainer.warm_process import WarmProcess

SAMPLES, ITERATIONS, SAVED_EVERY = 24, 4, 2
type Volumes = Callable[[str], Path]


def recipe(case: Case, media: str, length: int, iterations: int, **data: Any) -> dict[str, Any]:
    """The specification of a run of sequences of `length` tokens; `media`: the folder of its tar files."""
    return {
        "recipe": case.recipe,
        "accelerator": {"type": "cpu", "count": case.ranks, "perNode": case.ranks},
        "init": {"modelFolder": "/data/model", "from": {"megatron": {"path": "/data/weights"}}},
        "data": {
            **{"volume": {"claimName": "corpus"}, "sources": [{"path": f"/data/{media}/*.tar"}]},
            **{"split": "75,25,0", "maxEpochs": 40},
        }
        | data,
        "parallelism": case.parallelism,
        "training": {
            **{"seqLength": length, "globalBatchSize": 4, "microBatchSize": 1, "trainIters": iterations},
            **{"lr": 0.01, "lrWarmupIters": 1, "lrDecayIters": 200, "evalInterval": 2, "evalIters": 1},
        },
        # Room for the checkpoints of the models of their full sizes, which the plan is made for.
        "checkpoint": {"saveInterval": SAVED_EVERY, "volume": {"size": "100Ti"}},
    }


def name_of(case: Case) -> str:
    """The recipe and its layout, as the name of a test."""
    sizes = "-".join(f"{name[0]}{value}" for name, value in case.parallelism.items() if value is not False)
    return f"{case.recipe}-{sizes}"


def prepare(wanted: dict[str, Any], volume: Path) -> Path:
    """Prepare the data of a recipe as its Job does. Returns the folder that the run reads."""
    words = rendered_preparation(wanted, volume)
    message = chats_command.run(words)
    assert message.startswith(f"{SAMPLES} samples are prepared, 18 for training, 6 for validation")
    return Path(words[words.index("--output") + 1])


def data_volumes(
    make_folder: Callable[[str], Path],
    converter: WarmConverter,
    families: Mapping[str, ImageFamily],
    media: str,
    write_shards: Callable[[Path, int, int], object],
) -> Volumes:
    """Returns what makes a family's data volume: a model, the checkpoint imported from it, and two tar files.

    `media`: the folder of the tar files. `write_shards` writes so many files of so many samples to it.
    """

    @functools.cache
    def make(family: str) -> Path:
        folder = make_folder("volume")
        families[family].write(folder / "model")
        write_shards(folder / media, 2, SAMPLES // 2)
        ended = converter.convert(
            "import", "--from", folder / "model", "--to", folder / "weights", log=folder / "log"
        )
        assert ended.code == 0, ended.output
        return folder

    return make


def undisturbed_and_killed(
    wanted: dict[str, Any],
    longer: dict[str, Any],
    volume: Path,
    folders: pytest.TempPathFactory,
    warm_bridge: WarmProcess,
) -> RecipeGang:
    """Run `wanted`, of ITERATIONS, and `longer` until then with a killed rank: their losses are equal.

    Returns the undisturbed run.
    """
    prepare(wanted, volume)
    undisturbed = RecipeGang(folders.mktemp("undisturbed"), warm_bridge, volume, wanted)
    undisturbed.run_to_end()
    prepare(longer, volume)
    killed = RecipeGang(folders.mktemp("killed"), warm_bridge, volume, longer)
    killed.run_with_a_killed_rank(SAVED_EVERY + 1, until=ITERATIONS)

    expected = undisturbed.distinct_losses()
    assert sorted(expected) == list(range(1, ITERATIONS + 1))
    assert killed.distinct_losses(until=ITERATIONS) == expected
    assert killed.incidents()[0]["resumedFrom"] >= SAVED_EVERY
    # The first iteration after a resume is recorded at once.
    read = killed.samples().places(until=SAVED_EVERY + 1)
    assert sorted(read) == list(range(1, SAVED_EVERY + 2))
    assert read == undisturbed.samples().places(until=SAVED_EVERY + 1)
    return undisturbed


def trained(
    wanted: dict[str, Any], data: dict[str, Any], volume: Path, folder: Path, warm_bridge: WarmProcess
) -> RecipeGang:
    """Run a recipe of SAVED_EVERY iterations on its samples, or on `data` in place of them."""
    if data:
        wanted["data"] = {"volume": {"claimName": "corpus"}} | data
    else:
        prepare(wanted, volume)
    run = RecipeGang(folder, warm_bridge, volume, wanted)
    run.run_to_end()
    assert sorted(run.losses()) == list(range(1, SAVED_EVERY + 1))
    return run
