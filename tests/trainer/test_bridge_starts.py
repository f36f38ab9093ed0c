"""Runs of Megatron-Bridge that start from another one's weights, or adapters, in another layout."""

import importlib.util
import json
import shutil
from pathlib import Path

import pytest
from megatron_contract.bridge_run import BASE_OF_EXPORT, MODEL_FOLDER, Value
from megatron_contract.exit_codes import ExitCode

from testkit.weights.warm import WarmConverter
from tests.trainer.bridge_run import ITERATIONS, SAVED_EVERY, VOCABULARY, BridgeGang, NewRun

LORA: dict[str, Value] = {"peft__dim": 8, "peft__dropout": 0.0}
LORA |= {f"{section}__use_distributed_optimizer": True for section in ("ddp", "optimizer")}
PIPELINE: dict[str, Value] = {
    "model__tensor_model_parallel_size": 1,
    "model__pipeline_model_parallel_size": 2,
}
FROM = "checkpoint__pretrained_checkpoint"
pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("modelopt") is None,
    reason="what Megatron-Bridge imports is not installed: run make bridge-training",
)


@pytest.fixture(scope="module")
def pretrained(new_run: NewRun) -> BridgeGang:
    """A pretrained model."""
    run = new_run("pretrain")
    run.run_to_end()
    return run


@pytest.fixture(scope="module")
def adapted(new_run: NewRun, pretrained: BridgeGang) -> BridgeGang:
    """Adapters of the pretrained model."""
    run = new_run("peft", **LORA, **{FROM: str(pretrained.save)})
    run.run_to_end()
    return run


def first_loss(run: BridgeGang) -> float:
    """The loss of a run's first iteration, which it does alone."""
    run.overrides["train.train_iters"] = 1
    run.run_to_end()
    ((loss,),) = run.losses().values()
    return loss


def configuration(run: BridgeGang, iteration: int = ITERATIONS) -> str:
    return (run.save / f"iter_{iteration:07}" / "run_config.yaml").read_text()


def test_adapters_train_on_in_another_layout_and_resume_with_the_same_losses(
    new_run: NewRun, pretrained: BridgeGang, adapted: BridgeGang
) -> None:
    from_adapters: dict[str, Value] = {**LORA, FROM: str(adapted.save)}
    new = first_loss(new_run("peft", **LORA, **{FROM: str(pretrained.save)}))
    same_layout = first_loss(new_run("peft", **from_adapters))
    undisturbed = new_run("peft", **from_adapters, **PIPELINE)
    undisturbed.run_to_end()
    killed = new_run("peft", **from_adapters, **PIPELINE, train__train_iters=100)
    killed.run_with_a_killed_rank(SAVED_EVERY + 1, until=ITERATIONS)

    expected = undisturbed.distinct_losses()
    (loss,) = expected[1]
    assert loss == pytest.approx(same_layout, rel=1e-3)
    assert abs(same_layout - new) > 0.05, "the adapters have trained before"
    assert killed.distinct_losses(until=ITERATIONS) == expected
    base = pretrained.save / f"iter_{ITERATIONS:07}"
    assert f"pretrained_checkpoint: {base}\n" in configuration(undisturbed)
    assert json.loads((killed.save / "weights.json").read_text())["weights"] == str(base)


def test_all_weights_are_trained_from_the_merged_ones_in_another_layout(
    new_run: NewRun, pretrained: BridgeGang, adapted: BridgeGang
) -> None:
    beside = first_loss(new_run("peft", **LORA, **{FROM: str(adapted.save)}))
    without = first_loss(new_run("sft", **{FROM: str(pretrained.save)}))
    run = new_run("sft", **{FROM: str(adapted.save)}, **PIPELINE)
    run.run_to_end()
    resumed = new_run("sft", **{FROM: str(adapted.save)}, **PIPELINE, train__train_iters=100)
    resumed.run_with_a_killed_rank(SAVED_EVERY + 1, until=ITERATIONS)

    losses = run.distinct_losses()
    # Merged weights are rounded to bfloat16.
    (loss,) = losses[1]
    assert loss == pytest.approx(beside, rel=3e-3)
    assert abs(beside - without) > 0.05
    assert resumed.distinct_losses(until=ITERATIONS) == losses
    assert "peft: null\n" in configuration(run)


