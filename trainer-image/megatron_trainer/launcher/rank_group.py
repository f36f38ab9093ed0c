"""The ranks of one pod as a worker group of torch's elastic agent: started, monitored and stopped through the
fork server."""

import signal
from collections.abc import Mapping
from typing import Any

from torch.distributed.elastic.agent.server.api import (
    RunResult,
    SimpleElasticAgent,
    Worker,
    WorkerGroup,
    WorkerSpec,
    WorkerState,
)
from torch.distributed.elastic.multiprocessing import ProcessFailure

from megatron_trainer.health.watchdog import Watchdog
from megatron_trainer.launcher.fork_server import ForkServer
from megatron_trainer.launcher.shared_memory import remove_unused_segments
from megatron_trainer.rendezvous.handler import GangRendezvous
from megatron_trainer.telemetry.reporter import (
    CPUS_ENV,
    FINISHED,
    GENERATION_ENV,
    LEASE_ENV,
    RESUME_ENV,
    SKIP_ENV,
)
from megatron_trainer.telemetry.status import Status

MONITOR_SECONDS = 0.1


class RankGroup(SimpleElasticAgent):
    """What torch's agent requires of a concrete one, except its policy (`_invoke_run`)."""

    def __init__(
        self,
        spec: WorkerSpec,
        gang: GangRendezvous,
        fork_server: ForkServer,
        status: Status,
        watchdog: Watchdog,
        cpus: Mapping[int, str],
    ) -> None:
        """`cpus`: cores of local ranks, as `cpu_binding` has them."""
        super().__init__(spec)
        self._gang = gang
        self._fork_server = fork_server
        self._status = status
        self._watchdog = watchdog
        self._cpus = cpus
        self._checkpoint_at_start: int | None = None

    def _assign_worker_ranks(
        self,
        store: Any,  # noqa: ARG002
        group_rank: int,
        group_world_size: int,
        spec: WorkerSpec,
    ) -> list[Worker]:
        """Assign consecutive ranks: `local_world_size` per pod, pods in the order of their index."""
        first = group_rank * spec.local_world_size
        world = group_world_size * spec.local_world_size
        return [
            Worker(
                local_rank=i,
                global_rank=first + i,
                role_rank=first + i,
                world_size=world,
                role_world_size=world,
            )
            for i in range(spec.local_world_size)
        ]

    def _start_workers(self, worker_group: WorkerGroup) -> dict[int, Any]:
        """Start the ranks by the generation's plan. Returns their process ids by local rank."""
        plan = self._gang.plan
        assert plan is not None
        self._checkpoint_at_start = plan.iteration
        self._status.start_generation(self._gang.generation, plan.iteration)
        self._watchdog.start_generation(
            self._gang.generation, [worker.global_rank for worker in worker_group.workers]
        )
        return self._fork_server.start(
            {
                worker.local_rank: {
                    "RANK": str(worker.global_rank),
                    "LOCAL_RANK": str(worker.local_rank),
                    "WORLD_SIZE": str(worker.world_size),
                    "LOCAL_WORLD_SIZE": str(worker_group.spec.local_world_size),
                    "GROUP_RANK": str(worker_group.group_rank),
                    "MASTER_ADDR": str(worker_group.master_addr),
                    "MASTER_PORT": str(worker_group.master_port),
                    GENERATION_ENV: str(self._gang.generation),
                    RESUME_ENV: "" if plan.iteration is None else str(plan.iteration),
                    SKIP_ENV: " ".join(map(str, plan.skip)),
                    LEASE_ENV: plan.owner,
                    CPUS_ENV: self._cpus.get(worker.local_rank, ""),
                }
                for worker in worker_group.workers
            }
        )

    def _stop_workers(self, worker_group: WorkerGroup) -> None:  # noqa: ARG002
        self._stop()

    def _stop(self) -> None:
        """Kill all ranks of this pod. Raises ForkServerLostError if one cannot be killed."""
        self._watchdog.stop()
        self._fork_server.stop()
        remove_unused_segments()

    def _monitor_workers(self, worker_group: WorkerGroup) -> RunResult:
        """Wait at most MONITOR_SECONDS for exits. A rank succeeds only with exit code FINISHED."""
        exited = self._fork_server.exited(MONITOR_SECONDS)
        failures = {
            worker.global_rank: ProcessFailure(
                local_rank=worker.local_rank, pid=worker.id, exitcode=exited[worker.local_rank], error_file=""
            )
            for worker in worker_group.workers
            if exited.get(worker.local_rank, FINISHED) != FINISHED
        }
        if failures:
            return RunResult(state=WorkerState.FAILED, failures=failures)
        done = {worker.global_rank: 0 for worker in worker_group.workers if worker.local_rank in exited}
        if len(done) == len(worker_group.workers):
            return RunResult(state=WorkerState.SUCCEEDED, return_values=done)
        return RunResult(state=WorkerState.HEALTHY)

    def _shutdown(self, death_sig: signal.Signals = signal.SIGTERM) -> None:  # noqa: ARG002
        self._stop()
