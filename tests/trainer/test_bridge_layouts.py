"""Runs of Megatron-Bridge that continue in another layout or schedule, with their optimizer."""

import importlib.util
import shutil
from pathlib import Path

import pytest
from megatron_contract.bridge_run import Value
from megatron_trainer.checkpoints import selection
from megatron_trainer.checkpoints.volume import directory_size

from tests.trainer.bridge_run import (
    ITERATIONS,
    LENGTH,
    SAVED_EVERY,
    BridgeGang,
    NewRun,
    RecipeGang,
    write_model,
    write_samples,
)
from tests.trainer.warm_process import WarmProcess

TRACKER = "latest_checkpointed_iteration.txt"
RESHARDABLE: dict[str, Value] = {"checkpoint.dist_ckpt_optim_fully_reshardable": True}
TENSORS: dict[str, Value] = {
    "model.tensor_model_parallel_size": 2,
    "model.pipeline_model_parallel_size": 1,
}
STATES: dict[str, Value] = {"checkpoint.save_optim": True, "checkpoint.save_rng": True}
PIPELINE: dict[str, Value] = {
    "model.tensor_model_parallel_size": 1,
    "model.pipeline_model_parallel_size": 2,
}
SHARED_STATES: dict[str, Value] = {
    "ddp__use_distributed_optimizer": True,
    "optimizer__use_distributed_optimizer": True,
}
"""As the operator sets them; the functions of adapters leave them out."""
pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("modelopt") is None,
    reason="what Megatron-Bridge imports is not installed: run make bridge-training",
)


@pytest.fixture(scope="module")
def weights(new_run: NewRun) -> Path:
    """The checkpoints of a pretrained model."""
    run = new_run("pretrain")
    run.run_to_end()
    return run.save


def continued(run: BridgeGang, iteration: int, *changes: dict[str, Value]) -> list[int]:
    """Start or continue a run up to an iteration, with other overrides; returns the exit codes."""
    for change in changes:
        run.overrides |= change
    run.overrides["train.train_iters"] = iteration
    run.start()
    return run.wait()


DORA: dict[str, Value] = {
    "peft__scheme": "dora",
    "peft__target_modules": ["linear_qkv", "linear_proj", "linear_fc2"],
}
"""Without the layer whose magnitudes load at the same TP alone."""


@pytest.mark.parametrize(
    ("kind", "more"),
    [
        ("pretrain", {}),
        ("sft", {}),
        ("peft", {}),
        ("peft", DORA),
        ("peft", DORA | {"model__sequence_parallel": True}),
    ],
)
def test_a_run_continues_in_another_layout_after_one_checkpoint_with_elastic(
    kind: str, more: dict[str, Value], new_run: NewRun, weights: Path
) -> None:
    own: dict[str, Value] = {} if kind == "pretrain" else {"checkpoint__pretrained_checkpoint": str(weights)}
    own |= {"peft__dim": 8, "peft__dropout": 0.0, **SHARED_STATES, **more} if kind == "peft" else {}
    run, same_layout = (new_run(kind, **own) for _ in range(2))
    assert continued(run, SAVED_EVERY) == [0], run.log()[-3000:]
    assert continued(run, 2 * SAVED_EVERY, PIPELINE, RESHARDABLE) != [0]
    assert "not supported for DistributedOptimizer with sharding type dp_reshardable" in run.log()

    assert continued(run, 2 * SAVED_EVERY, TENSORS) == [0], run.log()[-3000:]
    assert continued(run, ITERATIONS, PIPELINE) == [0], run.log()[-3000:]

    assert continued(same_layout, ITERATIONS) == [0], same_layout.log()[-3000:]
    expected, losses = same_layout.losses(), run.losses()
    assert sorted(losses) == sorted(expected) == list(range(1, ITERATIONS + 1))
    for iteration, (loss,) in expected.items():
        assert losses[iteration] == [pytest.approx(loss, rel=1e-3)], iteration


def test_an_edited_schedule_is_that_of_the_next_iterations(new_run: NewRun) -> None:
    first: dict[str, Value] = {"optimizer.lr": 0.01, "scheduler.lr_decay_style": "constant"}
    second: dict[str, Value] = {
        **{"optimizer.lr": 0.02, "scheduler.lr_decay_iters": 50},
        **{"scheduler.start_weight_decay": 0.2, "scheduler.end_weight_decay": 0.2},
    }
    run = new_run("sft")
    assert continued(run, SAVED_EVERY, first) == [0], run.log()[-3000:]
    assert continued(run, SAVED_EVERY + 2, second) == [0], run.log()[-3000:]
    rates = {each["iteration"]: each["learningRate"] for each in run.records()}
    assert [rates[SAVED_EVERY + offset] for offset in range(3)] == [0.01, 0.02, 0.02]


