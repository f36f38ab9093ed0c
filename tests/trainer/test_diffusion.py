"""Wan and FLUX, small and on CPUs, under the launcher: with the arguments that the operator renders."""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from megatron_contract.bridge_run import Value
from megatron_contract.environment import VALIDATION_FILE
from megatron_contract.exit_codes import ExitCode

from testkit.latent_cases import FINE_TUNED, FLUX, PRETRAINED, WAN
from testkit.latents import files, image, video, write_latents, write_tar
from testkit.ports import free_port
from testkit.small_diffusion import SMALL, TEXT
from tests.trainer.bridge_run import RecipeGang
from tests.trainer.warm_process import WarmProcess

ITERATIONS, SAVED_EVERY = 6, 2
TOKENS = {WAN: 16, FLUX: 6 + 8}
"""Of a random sample; the text is among FLUX's."""
pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("diffusers") is None or "MEGATRON_BRIDGE_TRAINING" not in os.environ,
    reason="takes minutes: run make bridge-training",
)


@pytest.fixture
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of a short name, for sockets have short ones only."""
    return tmp_path_factory.mktemp("runs")


def spec(recipe: str, data: dict[str, Any], **settings: Any) -> dict[str, Any]:
    training = {
        **{"globalBatchSize": 4, "microBatchSize": 1, "trainIters": ITERATIONS, "lr": 0.01},
        **{"lrWarmupIters": 1, "lrDecayIters": 100, "evalInterval": 1000, "evalIters": 0},
    }
    return {
        "recipe": recipe,
        "accelerator": {"type": "cpu", "count": 2},
        "data": {"volume": {"claimName": "corpus"}, "numWorkers": 1} | data,
        "training": training | settings.pop("training", {}),
        "checkpoint": {"saveInterval": SAVED_EVERY, "volume": {"size": "4Ti"}},
        **settings,
    }


def gang(folder: Path, warm: WarmProcess, wanted: dict[str, Any], **overrides: Value) -> RecipeGang:
    """A run in `folder`, whose data are in a folder beside it."""
    folder.mkdir(parents=True, exist_ok=True)
    small = SMALL[wanted["recipe"].split("-")[0]] | TEXT | overrides
    return RecipeGang(folder, warm, folder.parent, wanted, small)


@pytest.mark.parametrize("recipe", PRETRAINED)
@pytest.mark.parametrize("split", [1, 2])
def test_a_killed_run_goes_on_with_the_losses_of_one_that_was_not(
    recipe: str, split: int, folder: Path, warm_bridge: WarmProcess
) -> None:
    wanted = spec(recipe, {"mockData": True}, parallelism={"tensorModelParallelSize": split})
    undisturbed = gang(folder / "undisturbed", warm_bridge, wanted)
    undisturbed.run_to_end()
    run = gang(folder / "killed", warm_bridge, wanted)
    run.hold_after(SAVED_EVERY + 1)
    run.start()
    run.await_iteration(SAVED_EVERY + 1)
    run.kill_rank(0)
    run.release()
    assert run.wait() == [0], run.log()[-3000:]

    expected = {iteration: set(losses) for iteration, losses in undisturbed.losses().items()}
    assert {iteration: set(losses) for iteration, losses in run.losses().items()} == expected
    assert sorted(expected) == list(range(1, ITERATIONS + 1))
    (incident,) = run.incidents()
    assert incident["resumedFrom"] == SAVED_EVERY
    assert {record["tokens"] for record in run.records()} == {4 * TOKENS[recipe]}


@pytest.mark.parametrize(("recipe", "make"), list(zip(FINE_TUNED, (video, image), strict=True)))
def test_weights_are_trained_further_on_latents_and_evaluated_on_others(
    recipe: str, make: Any, folder: Path, warm_bridge: WarmProcess
) -> None:
    first = gang(folder / "weights", warm_bridge, spec(recipe.removesuffix("-sft"), {"mockData": True}))
    first.run_to_end()
    write_latents(folder / "latents", make, 8, 4)
    wanted = spec(
        recipe,
        {"datasetRoot": "latents"},
        init={"from": {"megatron": {"path": "/data/weights/checkpoints"}}},
        training={"microBatchSize": 2, "evalInterval": 3, "evalIters": 1},
        parallelism={"tensorModelParallelSize": 1, "contextParallelSize": 1},
    )
    run = gang(folder / "run", warm_bridge, wanted)
    run.run_to_end()

    assert sorted(run.losses()) == list(range(1, ITERATIONS + 1))
    lines = (run.save / VALIDATION_FILE).read_text().splitlines()
    assert {json.loads(line)["iteration"] for line in lines if "lmLoss" in line} == {3, 6}
    if make is video:
        # Of 1, 2 or 3 frames of 6 tokens each.
        assert {record["tokens"] % 6 for record in run.records()} == {0}
        assert len({record["tokens"] for record in run.records()}) > 1


def test_context_parallel_ranks_compute_what_one_does_that_has_whole_samples() -> None:
    command = [sys.executable, "-W", "ignore", "-m", "tests.trainer.split_samples", str(free_port())]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout.splitlines()[-1])

    # Rounded to BF16, of which the sums are in another order.
    assert found["outputs"] <= 0.02 * found["largest output"]
    assert found["gradients"] <= 0.02 * found["largest gradient"]


def test_context_parallel_ranks_train(folder: Path, warm_bridge: WarmProcess) -> None:
    wanted = spec(WAN, {"mockData": True}, parallelism={"contextParallelSize": 2})
    run = gang(folder / "run", warm_bridge, wanted)
    run.run_to_end()

    assert sorted(run.losses()) == list(range(1, ITERATIONS + 1))
    assert {record["tokens"] for record in run.records()} == {4 * TOKENS[WAN]}


@pytest.mark.parametrize(
    ("members", "problem"),
    [
        ({"0.pth": b"", "0.json": b"{}"}, "00000.tar: 0: there is no 0.pickle"),
        (files("0", image(0)), "00000.tar: 0: its latents are (16, 4, 6), not (16, frames, height, width)"),
        (files("0", (video(0)[0], os.getcwd)), "posix.getcwd is refused: the file may hold tensors only"),
        (
            files("0", (video(0)[0], {"prompt_embeds": video(0)[1], "pooled_prompt_embeds": [1.0]})),
            "00000.tar: 0.pickle: pooled_prompt_embeds is not a tensor of numbers, but list",
        ),
        ({}, "latents has no tar files with samples of latents"),
    ],
)
def test_a_sample_that_the_model_cannot_take_ends_the_run_before_it_starts(
    members: dict[str, bytes], problem: str, folder: Path, warm_bridge: WarmProcess
) -> None:
    write_tar(folder / "latents" / "00000.tar", members)
    run = gang(folder / "run", warm_bridge, spec(WAN, {"datasetRoot": "latents"}))
    run.run_to_end(ExitCode.BAD_DATA)

    assert problem in run.termination(0)["message"]
