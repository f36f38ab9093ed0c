"""Megatron-Bridge's recipe functions under the launcher: fine-tuned, killed, resumed with the same losses."""

import importlib.util
import json
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from megatron_contract.bridge_run import MODEL_FOLDER, Value
from megatron_contract.environment import VALIDATION_FILE
from megatron_contract.exit_codes import ExitCode
from megatron_trainer.data import chats_command, samples_command

from testkit.weights.warm import WarmConverter
from tests.trainer.bridge_run import (
    ITERATIONS,
    LENGTH,
    SAVED_EVERY,
    BridgeGang,
    RecipeGang,
    rendered_preparation,
    write_model,
    write_samples,
)
from tests.trainer.chat_corpus import LLAMA, lines, many, write_tokenizer
from tests.trainer.curves import read_curves
from tests.trainer.gang import assert_phases_in_order
from tests.trainer.warm_process import WarmProcess

Start = Callable[..., BridgeGang]
pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("modelopt") is None,
    reason="what Megatron-Bridge imports is not installed: run make bridge-training",
)


@pytest.fixture(scope="module")
def start(tmp_path_factory: pytest.TempPathFactory, warm_bridge: WarmProcess) -> Iterator[Start]:
    """Starts a run of a function; stops all in the end."""
    runs: list[BridgeGang] = []
    model = write_model(tmp_path_factory.mktemp("model"))

    def started(function: str, **overrides: Value) -> BridgeGang:
        runs.append(BridgeGang(tmp_path_factory.mktemp("run"), warm_bridge, model, function, **overrides))
        runs[-1].start()
        return runs[-1]

    yield started
    for run in runs:
        run.stop()


@pytest.fixture(scope="module")
def weights(start: Start) -> Path:
    """The checkpoints of a pretrained model."""
    run = start("llama32_1b_pretrain_config")
    assert run.wait() == [0], run.log()[-3000:]
    return run.save


