"""Which rank's exit explains those of the others."""

import signal
from pathlib import Path

import pytest
from megatron_contract.exit_codes import ExitCode
from megatron_contract.hardware import Evidence
from megatron_trainer.health.failure_classification import classify_exits, failure_report
from megatron_trainer.health.oom_kills import OomKillCounter
from megatron_trainer.telemetry.incidents import FailureKind
from megatron_trainer.telemetry.rank_failure import RankFailure

LOST = RankFailure(140, "Connection closed by peer")


@pytest.fixture
def oom_kills(tmp_path: Path) -> OomKillCounter:
    (tmp_path / "memory.events").write_text("oom_kill 0\n")
    return OomKillCounter(tmp_path)


@pytest.mark.parametrize(
    ("codes", "failures", "message"),
    [
        ({0: 140, 1: -9}, {0: LOST}, "rank 1 was killed by SIGKILL"),
        ({0: 140, 1: 0}, {0: LOST}, "rank 1 exited with code 0 before the last iteration was done"),
        ({0: 138, 1: 67}, {1: RankFailure(67, "lm loss is nan")}, "rank 1: lm loss is nan"),
        ({0: 143, 1: 140}, {1: LOST}, "rank 1: Connection closed by peer"),
        ({2: 3}, {}, "rank 2 exited with code 3"),
    ],
)
def test_a_recurring_failure_comes_before_one_with_its_own_cause_before_a_lost_peer(
    codes: dict[int, int], failures: dict[int, RankFailure], message: str, oom_kills: OomKillCounter
) -> None:
    assert classify_exits(codes, failures, oom_kills).message == message


@pytest.mark.parametrize(
    ("number", "name"), [(signal.SIGTERM, "SIGTERM"), (34, "SIGRTMIN"), (35, "signal 35"), (64, "SIGRTMAX")]
)
def test_a_rank_that_was_killed_by_a_signal_without_a_name_has_died(
    number: int, name: str, oom_kills: OomKillCounter
) -> None:
    ending = classify_exits({1: -number}, {}, oom_kills)
    assert (ending.code, ending.message) == (ExitCode.WORKER_DIED, f"rank 1 was killed by {name}")


def test_an_oom_kill_is_attributed_to_the_killed_rank(tmp_path: Path, oom_kills: OomKillCounter) -> None:
    (tmp_path / "memory.events").write_text("oom_kill 1\n")
    assert classify_exits({0: 140}, {0: LOST}, oom_kills).message == "rank 0: Connection closed by peer"
    killed = classify_exits({0: 140, 1: -signal.SIGKILL}, {0: LOST}, oom_kills)
    assert killed.message == "rank 1 was killed by SIGKILL: the pod is out of memory"


def test_the_report_names_the_rank_and_the_failed_iteration(oom_kills: OomKillCounter) -> None:
    failures = {1: RankFailure(67, "lm loss is nan at iteration 7", iteration=7)}
    report = failure_report(classify_exits({1: 67}, failures, oom_kills), failures, node_rank=3)
    assert (report.kind, report.node_rank, report.rank, report.failed_iteration) == (
        FailureKind.LOSS,
        3,
        1,
        7,
    )


def test_the_report_of_a_lost_peer_is_indirect(oom_kills: OomKillCounter) -> None:
    report = failure_report(
        classify_exits({0: ExitCode.PEER_LOST}, {0: LOST}, oom_kills), {0: LOST}, node_rank=3
    )
    assert report.indirect


def test_failed_hardware_explains_all_other_exits(oom_kills: OomKillCounter) -> None:
    failures = {
        0: LOST,
        1: RankFailure(67, "lm loss is nan", iteration=7),
        2: RankFailure(138, "CUDA error: uncorrectable ECC error encountered", evidence="DeviceMemory"),
    }
    ending = classify_exits({0: 140, 1: 67, 2: 138}, failures, oom_kills)
    assert (ending.rank, ending.evidence) == (2, Evidence.DEVICE_MEMORY)
    assert failure_report(ending, failures, node_rank=3).failed_iteration is None


WATCHDOG = "  what():  [PG ID 0 PG GUID 0 Rank 1] Process group watchdog thread terminated with exception: "


@pytest.mark.parametrize(
    ("stderr", "code", "evidence", "error"),
    [
        (
            f"{WATCHDOG}CUDA error: uncorrectable ECC error encountered\n  frame #0: c10::Error\n",
            ExitCode.WORKER_DIED,
            Evidence.DEVICE_MEMORY,
            "CUDA error: uncorrectable ECC error encountered",
        ),
        (
            f"{WATCHDOG}NCCL error: remote process exited or there was a network error\n",
            ExitCode.PEER_LOST,
            None,
            "NCCL error: remote process exited or there was a network error",
        ),
        (
            "[Rank 1] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=7, OpType=ALLREDUCE)\n"
            "terminate called after throwing an instance of 'c10::DistBackendError'\n",
            ExitCode.PEER_LOST,
            None,
            "Watchdog caught collective operation timeout: WorkNCCL(SeqNum=7, OpType=ALLREDUCE)",
        ),
        (
            "warning: slow\n  what():  std::bad_alloc\n",
            ExitCode.WORKER_DIED,
            None,
            "what(): std::bad_alloc",
        ),
        ("warning: slow\n", ExitCode.WORKER_DIED, None, "rank 1 was killed by SIGABRT"),
    ],
)
def test_an_abort_is_classified_by_what_the_rank_wrote_to_stderr(
    stderr: str, code: ExitCode, evidence: Evidence | None, error: str, oom_kills: OomKillCounter
) -> None:
    ending = classify_exits({1: -signal.SIGABRT}, {}, oom_kills, {1: stderr})
    assert (ending.code, ending.evidence) == (code, evidence)
    assert ending.message.startswith("rank 1 was killed by SIGABRT")
    assert ending.message.endswith(error)


def test_of_ranks_that_all_lost_a_peer_the_first_report_explains_the_others(
    oom_kills: OomKillCounter,
) -> None:
    failures = {3: RankFailure(140, "NCCL error: unhandled system error"), 1: LOST}
    codes = {0: -signal.SIGABRT, 1: 140, 3: 140}
    stderr = {0: f"{WATCHDOG}NCCL error: remote process exited or there was a network error\n"}
    ending = classify_exits(codes, failures, oom_kills, stderr)
    assert (ending.code, ending.rank) == (ExitCode.PEER_LOST, 3)


def test_a_damaged_checkpoint_explains_what_ranks_raise_that_have_read_half_of_it(
    oom_kills: OomKillCounter,
) -> None:
    failures = {
        0: RankFailure(138, "checkpoint of iteration 16 cannot be loaded: KeyError: 'optimizer'"),
        2: RankFailure(138, "checkpoint of iteration 16 cannot be loaded: EOFError: ", unreadable=16),
    }
    ending = classify_exits({0: 138, 1: -signal.SIGSEGV, 2: 138}, failures, oom_kills)
    assert failure_report(ending, failures, node_rank=0).unreadable == 16


def test_the_text_of_an_abort_is_reported_without_values_of_secrets(
    oom_kills: OomKillCounter, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MEGATRON_SECRET_VARIABLES", "TOKEN")
    monkeypatch.setenv("TOKEN", "hf_abcdefgh")
    ending = classify_exits({0: -signal.SIGABRT}, {}, oom_kills, {0: "what(): CUDA error: hf_abcdefgh\n"})
    assert "hf_abcdefgh" not in ending.message
    assert "CUDA error" in ending.message
