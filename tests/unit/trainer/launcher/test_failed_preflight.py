"""What a healthy pod does when the preflight finds another at fault, with a real fork server."""

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from megatron_contract.exit_codes import ExitCode

pytest.importorskip("torch", reason="make setup-trainer")

from megatron_trainer.launcher.agent import GangAgent, PodServices
from megatron_trainer.launcher.fork_server import ForkServer, Programs
from megatron_trainer.rendezvous.state import GenerationPlan, State
from megatron_trainer.telemetry.incidents import FailureKind, FailureReport
from megatron_trainer.telemetry.status import Status
from torch.distributed.elastic.agent.server.api import Worker, WorkerGroup, WorkerSpec

pytestmark = pytest.mark.forks

AT_FAULT = FailureReport(FailureKind.POD, "node 1 is at fault", 1)


class MetAgainError(Exception):
    pass


class Gang:
    """The gang as node 0 sees it: node 1 leaves in generation 1, its replacement is at fault in 2."""

    node_rank, nodes, unexplained = 0, 2, None

    def __init__(self) -> None:
        self.generation, self.plan = 0, GenerationPlan(None)
        self._state = State(1)

    def meet(self, group: WorkerGroup) -> None:
        self.generation = self._state.generation
        if self.generation == 3:
            raise MetAgainError
        self.plan = GenerationPlan(None, preflight=self.generation == 2)
        group.workers = [Worker(local_rank=i, global_rank=i, world_size=4) for i in range(2)]

    def poll(self) -> State:
        return self._state

    def advance(self, report: FailureReport) -> None:
        self._state = State(self.generation + 1, report)

    def marked(self, _what: str) -> list[int]:
        return [1] if self.generation == 1 else []


@pytest.fixture
def fork_server() -> Iterator[ForkServer]:
    """Its ranks save and end at once, as on SIGTERM."""
    fork_server = ForkServer(lambda: Programs(rank=lambda: ExitCode.TERMINATED, preflight=lambda: 0))
    yield fork_server
    fork_server.close()


def test_ranks_that_saved_before_end_no_pod_that_waits_for_another_replacement(
    fork_server: ForkServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    gang: Any = Gang()
    nothing: Any = SimpleNamespace(
        drain=lambda: None, start_generation=lambda *_: None, stop=lambda: None, sync=lambda: None
    )

    def fail_without_a_round(_gang: object) -> None:
        gang.advance(AT_FAULT)

    services = PodServices(
        gang=gang,
        fork_server=fork_server,
        status=Status(node_rank=0, train_iters=20),
        events=nothing,
        watchdog=nothing,
        telemetry_sync=nothing,
        hangs=SimpleNamespace(is_reported_soon=False, poll=lambda _: None),  # type: ignore[arg-type]
        checkpoints=SimpleNamespace(fenced=None),  # type: ignore[arg-type]
        preflight=SimpleNamespace(run=fail_without_a_round),  # type: ignore[arg-type]
        termination_grace=60,
        cpus={},
        log=lambda _: None,
    )
    spec = WorkerSpec(role="rank", local_world_size=2, rdzv_handler=gang, entrypoint="rank")
    agent = GangAgent(spec, services)

    def initialize(group: WorkerGroup) -> None:
        gang.meet(group)
        agent._start_workers(group)

    monkeypatch.setattr(agent, "_initialize_workers", initialize)
    with pytest.raises(MetAgainError):
        agent._invoke_run()
