"""How a pod ends if one of its ranks failed and another cannot be killed."""

from types import SimpleNamespace
from typing import Any

import pytest
from megatron_contract.exit_codes import ExitCode
from megatron_contract.hardware import Evidence

pytest.importorskip("torch", reason="make setup-trainer")

from megatron_trainer.launcher.agent import GangAgent, _Restart
from megatron_trainer.launcher.fork_server import ForkServerLostError
from megatron_trainer.rendezvous.state import RunEndedError
from megatron_trainer.telemetry.incidents import FailureKind, FailureReport
from megatron_trainer.telemetry.status import Status
from megatron_trainer.termination import Ending
from torch.distributed.elastic.agent.server.api import RunResult, WorkerState

OFF_THE_BUS = Ending(ExitCode.WORKER_DIED, "GPU 2 has fallen off the bus", 2, Evidence.DEVICE_LOST)
REPORT = FailureReport(FailureKind.RANK, "rank 2 exited with code 1", 1, 2)


@pytest.fixture
def agent() -> Any:
    """An agent without processes; `reported` has what the other pods know."""
    agent: Any = object.__new__(GangAgent)
    agent.reported = []
    agent.log = []
    agent._log = agent.log.append
    agent._gang = SimpleNamespace(advance=agent.reported.append)

    def stop() -> None:
        raise ForkServerLostError("a rank could not be killed within 30 s")

    agent._stop = stop
    return agent


def test_the_pod_ends_with_the_evidence_after_a_report_to_the_others(agent: Any) -> None:
    with pytest.raises(RunEndedError) as ended:
        agent._end_pod(OFF_THE_BUS, REPORT)
    assert ended.value.ending == OFF_THE_BUS
    assert agent.reported == [ended.value.report]
    assert agent.reported[0].cause == OFF_THE_BUS.message
    assert agent.log == ["the ranks were not stopped: a rank could not be killed within 30 s"]


def test_the_stop_at_the_end_of_the_agent_does_not_replace_why_it_ends(agent: Any) -> None:
    agent._invoke_run = lambda _role: agent._end_pod(OFF_THE_BUS, REPORT)
    with pytest.raises(RunEndedError) as ended:
        agent.run()
    assert ended.value.ending == OFF_THE_BUS


def test_the_others_know_of_a_restart_before_the_ranks_are_stopped(agent: Any) -> None:
    agent._worker_group = SimpleNamespace(state=WorkerState.HEALTHY)
    agent._status = Status(node_rank=1, train_iters=20)
    agent._terminations = agent._restarts = 0
    agent._checkpoints = SimpleNamespace(fenced=None)
    agent._initialize_workers = lambda _group: None
    agent._monitor_workers = lambda _group: RunResult(WorkerState.FAILED)
    agent._check_ranks = lambda _result: _Restart(REPORT.cause, REPORT)
    with pytest.raises(ForkServerLostError):
        agent._invoke_run()
    assert agent.reported == [REPORT]
