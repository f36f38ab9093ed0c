"""Packed samples in runs of Megatron-Bridge: with the arguments that the operator renders, on real ranks."""

import importlib.util
import json
import os
from pathlib import Path
from typing import Any

import pytest
from megatron_trainer.data import chats_command, samples_command
from megatron_trainer.data.preparation_error import PreparationError

from testkit.fine_tuned import CASES, Case
from testkit.weights.families import by_name, write_model
from testkit.weights.warm import WarmConverter
from tests.trainer.bridge_run import RecipeGang, rendered_preparation, write_samples, write_tokenizer
from tests.trainer.chat_corpus import LLAMA, lines, many
from tests.trainer.chat_corpus import write_tokenizer as write_chat_tokenizer
from tests.trainer.warm_process import WarmProcess

LENGTH, CHATS, ITERATIONS = 192, 90, 6
pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("modelopt") is None or "MEGATRON_BRIDGE_TRAINING" not in os.environ,
    reason="takes minutes: run make bridge-training",
)
_PACKED = {
    *(("llama3.2-1b-sft", 4), ("llama3.2-1b-lora", 2), ("gpt-oss-20b-lora", 2), ("gemma3-1b-lora", 2)),
    *(("k-exaone-236b-a23b-lora", 2), ("moonlight-16b-a3b-lora", 2)),
}
PACKED_CASES = [case for case in CASES if (case.recipe, case.ranks) in _PACKED]


def _volume(folder: Path, family: str, converter: WarmConverter) -> Path:
    """A data volume with a model, the checkpoint imported from it, questions, chats and a document."""
    write_model(by_name(family), folder / "model", "bfloat16")
    write_samples(folder / "samples")
    (folder / "chats.jsonl").write_text(lines(many(CHATS)))
    (folder / "manual.txt").write_text("how to write größer " * 30)
    words = ["import", "--from", folder / "model", "--to", folder / "weights"]
    ended = converter.convert(*words, log=folder / "log")
    assert ended.code == 0, ended.output
    return folder


def _spec(case: Case, data: dict[str, Any], iterations: int = 3, length: int = LENGTH) -> dict[str, Any]:
    return {
        "recipe": case.recipe,
        "accelerator": {"type": "cpu", "count": case.ranks, "perNode": case.ranks},
        "init": {"modelFolder": "/data/model", "from": {"megatron": {"path": "/data/weights"}}},
        "data": {"volume": {"claimName": "corpus"}, "packing": True} | data,
        "parallelism": case.parallelism,
        "training": {
            **{"seqLength": length, "globalBatchSize": 4, "trainIters": iterations, "evalIters": 0},
            **{"lr": 0.01, "lrWarmupIters": 1, "lrDecayIters": 100},
        },
        "checkpoint": {"saveInterval": 2, "volume": {"size": "100Ti"}},
    }


@pytest.mark.parametrize("case", PACKED_CASES, ids=lambda case: case.recipe)
def test_a_small_model_is_trained_on_packed_samples(
    case: Case, converter: WarmConverter, tmp_path: Path, warm_bridge: WarmProcess
) -> None:
    volume = tmp_path / "volume"
    volume.mkdir()
    _volume(volume, case.family, converter)
    write_tokenizer(volume / "model")
    spec = _spec(case, {"datasetRoot": "samples"}, length=64)
    run = RecipeGang(tmp_path, warm_bridge, volume, spec, case.overrides)
    run.run_to_end()
    assert "rank 0 has packed samples for training in " in run.log()
    losses = {iteration: loss for iteration, (loss,) in run.losses().items()}
    # The first step has a learning rate of 0.
    assert sorted(losses) == [1, 2, 3]
    assert losses[3] < losses[1]


@pytest.fixture(scope="module")
def chats(converter: WarmConverter, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data volume whose model's tokenizer has a chat template."""
    folder = _volume(tmp_path_factory.mktemp("volume"), "Llama", converter)
    write_chat_tokenizer(folder / "model", LLAMA)
    return folder


(LLAMA_LORA,) = (case for case in PACKED_CASES if case.recipe == "llama3.2-1b-lora")
SOURCES: dict[str, Any] = {
    "sources": [{"path": "/data/chats.jsonl"}, {"path": "/data/manual.txt", "format": "text"}],
    "split": "90,10,0",
    "maxEpochs": 2,
}


def _prepared(volume: Path) -> Path:
    """The folder that runs on SOURCES read."""
    words = rendered_preparation(_spec(LLAMA_LORA, SOURCES), volume)
    return Path(words[words.index("--output") + 1])


def _gang(
    make: pytest.TempPathFactory, warm: WarmProcess, volume: Path, iterations: int, **data: Any
) -> RecipeGang:
    spec = _spec(LLAMA_LORA, SOURCES | data, iterations)
    spec["training"] |= {"evalIters": 1, "evalInterval": 3}
    spec["checkpoint"]["volume"] |= {"accessMode": "ReadWriteMany"}
    run = RecipeGang(make.mktemp("run"), warm, volume, spec)
    chats_command.run(rendered_preparation(spec, volume, run.save))
    return run


def test_a_killed_run_on_packed_chats_resumes_with_the_losses_of_an_undisturbed_one(
    chats: Path,
    tmp_path_factory: pytest.TempPathFactory,
    warm_bridge: WarmProcess,
    capfd: pytest.CaptureFixture[str],
) -> None:
    undisturbed = _gang(tmp_path_factory, warm_bridge, chats, ITERATIONS)
    undisturbed.run_to_end()
    assert "rank 0 has packed samples" not in undisturbed.log(), "the Job has packed them"
    killed = _gang(tmp_path_factory, warm_bridge, chats, 10, maxEpochs=9)
    killed.run_with_a_killed_rank(3, until=ITERATIONS)

    expected = undisturbed.distinct_losses()
    assert sorted(expected) == list(range(1, ITERATIONS + 1))
    assert killed.distinct_losses(until=ITERATIONS) == expected
    assert killed.incidents()[0]["resumedFrom"] >= 2

    known = list(map(json.loads, (_prepared(chats) / "training.jsonl").read_text().splitlines()))
    read: list[str] = []
    capfd.readouterr()
    for iteration in range(1, ITERATIONS + 1):
        shown = ["--iteration", str(iteration), "--text", "2000", "--json"]
        shown += ["--tokenizer", f"{chats}/model"]
        assert samples_command.run([str(undisturbed.save), *shown]) == 0
        samples = json.loads(capfd.readouterr().out)["samples"]
        assert len(samples) == 4
        read += [document["text"] for sample in samples for document in sample["documents"]]
    # In two epochs at most; a document is shown as its text, a chat as its line.
    spoken = [json.loads(text) for text in read if text.startswith("{")]
    assert all(each in known for each in spoken)
    assert len(read) > len(spoken) > 6 * ITERATIONS


def test_more_packed_sequences_than_the_epochs_have_are_refused_before_accelerators_are_taken(
    chats: Path, tmp_path_factory: pytest.TempPathFactory, warm_bridge: WarmProcess
) -> None:
    with pytest.raises(PreparationError, match=r"data\.maxEpochs: the run reads 60 packed sequences, and "):
        _gang(tmp_path_factory, warm_bridge, chats, 15, maxEpochs=1)
