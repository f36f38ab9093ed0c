import json
from pathlib import Path

import pytest
from megatron_contract.exit_codes import ExitCode
from megatron_contract.termination import TerminationMessage
from megatron_trainer.launcher.termination import Ending, write


def test_the_termination_log_holds_one_object_with_the_fields_of_the_contract(tmp_path: Path) -> None:
    path = tmp_path / "log"
    write(path, Ending(ExitCode.WORKER_DIED, "rank 3 was killed by SIGKILL", 3), 1, 120, 100)
    message = json.loads(path.read_text())
    assert TerminationMessage.from_json(message).to_json().keys() == message.keys()
    assert message["reason"] == "WorkerDied"
    assert (message["nodeRank"], message["rank"], message["exitCode"]) == (1, 3, 138)


@pytest.mark.parametrize("letter", ["x", "ß", "語"])
def test_a_long_message_stays_below_what_kubelet_reads(letter: str, tmp_path: Path) -> None:
    path = tmp_path / "log"
    write(path, Ending(ExitCode.USAGE, letter * 10_000), 0, None, None)
    assert len(path.read_bytes()) < 4096
    assert set(json.loads(path.read_text())["message"]) == {letter}


def test_a_log_that_cannot_be_written_is_told_in_the_pods_log(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(tmp_path, Ending(ExitCode.OK, "done"), 0, 1, 1)
    assert "done" in capsys.readouterr().out


def test_an_ending_survives_the_store() -> None:
    ending = Ending(ExitCode.LOSS_NOT_FINITE, "lm loss is nan at iteration 7", 2)
    assert Ending.from_json(json.loads(json.dumps(ending.to_json()))) == ending
