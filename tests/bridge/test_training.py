"""Bridge's SFT and LoRA recipe functions train on real gloo ranks, and resume with the same losses.

Takes minutes: `make bridge-training` runs it, `make test` does not.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

TRAINING = Path(__file__).with_name("training.py")
ITERATIONS, SAVED = 4, 2
pytestmark = pytest.mark.skipif(
    "MEGATRON_BRIDGE_TRAINING" not in os.environ, reason="takes minutes: run make bridge-training"
)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of all runs."""
    folder = tmp_path_factory.mktemp("trained")
    with (folder / "log").open("w") as log:
        done = subprocess.run(
            [sys.executable, str(TRAINING), str(folder)],
            stdout=log,
            stderr=subprocess.STDOUT,
            env=os.environ | {"TEST_FOLDER": str(folder)},
            timeout=540,
            check=False,
        )
    assert done.returncode == 0, (folder / "log").read_text()[-3000:]
    return folder


def _losses(folder: Path, run: str) -> list[tuple[int, float]]:
    lines = (folder / f"{run}.jsonl").read_text().splitlines()
    return [(line["iteration"], line["loss"]) for line in map(json.loads, lines)]


@pytest.mark.parametrize("mode", ["sft", "peft"])
def test_a_killed_fine_tuning_resumes_with_the_losses_of_an_undisturbed_one(trained: Path, mode: str) -> None:
    undisturbed, killed = _losses(trained, f"{mode}-undisturbed"), _losses(trained, f"{mode}-killed")

    assert [iteration for iteration, _ in undisturbed] == list(range(1, ITERATIONS + 1))
    # One start ended after the checkpoint, the other began from it: no iteration is repeated or missing.
    assert killed == undisturbed


@pytest.mark.parametrize("mode", ["sft", "peft"])
def test_fine_tuning_starts_from_the_weights_of_the_pretrained_checkpoint(trained: Path, mode: str) -> None:
    from_random, from_pretrained = _losses(trained, "base")[0][1], _losses(trained, f"{mode}-killed")[0][1]

    assert from_pretrained < from_random - 0.5


def test_a_checkpoint_of_lora_holds_adapters_and_no_weights_of_the_model(trained: Path) -> None:
    from torch.distributed.checkpoint import FileSystemReader

    def weights(run: str) -> set[str]:
        reader = FileSystemReader(trained / f"{run}-undisturbed" / f"iter_{SAVED:07}")
        names = reader.read_metadata().state_dict_metadata
        return {name for name in names if name.endswith(".weight") and not name.startswith("optimizer.")}

    assert "embedding.word_embeddings.weight" in weights("sft")
    assert weights("peft")
    assert all(".adapter." in name for name in weights("peft"))


def test_no_process_outlives_the_runs(trained: Path) -> None:
    def started_here(process: psutil.Process) -> bool:
        try:
            return bool(process.environ().get("TEST_FOLDER") == str(trained))
        except psutil.Error:
            return False

    left = list(filter(started_here, psutil.process_iter()))

    assert [process.pid for process in left if process.status() != psutil.STATUS_ZOMBIE] == []
