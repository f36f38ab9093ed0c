"""How many restarts of its ranks a pod has left."""

import errno
import os
import signal
from types import SimpleNamespace
from typing import Any

import pytest
from megatron_contract.exit_codes import ExitCode

pytest.importorskip("torch", reason="make setup-trainer")

from megatron_trainer.launcher.agent import GangAgent
from megatron_trainer.launcher.rank_group import RankGroup
from megatron_trainer.rendezvous.state import GenerationPlan, RunEndedError
from megatron_trainer.telemetry.incidents import FailureKind, FailureReport
from megatron_trainer.telemetry.status import Status
from megatron_trainer.termination import Ending
from torch.distributed.elastic.agent.server.api import RunResult, WorkerState

LIMIT = 3


class EndedError(Exception):
    pass


def agent_started_from(iteration: int, newest: int) -> Any:
    """An agent without processes that has used all restarts; its report names the checkpoint of its start."""

    def end_pod(*_: object) -> None:
        raise EndedError

    agent: Any = object.__new__(GangAgent)
    agent._restarts = LIMIT
    agent._checkpoint_at_start = iteration
    agent._worker_group = SimpleNamespace(spec=SimpleNamespace(max_restarts=LIMIT))
    agent._checkpoints = SimpleNamespace(newest_to_load=lambda: newest)
    agent._status = Status(node_rank=0, train_iters=20)
    agent._status.set_checkpoint(iteration, 0.0)
    agent._end_pod = end_pod
    return agent


def test_a_checkpoint_that_is_not_reported_yet_renews_the_restarts() -> None:
    agent = agent_started_from(12, newest=16)
    assert "restart 1 of 3" in agent._use_restart(Ending(ExitCode.WORKER_DIED, "out of memory"), None).why


def test_without_a_newer_checkpoint_the_pod_ends_after_its_last_restart() -> None:
    agent = agent_started_from(12, newest=12)
    with pytest.raises(EndedError):
        agent._use_restart(Ending(ExitCode.WORKER_DIED, "out of memory"), None)


def test_a_bad_loss_of_an_unknown_iteration_uses_a_restart_and_then_ends_all_pods() -> None:
    agent = agent_started_from(12, newest=12)
    verdicts: list[Ending] = []
    agent._gang = SimpleNamespace(node_rank=0, end_run=verdicts.append)
    agent._hangs = SimpleNamespace(is_reported_soon=False)
    agent._generation_is_over = lambda: False
    failures: Any = {2: SimpleNamespace(exitcode=int(ExitCode.LOSS_NOT_FINITE))}
    result = RunResult(WorkerState.FAILED, failures=failures)
    ending = Ending(ExitCode.LOSS_NOT_FINITE, "rank 2 exited with code 67", 2)
    agent._classify_settled = lambda _: (ending, result)
    agent._restarts = LIMIT - 1
    restart = agent._check_ranks(result)
    assert restart.why == "rank 2 exited with code 67 (restart 3 of 3 without a new checkpoint)"
    with pytest.raises(RunEndedError) as ended:
        agent._check_ranks(result)
    assert verdicts == [ended.value.ending]
    assert ended.value.ending.code == ExitCode.LOSS_NOT_FINITE


@pytest.fixture
def at_the_start(monkeypatch: pytest.MonkeyPatch) -> Any:
    """An agent of node 0 that has met the others and starts its ranks."""
    monkeypatch.setattr(RankGroup, "_start_workers", lambda *_: {})
    agent = agent_started_from(12, newest=12)
    agent._restarts = LIMIT - 1
    agent._log = lambda _: None
    agent._gang = SimpleNamespace(plan=GenerationPlan(12), unexplained=None, node_rank=0)
    return agent


def test_a_lost_peer_of_which_no_pod_reported_uses_a_restart_of_node_0(at_the_start: Any) -> None:
    at_the_start._gang.unexplained = FailureReport(FailureKind.POD, "rank 3: ncclSystemError")
    at_the_start._start_workers(None)
    assert at_the_start._restarts == at_the_start._status.report.rank_restarts == LIMIT
    with pytest.raises(EndedError):
        at_the_start._start_workers(None)


def test_a_lost_peer_that_was_reported_or_replaced_uses_no_restart(at_the_start: Any) -> None:
    at_the_start._start_workers(None)
    assert at_the_start._restarts == LIMIT - 1


def cannot_read() -> int:
    raise OSError(errno.EIO, os.strerror(errno.EIO))


def test_checkpoints_that_cannot_be_read_renew_no_restarts() -> None:
    agent = agent_started_from(12, newest=16)
    agent._checkpoints.newest_to_load = cannot_read
    with pytest.raises(EndedError):
        agent._use_restart(Ending(ExitCode.WORKER_DIED, "out of memory"), None)


def test_a_pod_that_was_stopped_ends_so_also_if_its_checkpoints_cannot_be_read() -> None:
    agent = agent_started_from(12, newest=16)
    agent._checkpoints.newest = cannot_read
    agent._save_deadline = 1.0
    agent._classify = lambda _: Ending(ExitCode.TERMINATED, "saved")
    agent._stop = lambda: None
    failures: Any = {2: SimpleNamespace(exitcode=int(ExitCode.TERMINATED))}
    with pytest.raises(RunEndedError) as ended:
        agent._save_and_exit(RunResult(WorkerState.FAILED, failures=failures))
    assert ended.value.ending.code == ExitCode.TERMINATED


@pytest.mark.parametrize(
    ("code", "hang", "judged"),
    [(-signal.SIGSEGV, True, False), (-signal.SIGSEGV, False, True), (1, True, True)],
    ids=["a crash while a hang is reported", "any other crash", "another exit meanwhile"],
)
def test_a_rank_that_crashes_as_it_writes_its_stacks_is_part_of_the_hang(
    code: int, hang: bool, judged: bool
) -> None:
    class JudgedError(Exception):
        pass

    def judge(_: object) -> None:
        raise JudgedError

    agent: Any = object.__new__(GangAgent)
    agent._hangs = SimpleNamespace(is_reported_soon=hang)
    agent._classify_settled = judge
    failures: Any = {2: SimpleNamespace(exitcode=code)}
    result = RunResult(WorkerState.FAILED, failures=failures)
    if judged:
        with pytest.raises(JudgedError):
            agent._check_ranks(result)
    else:
        assert agent._check_ranks(result) is None