@pytest.mark.parametrize("kind", ["pretrain", "peft"])
def test_a_killed_run_without_optimizer_states_resumes_from_its_weights_and_schedule(
    kind: str, new_run: NewRun, weights: Path
) -> None:
    own: dict[str, Value] = {} if kind == "pretrain" else {"checkpoint__pretrained_checkpoint": str(weights)}
    own |= {"peft__dim": 8, "peft__dropout": 0.0, **SHARED_STATES} if kind == "peft" else {}
    undisturbed, run = new_run(kind, **own), new_run(kind, **own)
    assert continued(undisturbed, ITERATIONS) == [0], undisturbed.log()[-3000:]

    run.overrides |= {"checkpoint.save_optim": False, "checkpoint.save_rng": False}
    run.overrides["train.train_iters"] = ITERATIONS
    run.hold_after(SAVED_EVERY + 1)
    run.start()
    run.await_iteration(SAVED_EVERY + 1)
    run.kill_rank(0)
    run.release()
    assert run.wait() == [0], run.log()[-3000:]

    (incident,) = run.incidents()
    assert incident["resumedFrom"] == SAVED_EVERY
    losses, expected = run.losses(), undisturbed.losses()
    first = SAVED_EVERY + 1
    assert losses[first] == expected[first] * 2, "the weights of the checkpoint, without dropout"
    assert losses[first + 1] != expected[first + 1], "Adam begins again"
    rates = {each["iteration"]: each["learningRate"] for each in undisturbed.records()}
    assert all(each["learningRate"] == rates[each["iteration"]] for each in run.records())
    assert size(run) < size(undisturbed) / 3

    # An edit back: what was saved without states is loaded, and the next checkpoint has them.
    assert continued(run, ITERATIONS + SAVED_EVERY, STATES) == [0], run.log()[-3000:]
    assert continued(run, ITERATIONS + SAVED_EVERY + 1) == [0], run.log()[-3000:]
    # And without them in another layout, at once.
    without: dict[str, Value] = dict.fromkeys(STATES, False)
    assert continued(run, ITERATIONS + 2 * SAVED_EVERY, without) == [0], run.log()[-3000:]
    assert continued(run, ITERATIONS + 2 * SAVED_EVERY + 1, PIPELINE) == [0], run.log()[-3000:]
    assert sorted(run.losses()) == list(range(1, ITERATIONS + 2 * SAVED_EVERY + 2))


def size(run: BridgeGang) -> int:
    return directory_size(selection.directory(run.save, ITERATIONS))


def test_no_sample_is_repeated_or_left_out_at_another_number_of_data_parallel_ranks(
    tmp_path_factory: pytest.TempPathFactory, warm_bridge: WarmProcess, weights: Path
) -> None:
    data = tmp_path_factory.mktemp("data")
    write_model(data / "model")
    write_samples(data / "samples")
    (data / "weights").symlink_to(weights)

    def run(tp: int) -> RecipeGang:
        spec = {
            "recipe": "llama3.2-1b-sft",
            "accelerator": {"type": "cpu", "count": 2},
            "init": {"modelFolder": "/data/model", "from": {"megatron": {"path": "/data/weights"}}},
            "data": {"volume": {"claimName": "corpus"}, "datasetRoot": "samples"},
            "parallelism": {"tensorModelParallelSize": tp},
            "training": {
                **{"seqLength": LENGTH, "globalBatchSize": 4, "microBatchSize": 1, "trainIters": ITERATIONS},
                **{"lr": 0.001, "lrWarmupIters": 1, "evalIters": 0},
            },
            "checkpoint": {"saveInterval": SAVED_EVERY, "volume": {"size": "100Gi"}},
            "recovery": {"elastic": {"minCount": 2}},
        }
        return RecipeGang(tmp_path_factory.mktemp("run"), warm_bridge, data, spec)

    whole, changed = run(2), run(1)
    whole.run_to_end()
    shutil.copytree(whole.save, changed.save)
    for iteration in range(2 * SAVED_EVERY, ITERATIONS + 1, SAVED_EVERY):
        shutil.rmtree(changed.save / f"iter_{iteration:07}")
    (changed.save / TRACKER).write_text(str(SAVED_EVERY))
    changed.run_to_end()

    samples = changed.samples()
    assert samples.problems() == []
    assert samples.places() == whole.samples().places()
    assert [kept.start.ranks for kept in samples.kept()] == [1, 2]
    expected = {iteration: loss for iteration, (loss,) in whole.losses().items()}
    for iteration in range(SAVED_EVERY + 1, ITERATIONS + 1):
        assert changed.losses()[iteration][-1] == pytest.approx(expected[iteration], rel=1e-3), iteration
