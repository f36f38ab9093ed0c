"""Runs of the functions that the operator starts by Megatron-Bridge, as it renders them, of small models.

On one rank, without a launcher and without checkpoints; what they read is made once for each small model.
"""

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from megatron_contract.bridge_run import BridgeRun
from megatron_operator import catalog
from megatron_operator.catalog import Entry
from megatron_operator.cli.default_platform import default_platform
from megatron_trainer.data import chats_command
from megatron_trainer.telemetry.reporter import FINISHED

import testkit
from testkit import image_text, omni_text, small_models, sound_text
from testkit.ports import free_port
from testkit.small_models import SmallModel
from testkit.weights.warm import WarmConverter
from tests.trainer import text_corpus
from tests.trainer.bridge_run import (
    arguments_in,
    rendered_container,
    rendered_preparation,
    write_samples,
    write_tokenizer,
)
from tests.trainer.gang import DEADLINE_SECONDS
from tests.trainer.warm_process import WarmProcess

ITERATIONS = 2
LENGTH = 64
LENGTHS = {"images": 512, "sound": 256, "media": 256}
"""Tokens of a sequence, in which images and sounds have many."""
SAMPLES = 8
_SHARDS: dict[str, Callable[[Path, int, int], object]] = {
    "images": image_text.write_shards,
    "sound": sound_text.write_shards,
    "media": omni_text.write_shards,
}


@dataclass(frozen=True)
class Started:
    """A function that the operator starts, and the recipe of the catalog that it is of."""

    function: str
    entry: Entry


def started() -> Iterator[Started]:
    """Every function that starts on CPUs."""
    profile = default_platform().accelerators["cpu"]
    for entry in (entry.on(profile) for entry in catalog.load()):
        if entry.engine == "bridge" and entry.starts:
            for layout in filter(entry.can_start, entry.layouts):
                yield Started(str(layout.function), entry)


def _spec(run: Started, small: SmallModel) -> dict[str, Any]:
    entry, latent = run.entry, run.entry.reads_latents
    init: dict[str, Any] = {}
    data: dict[str, Any] = {"volume": {"claimName": "corpus"}, "numWorkers": 1}
    if small.write:
        init["modelFolder"] = "/data/model"
    if starts_from_weights(entry):
        init["from"] = {"megatron": {"path": "/data/weights"}}
    if entry.media:
        data |= {"sources": [{"path": "/data/samples/*.tar"}], "split": "75,25,0", "maxEpochs": 40}
    elif latent:
        data |= {"datasetRoot": "latents"} if entry.fine_tunes else {"mockData": True}
    elif entry.fine_tunes:
        data["datasetRoot"] = "samples"
    else:
        tokenizer = {"tokenizerType": "HuggingFaceTokenizer", "tokenizerModel": "/data/tokenizer"}
        data |= {"blend": [{"path": "text_text_document"}], "tokenizer": tokenizer, "split": "80,20,0"}
    training: dict[str, Any] = {
        **{"globalBatchSize": 2, "microBatchSize": 1, "trainIters": ITERATIONS, "evalIters": 0},
        # What no gradient reaches does not change.
        **{"lr": 0.01, "lrWarmupIters": 0, "lrDecayIters": 100, "weightDecay": 0},
    }
    if not latent:
        training["seqLength"] = LENGTHS.get(entry.media, LENGTH)
    return {
        "recipe": run.function,
        "accelerator": {"type": "cpu", "count": 1},
        "init": init,
        "data": data,
        **({"model": dict(small.sizes)} if small.sizes else {}),
        # What of a function's layout does not follow the number of accelerators.
        "parallelism": {"contextParallelSize": 1, **({"tensorModelParallelSize": 1} if latent else {})},
        "training": training,
        # Room for the checkpoints of the models of their full sizes, which the plan is made for.
        "checkpoint": {"saveInterval": ITERATIONS, "volume": {"size": "100Ti"}},
    }


