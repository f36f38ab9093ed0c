"""Megatron-Bridge's recipe functions under the launcher: fine-tuned, killed, resumed with the same losses."""

import importlib.util
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from megatron_contract.bridge_run import Value
from megatron_contract.exit_codes import ExitCode

from tests.trainer.bridge_run import ITERATIONS, SAVED_EVERY, BridgeGang, write_model
from tests.trainer.warm_process import WarmProcess

Start = Callable[..., BridgeGang]
pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("modelopt") is None,
    reason="what Megatron-Bridge imports is not installed: run make bridge-training",
)


@pytest.fixture(scope="module")
def warm_bridge() -> Iterator[WarmProcess]:
    """The process that forks launchers, which has imported Megatron-Bridge."""
    process = WarmProcess("cpu", {"MEGATRON_PLATFORM": "cpu", "MEGATRON_ENGINE": "bridge"})
    yield process
    process.close()


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


def test_a_killed_lora_run_resumes_with_the_losses_of_an_undisturbed_one(start: Start, weights: Path) -> None:
    lora: dict[str, Value] = {"checkpoint__pretrained_checkpoint": str(weights), "peft__dim": 8}
    undisturbed = start("llama32_1b_peft_config", **lora)
    assert undisturbed.wait() == [0], undisturbed.log()[-3000:]

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
