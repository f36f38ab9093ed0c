"""A run that resumes with another learning rate than that of its checkpoint."""

from collections.abc import Callable
from pathlib import Path

import pytest
from megatron_trainer.flags import FSDP_FORMAT, MEGATRON_FSDP

from tests.trainer.gang import SAVE_INTERVAL, Gang
from tests.trainer.test_layout_of_a_run import until_iteration
from tests.trainer.warm_process import WarmProcess

CONSTANT = ("--lr-decay-style", "constant", "--lr-warmup-iters", "0", "--min-lr", "0")


def distributed(run: Gang) -> None:
    """Megatron's distributed optimizer, which the flags have."""


def whole(run: Gang) -> None:
    """Each rank has all states."""
    run.flags.remove("--use-distributed-optimizer")


def fully_sharded(run: Gang) -> None:
    """Megatron FSDP."""
    run.flags.remove("--async-save")
    run.flags += ["--tensor-model-parallel-size", "1", MEGATRON_FSDP, "--ckpt-format", FSDP_FORMAT]


@pytest.mark.parametrize("optimizer", [distributed, whole, fully_sharded])
def test_an_edited_learning_rate_is_that_of_the_next_iterations(
    optimizer: Callable[[Gang], None], tmp_path: Path, corpus: Path, warm: WarmProcess
) -> None:
    run = Gang(tmp_path, corpus, nodes=1, warm=warm, ranks=2)
    optimizer(run)
    assert until_iteration(run, SAVE_INTERVAL, *CONSTANT, "--lr", "2e-3") == 0, run.log()[-3000:]
    assert until_iteration(run, SAVE_INTERVAL + 2, *CONSTANT, "--lr", "1e-3") == 0, run.log()[-3000:]
    rates = {each["iteration"]: each["learningRate"] for each in run.records()}
    assert [rates[SAVE_INTERVAL + offset] for offset in range(3)] == [2e-3, 1e-3, 1e-3]