def starts_from_weights(entry: Entry) -> bool:
    """Whether a recipe fine-tunes, or trains the projector between towers that were trained."""
    return entry.fine_tunes or entry.aligns_projector


class SmallRuns:
    """Runs functions, each in a process forked from one that has imported Megatron-Bridge."""

    def __init__(self, folder: Path, converter: WarmConverter, warm: WarmProcess) -> None:
        self._folder, self._converter, self._warm = folder, converter, warm
        self._volumes: dict[tuple[str, str], Path] = {}
        self._corpus = folder / "corpus"

    def run(self, of: Started, save: Path | None = None) -> tuple[int, dict[str, Any], str]:
        """Run a function, which saves checkpoints if `save` is given.

        Returns the rank's exit code, its notes (rank_alone), and its log.
        """
        small = small_models.of_recipe(of.entry)
        wanted = _spec(of, small)
        volume = self._volume(of, small)
        if of.entry.media:
            words = rendered_preparation(wanted, volume)
            if not Path(words[words.index("--output") + 1]).exists():
                chats_command.run(words)
        folder = Path(tempfile.mkdtemp(dir=self._folder))
        run = BridgeRun.from_arguments(arguments_in(rendered_container(wanted), volume, folder / "run"))
        overrides = {**run.overrides, **small.overrides, "checkpoint.save": str(save) if save else None}
        environment = os.environ | {
            **{"MEGATRON_PLATFORM": "cpu", "MEGATRON_ENGINE": "bridge", "TMPDIR": str(folder)},
            **{"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "PYTHONWARNINGS": "ignore"},
        }
        result, log = folder / "result.json", folder / "log"
        words = [str(result), *BridgeRun(run.function, overrides).to_arguments()]
        rank = self._warm.start(words, environment, log, "tests.trainer.rank_alone")
        try:
            code = rank.wait(DEADLINE_SECONDS)
        finally:
            # A writer of checkpoints outlives its rank.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(rank.pid, signal.SIGKILL)
        found = json.loads(result.read_text()) if result.exists() else {}
        return code, found, log.read_text(errors="replace")

    def _volume(self, of: Started, small: SmallModel) -> Path:
        """The data volume of a small model."""
        entry = of.entry
        kind = "samples" if starts_from_weights(entry) else "text"
        if (small.name, kind) in self._volumes:
            return self._volumes[small.name, kind]
        folder = self._folder / f"{small.name} {kind}"
        folder.mkdir()
        if kind == "text" and not entry.reads_latents:
            self._link_corpus(folder)
        if small.write:
            small.write(folder / "model")
        if entry.media:
            _SHARDS[entry.media](folder / "samples", 2, SAMPLES // 2)
        elif entry.reads_latents and entry.fine_tunes:
            self._write_latents(entry, folder)
        elif entry.fine_tunes:
            write_tokenizer(folder / "model")
            write_samples(folder / "samples")
        if small.write and starts_from_weights(entry):
            words = ["import", "--from", folder / "model", "--to", folder / "weights"]
            ended = self._converter.convert(*words, log=folder / "log")
            assert ended.code == 0, ended.output
        self._volumes[small.name, kind] = folder
        return folder

    def _link_corpus(self, folder: Path) -> None:
        if not self._corpus.exists():
            self._corpus.mkdir()
            text_corpus.write(self._corpus, Path(testkit.__file__).parent)
        for path in self._corpus.iterdir():
            (folder / path.name).symlink_to(path)

    def _write_latents(self, entry: Entry, folder: Path) -> None:
        """Write latents, and the weights of a run that pretrains on random ones."""
        # In a process of its own: where Megatron is imported, files name its function to read tensors.
        words = [sys.executable, "-m", "testkit.latents", str(folder / "latents"), entry.name.split("-")[0]]
        subprocess.run([*words, str(4 * ITERATIONS), "4"], check=True)
        first = next(each for each in started() if f"{each.entry.name}-sft" == entry.name)
        code, _, log = self.run(first, folder / "weights")
        assert code == FINISHED, log[-3000:]
