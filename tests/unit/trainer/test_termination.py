"""The termination message of a pod."""

import json
from pathlib import Path

import pytest
from megatron_contract.exit_codes import ExitCode
from megatron_contract.progress import PROGRESS_SCHEMA, ProgressReport
from megatron_contract.termination import TerminationMessage
from megatron_trainer.termination import Ending, write

REPORT = ProgressReport(
    PROGRESS_SCHEMA,
    "failed",
    iteration=120,
    checkpoint_iteration=100,
    best_checkpoint_iteration=80,
    best_checkpoint_loss=2.5,
)


def test_the_termination_log_contains_the_message_of_the_contract(tmp_path: Path) -> None:
    path = tmp_path / "log"
    write(path, Ending(ExitCode.WORKER_DIED, "rank 3 was killed by SIGKILL", 3), 1, REPORT)
    message = json.loads(path.read_text())
    assert TerminationMessage.from_json(message).to_json().keys() == message.keys()
    assert message["reason"] == "WorkerDied"
    assert (message["nodeRank"], message["rank"], message["exitCode"]) == (1, 3, 138)
    assert (message["iteration"], message["checkpointIteration"]) == (120, 100)
    assert (message["bestCheckpointIteration"], message["bestCheckpointLoss"]) == (80, 2.5)


@pytest.mark.parametrize("letter", ["x", "ß", "語"])
def test_a_long_message_stays_below_the_limit_of_kubelet(letter: str, tmp_path: Path) -> None:
    path = tmp_path / "log"
    write(path, Ending(ExitCode.USAGE, letter * 10_000), 0, None)
    assert len(path.read_bytes()) < 4096
    assert set(json.loads(path.read_text())["message"]) == {letter}


def test_the_message_is_printed_if_the_termination_log_cannot_be_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(tmp_path, Ending(ExitCode.OK, "done"), 0, REPORT)
    assert "done" in capsys.readouterr().out


def test_an_ending_survives_json() -> None:
    ending = Ending(ExitCode.LOSS_NOT_FINITE, "lm loss is nan at iteration 7", 2)
    assert Ending.from_json(json.loads(json.dumps(ending.to_json()))) == ending
