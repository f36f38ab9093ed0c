"""One rank's end explains those of the others."""

import signal
from pathlib import Path

import pytest
from megatron_contract.exit_codes import ExitCode
from megatron_trainer.health.failure_classification import culprit, report_of
from megatron_trainer.health.oom_kills import MemoryKills
from megatron_trainer.telemetry.incidents import Kind

LOST = {"exitCode": 140, "message": "Connection closed by peer"}


@pytest.fixture
def memory(tmp_path: Path) -> MemoryKills:
    (tmp_path / "memory.events").write_text("oom_kill 0\n")
    return MemoryKills(tmp_path)


@pytest.mark.parametrize(
    ("codes", "said", "message"),
    [
        ({0: 140, 1: -9}, {0: LOST}, "rank 1 was killed by SIGKILL"),
        ({0: 140, 1: 0}, {0: LOST}, "rank 1 exited with code 0 before the last iteration was done"),
        ({0: 138, 1: 67}, {1: {"message": "lm loss is nan"}}, "rank 1: lm loss is nan"),
        ({0: 143, 1: 140}, {1: LOST}, "rank 1: Connection closed by peer"),
        ({2: 3}, {}, "rank 2 exited with code 3"),
    ],
)
def test_it_is_the_one_that_comes_again_then_the_one_that_lost_nobody(
    codes: dict[int, int], said: dict[int, dict[str, object]], message: str, memory: MemoryKills
) -> None:
    assert culprit(codes, said, memory).message == message


def test_a_kill_for_want_of_memory_is_told_of_the_killed_rank(tmp_path: Path, memory: MemoryKills) -> None:
    (tmp_path / "memory.events").write_text("oom_kill 1\n")
    assert culprit({0: 140}, {0: LOST}, memory).message == "rank 0: Connection closed by peer"
    killed = culprit({0: 140, 1: -signal.SIGKILL}, {0: LOST}, memory)
    assert killed.message == "rank 1 was killed by SIGKILL: the pod is out of memory"


def test_the_gang_is_told_who_failed_in_which_step(memory: MemoryKills) -> None:
    said = {1: {"message": "lm loss is nan at iteration 7", "iteration": 7}}
    report = report_of(culprit({1: 67}, said, memory), said, node_rank=3)
    assert (report.kind, report.node_rank, report.rank, report.failed_iteration) == (Kind.LOSS, 3, 1, 7)


def test_who_lost_a_peer_names_nobody(memory: MemoryKills) -> None:
    report = report_of(culprit({0: ExitCode.PEER_LOST}, {0: LOST}, memory), {0: LOST}, node_rank=3)
    assert report.hearsay