def test_a_killed_lora_run_resumes_with_the_losses_of_an_undisturbed_one(
    start: Start, weights: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lora: dict[str, Value] = {"checkpoint__pretrained_checkpoint": str(weights), "peft__dim": 8}
    undisturbed = start("llama32_1b_peft_config", **lora)
    assert undisturbed.wait() == [0], undisturbed.log()[-3000:]

    monkeypatch.setenv("MEGATRON_PROFILE", f"1-{SAVED_EVERY}:0")
    monkeypatch.setenv("MEGATRON_TRACKING", '{"tensorboard": true}')
    run = start("llama32_1b_peft_config", **lora, train__train_iters=100)
    run.await_iteration(SAVED_EVERY + 1)
    run.kill_rank(0)
    run.await_iteration(SAVED_EVERY + 2, generation=2)
    expected = {iteration: set(losses) for iteration, losses in undisturbed.losses().items()}
    found = {iteration: set(losses) for iteration, losses in run.losses().items() if iteration <= ITERATIONS}

    assert sorted(expected) == list(range(1, ITERATIONS + 1))
    assert found == {iteration: expected[iteration] for iteration in found}
    (incident,) = run.incidents()
    assert incident["cause"].startswith("rank 0 was killed by SIGKILL")
    assert incident["resumedFrom"] >= SAVED_EVERY
    assert run.progress(0)["trainIters"] == 100
    (trace,) = (run.save / "profile").iterdir()
    assert trace.name == f"rank-0-iterations-1-{SAVED_EVERY}.json.gz"
    board = read_curves("tensorboard", run.save / "tensorboard")
    for name in ("lm loss", "grad-norm", "learning-rate", "throughput"):
        steps = [step for step, _ in board[name]]
        assert steps == list(range(1, len(steps) + 1))
        assert len(steps) > SAVED_EVERY


def test_a_stopped_rank_is_named_and_the_run_resumes_with_the_losses_of_an_undisturbed_one(
    start: Start, weights: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    saved, last = 20, 40
    tuned: dict[str, Value] = {"checkpoint__pretrained_checkpoint": str(weights), "optimizer__lr": 1e-3}
    tuned |= {"train__train_iters": last, "checkpoint__save_interval": saved}
    undisturbed = start("llama32_1b_sft_config", **tuned)
    assert undisturbed.wait() == [0], undisturbed.log()[-3000:]

    monkeypatch.setenv("MEGATRON_HANG_TIMEOUT", "20")
    run = start("llama32_1b_sft_config", **tuned)
    # Long before the next save, which may take half an hour.
    run.await_iteration(saved + 1)
    run.ranks(0)[1].send_signal(signal.SIGSTOP)
    assert run.wait() == [0], run.log()[-3000:]

    expected = undisturbed.distinct_losses()
    assert sorted(expected) == list(range(1, last + 1))
    assert run.distinct_losses() == expected
    (incident,) = run.incidents()
    assert (incident["kind"], incident["rank"], incident["resumedFrom"]) == ("hang", 1, saved)
    assert saved < incident["iteration"] < last
    assert incident["cause"].startswith(f"rank 1 is stopped after iteration {incident['iteration']}")
    assert_phases_in_order(incident)
    (stacks,) = (run.save / "hangs").glob("*/node-0.txt")
    waiting, stopped = stacks.read_text().split("rank 1 (")
    assert "rank 0 (" in waiting
    assert "in train_step" in waiting, "the stack of the other rank shows where it waits"
    assert "no answer to the request for its stacks" in stopped
    assert run.survivors() == []


def test_the_best_checkpoint_outlives_newer_ones_and_a_killed_rank_and_is_exported(
    start: Start, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, converter: WarmConverter
) -> None:
    monkeypatch.setenv("MEGATRON_KEEP_CHECKPOINTS", "1")
    monkeypatch.setenv("MEGATRON_KEEP_BEST", "1")
    # The learning rate rises, and the loss with it.
    rising = {"optimizer__lr": 3.0, "scheduler__lr_warmup_iters": ITERATIONS}
    evaluated = {"validation__eval_iters": 1, "validation__eval_interval": SAVED_EVERY}
    run = start("llama32_1b_pretrain_config", **rising, **evaluated)
    run.await_iteration(SAVED_EVERY + 1)
    run.kill_rank(0)
    assert run.wait() == [0], run.log()[-3000:]

    lines_ = (run.save / VALIDATION_FILE).read_text().splitlines()
    losses = {each["iteration"]: each["lmLoss"] for each in map(json.loads, lines_) if "lmLoss" in each}
    assert sorted(losses) == list(range(SAVED_EVERY, ITERATIONS + 1, SAVED_EVERY))
    best = min(losses, key=lambda iteration: losses[iteration])
    assert best < ITERATIONS, losses
    # A save that the kill interrupted is set aside.
    kept = sorted(path.name for path in run.save.glob("iter_*") if path.suffix == "")
    assert kept == [f"iter_{iteration:07}" for iteration in (best, ITERATIONS)]
    assert run.termination(0)["bestCheckpointIteration"] == best

    def export(name: str, *words: str | Path) -> Path:
        target, base = tmp_path / "out" / name, run.overrides[MODEL_FOLDER]
        common = ("export", "--from", run.save, "--to", target, "--base", str(base), "--parents", "--reuse")
        ended = converter.convert(*common, *words, log=tmp_path / "log")
        assert ended.code == 0, ended.output
        return target

    end = export("end")
    exported = export("best", "--iteration", "best", "--link", end)
    assert (exported / "model.safetensors").read_bytes() != (end / "model.safetensors").read_bytes()
    # Now the last iteration is the best one as well.
    with (run.save / VALIDATION_FILE).open("a") as file:
        file.write(json.dumps({"iteration": ITERATIONS, "lmLoss": 0.5, "generation": 99}) + "\n")
    assert export("same", "--iteration", "best", "--link", end).resolve() == end


@pytest.mark.parametrize(
    ("path", "value", "problem"),
    [
        ("peft__rank", 8, "peft.rank: Megatron-Bridge's configuration has no such field"),
        ("peft__dim", "eight", "peft.dim: 'eight' is not of the type of 32"),
        ("model__context_parallel_size", 3, "Megatron-Bridge refuses the configuration"),
    ],
)
def test_a_wrong_override_ends_the_run_before_it_trains_and_is_named(
    path: str, value: Value, problem: str, start: Start, weights: Path
) -> None:
    overrides: dict[str, Value] = {"checkpoint__pretrained_checkpoint": str(weights), path: value}
    run = start("llama32_1b_peft_config", **overrides)
    assert run.wait() == [int(ExitCode.USAGE)]
    assert problem in run.termination(0)["message"]


def test_a_folder_without_samples_ends_the_run_before_it_trains(
    start: Start, weights: Path, tmp_path: Path
) -> None:
    run = start(
        "llama32_1b_peft_config",
        checkpoint__pretrained_checkpoint=str(weights),
        dataset__mock=False,
        dataset__dataset_root=str(tmp_path),
        dataset__hf_dataset=None,
    )
    assert run.wait() == [int(ExitCode.BAD_DATA)]
    assert f"{tmp_path} has no training.jsonl" in run.termination(0)["message"]


@pytest.mark.parametrize(
    ("recipe", "peft"),
    [
        ("llama3.2-1b-lora", {"type": "lora", "dim": 4}),
        ("llama3.2-1b-lora", {"type": "dora", "targetModules": ["linear_qkv"]}),
        ("llama3.2-1b-sft", None),
    ],
)
def test_a_recipe_is_fine_tuned_on_answers_as_the_operator_renders_it(
    recipe: str, peft: dict[str, object] | None, tmp_path: Path, warm_bridge: WarmProcess, weights: Path
) -> None:
    write_model(tmp_path / "model")
    write_samples(tmp_path / "samples")
    (tmp_path / "weights").symlink_to(weights)
    spec = _spec(recipe, {"datasetRoot": "samples"}, LENGTH) | ({"peft": peft} if peft else {})
    spec["parallelism"] = {"tensorModelParallelSize": 2}
    run = RecipeGang(tmp_path, warm_bridge, tmp_path, spec)
    run.run_to_end()

    assert_learned(run)
    evaluated = [json.loads(line) for line in (run.save / VALIDATION_FILE).read_text().splitlines()]
    assert [each["iteration"] for each in evaluated][:2] == [3, 6]
    assert evaluated[-1]["lmLoss"] < evaluated[0]["lmLoss"]
    assert _has_adapters_only(run.save / f"iter_{ITERATIONS:07}") == (peft is not None)


def assert_learned(run: BridgeGang) -> None:
    """Every iteration has a loss, and the last is lower than the first."""
    losses = [loss for _, (loss, *_) in sorted(run.losses().items())]
    assert len(losses) == ITERATIONS
    assert losses[-1] < losses[0]


def _spec(recipe: str, data: dict[str, object], length: int) -> dict[str, object]:
    """A short run from the weights of the data volume, on samples of `length` tokens."""
    return {
        "recipe": recipe,
        "accelerator": {"type": "cpu", "count": 2},
        "init": {"modelFolder": "/data/model", "from": {"megatron": {"path": "/data/weights"}}},
        "data": {"volume": {"claimName": "corpus"}} | data,
        "training": {
            **{"seqLength": length, "globalBatchSize": 4, "microBatchSize": 1, "trainIters": ITERATIONS},
            **{"lr": 0.01, "lrWarmupIters": 1, "evalInterval": 3, "evalIters": 1},
        },
        "checkpoint": {"saveInterval": SAVED_EVERY, "volume": {"size": "100Gi"}},
    }


@pytest.fixture
def volume(tmp_path: Path, weights: Path) -> Path:
    """A data volume with a model whose tokenizer has a chat template, its weights, and chats."""
    write_model(tmp_path / "model")
    write_tokenizer(tmp_path / "model", LLAMA)
    (tmp_path / "weights").symlink_to(weights)
    (tmp_path / "raw").mkdir()
    (tmp_path / "raw" / "chats.jsonl").write_text(lines(many(64)))
    return tmp_path


def test_a_recipe_is_fine_tuned_on_the_chats_that_its_job_prepared(
    volume: Path, warm_bridge: WarmProcess
) -> None:
    source = {"path": "/data/raw/*.jsonl", "format": "chat"}
    spec = _spec("llama3.2-1b-lora", {"sources": [source], "split": "80,20,0"}, 128)
    chats_command.run(rendered_preparation(spec, volume))
    run = RecipeGang(volume, warm_bridge, volume, spec)
    run.run_to_end()

    assert_learned(run)
    assert "rank 0 has looked for the ends of" not in run.log()


def _undisturbed_and_killed(
    spec: dict[str, Any], volume: Path, warm: WarmProcess, folders: pytest.TempPathFactory
) -> tuple[RecipeGang, RecipeGang]:
    """Two finished runs of a recipe, which have read the same samples though a rank of one was killed."""
    undisturbed, killed = (RecipeGang(folders.mktemp("run"), warm, volume, spec) for _ in range(2))
    undisturbed.run_to_end()
    killed.start()
    killed.await_iteration(SAVED_EVERY + 1)
    killed.kill_rank(0)
    assert killed.wait() == [0], killed.log()[-3000:]

    expected, found = undisturbed.samples(), killed.samples()
    assert sorted(expected.places()) == list(range(1, ITERATIONS + 1))
    assert found.places() == expected.places()
    assert found.problems() == expected.problems() == []
    return undisturbed, killed


def test_a_killed_run_reads_the_chats_of_an_undisturbed_one_in_each_iteration(
    volume: Path, warm_bridge: WarmProcess, tmp_path_factory: pytest.TempPathFactory
) -> None:
    source = {"path": "/data/raw/*.jsonl", "format": "chat"}
    spec = _spec("llama3.2-1b-sft", {"sources": [source], "split": "80,20,0"}, 128)
    spec["parallelism"] = {"tensorModelParallelSize": 1}
    words = rendered_preparation(spec, volume)
    chats_command.run(words)
    undisturbed, killed = _undisturbed_and_killed(spec, volume, warm_bridge, tmp_path_factory)
    expected, found = undisturbed.samples(), killed.samples()
    assert [kept.start.ranks for kept in found.kept()] == [2, 2]
    chats = (Path(words[words.index("--output") + 1]) / "training.jsonl").read_text().splitlines()
    read = [place for places in expected.places().values() for place in places]
    assert len(read) == len(set(read)) == 4 * ITERATIONS, "each chat at most once in the first epoch"
    assert max(read) < len(chats)
    assert expected.starts[1].dataset["path"].endswith("training.jsonl")


def test_a_killed_run_reads_chats_and_text_by_weight_as_an_undisturbed_one(
    volume: Path,
    warm_bridge: WarmProcess,
    tmp_path_factory: pytest.TempPathFactory,
    capfd: pytest.CaptureFixture[str],
) -> None:
    for number in range(20):
        (volume / "raw" / f"{number}.txt").write_text(f"document {number} " * 9)
    sources = [
        {"path": "/data/raw/*.jsonl", "format": "chat", "weight": 0.75},
        {"path": "/data/raw/*.txt", "weight": 0.25},
    ]
    spec = _spec("llama3.2-1b-lora", {"sources": sources, "split": "80,20,0"}, 128)
    words = rendered_preparation(spec, volume)
    chats_command.run(words)
    undisturbed, killed = _undisturbed_and_killed(spec, volume, warm_bridge, tmp_path_factory)
    expected = undisturbed.samples()
    assert expected.starts[1].dataset["order"] == "sequential"
    assert undisturbed.distinct_losses() == killed.distinct_losses()
    root = Path(words[words.index("--output") + 1])
    records = list(map(json.loads, (root / "training.jsonl").read_text().splitlines()))
    for places in expected.places().values():
        assert sorted("messages" in records[place] for place in places) == [False, True, True, True]
    shown = ["--iteration", "1", "--text", "8", "--json", "--tokenizer", f"{volume}/model"]
    capfd.readouterr()
    assert samples_command.run([str(killed.save), *shown]) == 0
    texts = [
        part["text"] for each in json.loads(capfd.readouterr().out)["samples"] for part in each["documents"]
    ]
    assert sorted(texts) == ["document", *['{"messag'] * 3]


@pytest.mark.parametrize(
    ("template", "role", "problem"),
    [
        (LLAMA, "tool", "samples/training.jsonl:11: no role tool"),
        (None, "user", "data.tokenizer.tokenizerModel: "),
    ],
)
def test_chats_of_the_user_that_cannot_be_learned_from_end_the_run(
    template: str | None, role: str, problem: str, volume: Path, warm_bridge: WarmProcess
) -> None:
    (volume / "samples").mkdir()
    wrong = {"messages": [{"role": role, "content": "q"}, {"role": "assistant", "content": "a"}]}
    for name in ("training", "validation"):
        (volume / "samples" / f"{name}.jsonl").write_text(lines([*many(10), wrong, *many(1)]))
    for path in (volume / "model").glob("*token*"):
        path.unlink()
    (volume / "model" / "chat_template.jinja").unlink()
    write_tokenizer(volume / "model", template)
    spec = _spec("llama3.2-1b-lora", {"datasetRoot": "samples", "examples": "chat"}, 128)
    run = RecipeGang(volume, warm_bridge, volume, spec)
    run.run_to_end(ExitCode.BAD_DATA)
    assert problem in run.termination(0)["message"]


def _has_adapters_only(checkpoint: Path) -> bool:
    from torch.distributed.checkpoint import FileSystemReader

    names = FileSystemReader(checkpoint).read_metadata().state_dict_metadata
    weights = [name for name in names if name.endswith(".weight") and not name.startswith("optimizer.")]
    return bool(weights) and all(".adapter." in name for name in weights)