def test_an_export_merges_adapters_into_the_checkpoint_that_they_were_trained_on(
    new_run: NewRun, adapted: BridgeGang, converter: WarmConverter, tmp_path: Path
) -> None:
    """The base has a configuration and a tokenizer, and no weights."""
    exported, imported = tmp_path / "exported", tmp_path / "imported"
    for words in (
        ("export", "--from", adapted.save, "--to", exported, "--base", str(adapted.overrides[MODEL_FOLDER])),
        ("import", "--from", exported, "--to", imported),
    ):
        ended = converter.convert(*words, log=tmp_path / "log")
        assert ended.code == 0, ended.output
    by_files, by_run = (
        first_loss(new_run("sft", **{FROM: str(folder)})) for folder in (imported, adapted.save)
    )
    assert by_files == pytest.approx(by_run, rel=1e-6)


def test_adapters_of_weights_with_fewer_rows_than_their_export_needs_are_refused_before_they_train(
    new_run: NewRun, pretrained: BridgeGang, tmp_path: Path
) -> None:
    model = Path(str(pretrained.overrides[MODEL_FOLDER]))
    larger = json.loads((model / "config.json").read_text()) | {"vocab_size": VOCABULARY + 8}
    (tmp_path / "config.json").write_text(json.dumps(larger))
    weights: dict[str, Value] = {FROM: str(pretrained.save)}
    run = new_run("peft", **LORA, **weights, **{BASE_OF_EXPORT.replace(".", "__"): str(tmp_path)})
    run.run_to_end(int(ExitCode.BAD_DATA))
    message = run.termination(0)["message"]
    assert (
        f"{tmp_path} has {VOCABULARY + 8} rows of the vocabulary, and the model of {pretrained.save}"
        in message
    )
    assert f"has {VOCABULARY}, as its tokenizer" in message
    assert not run.losses()


def test_new_adapters_keep_the_weights_of_a_run_that_trains_on(
    new_run: NewRun, pretrained: BridgeGang
) -> None:
    base = new_run("pretrain")
    shutil.copytree(pretrained.save, base.save)
    settings: dict[str, Value] = {**LORA, FROM: str(base.save)}
    undisturbed, run = (new_run("peft", **settings, **PIPELINE) for _ in range(2))
    undisturbed.run_to_end()
    run.overrides["train.train_iters"] = SAVED_EVERY
    run.run_to_end()
    base.overrides["train.train_iters"] = ITERATIONS + SAVED_EVERY
    base.run_to_end()
    assert (base.save / f"iter_{ITERATIONS + SAVED_EVERY:07}").is_dir()

    run.overrides["train.train_iters"] = ITERATIONS
    run.run_to_end()
    assert run.distinct_losses() == undisturbed.distinct_losses()

    (base.save / f"iter_{ITERATIONS:07}").rename(base.save / "elsewhere")
    run.overrides["train.train_iters"] = ITERATIONS + SAVED_EVERY
    run.run_to_end(int(ExitCode.BAD_DATA))
    message = run.termination(0)["message"]
    assert f"belong to the weights in {base.save}/iter_{ITERATIONS:07}, which is not there" in message


def test_all_weights_from_merged_ones_resume_without_the_weights_below_the_adapters(
    new_run: NewRun, pretrained: BridgeGang
) -> None:
    base = new_run("pretrain")
    shutil.copytree(pretrained.save, base.save)
    lora = new_run("peft", **LORA, **{FROM: str(base.save)}, train__train_iters=SAVED_EVERY)
    lora.run_to_end()
    run = new_run("sft", **{FROM: str(lora.save)}, train__train_iters=SAVED_EVERY)
    run.run_to_end()
    for folder in (base.save, lora.save):
        shutil.rmtree(folder)

    run.overrides["train.train_iters"] = ITERATIONS
    run.run_to_end()
    assert sorted(run.distinct_losses()) == list(range(1, ITERATIONS + 1))


def test_adapters_of_another_rank_are_refused_with_both_values(new_run: NewRun, adapted: BridgeGang) -> None:
    run = new_run("peft", **LORA | {"peft__dim": 4}, **{FROM: str(adapted.save)})
    run.run_to_end(int(ExitCode.BAD_DATA))
    assert "have dim 8, and this run has 4; set peft to theirs" in run.termination(0)["message"]


def test_a_run_starts_from_the_beginning_once_its_only_checkpoint_is_set_aside(new_run: NewRun) -> None:
    run = new_run("pretrain", train__train_iters=SAVED_EVERY)
    run.run_to_end()
    (run.save / f"iter_{SAVED_EVERY:07}" / "run_config.yaml").unlink()
    run.run_to_end()
    assert sorted(run.losses()) == [1, SAVED_EVERY]
    assert all(first == second for first, second in run.losses().values())
