"""The elastic agent of a pod: starts its ranks, watches them and the gang, and decides when all meet again.

It is torch's agent in its types and its phases (rendezvous, start, monitor, stop), with a policy of its
own: a rank that dies anywhere stops the ranks everywhere at once, without waiting for a collective to time
out; only the pod whose rank died first, or hung, pays for the restart; an end that would come again ends
the run in all pods.
"""

import signal
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, NoReturn

from megatron_contract.exit_codes import ExitCode
from torch.distributed.elastic.agent.server.api import (
    RunResult,
    SimpleElasticAgent,
    Worker,
    WorkerGroup,
    WorkerSpec,
    WorkerState,
)
from torch.distributed.elastic.multiprocessing import ProcessFailure

from megatron_trainer.checkpoints.checkpoint_manager import Keeper
from megatron_trainer.health.failure_classification import culprit, report_of
from megatron_trainer.health.hang_coordinator import HangHunt
from megatron_trainer.health.oom_kills import MemoryKills
from megatron_trainer.health.watchdog import Watchdog
from megatron_trainer.launcher.fork_server import Nursery, NurseryLost
from megatron_trainer.launcher.termination import Ending
from megatron_trainer.rendezvous.handler import GangRendezvous
from megatron_trainer.rendezvous.state import Ended, State
from megatron_trainer.rendezvous.store import StoreLost
from megatron_trainer.rendezvous.telemetry_sync import Sharing
from megatron_trainer.telemetry.incidents import Kind, Report
from megatron_trainer.telemetry.reporter import (
    FINISHED,
    GENERATION_ENV,
    OWNER_ENV,
    PREFLIGHT_ENV,
    RESUME_ELSEWHERE,
    RESUME_ENV,
    SKIP_ENV,
)
from megatron_trainer.telemetry.status import EventSocket, Status

_MONITOR_SECONDS = 0.1
# How long a pod whose ranks lost a peer waits for that peer's pod to say so, before it moves the generation
# itself.
_BLAME_SECONDS = 3.0
# How long before that it waits for its other ranks: one of them may be the peer, still on its way out.
_OWN_SECONDS = 1.0
_FINISH_SECONDS = 60.0


@dataclass(frozen=True)
class _Again:
    """The ranks must meet again. `report` is what this pod has to say of it, None if others said it."""

    why: str
    report: Report | None = None


class GangAgent(SimpleElasticAgent):
    """Runs this pod's ranks until the run ends. `run()` raises Ended with how it did."""

    def __init__(
        self,
        spec: WorkerSpec,
        gang: GangRendezvous,
        nursery: Nursery,
        status: Status,
        events: EventSocket,
        watchdog: Watchdog,
        sharing: Sharing,
        hunt: HangHunt,
        keeper: Keeper,
        termination_grace: float,
        log: Callable[[str], None],
    ) -> None:
        super().__init__(spec)
        self._gang = gang
        self._nursery = nursery
        self._status = status
        self._events = events
        self._watchdog = watchdog
        self._sharing = sharing
        self._hunt = hunt
        self._keeper = keeper
        self._grace = termination_grace
        self._log = log
        self._restarts = 0
        self._terminations = 0
        self._give_up_at = 0.0
        self._paid_for_hang = 0
        self._memory = MemoryKills()
        self._checkpoint_at_start: int | None = None

    # What torch's agent asks of a concrete one.

    def _assign_worker_ranks(
        self,
        store: Any,  # noqa: ARG002
        group_rank: int,
        group_world_size: int,
        spec: WorkerSpec,
    ) -> list[Worker]:
        """Ranks of this pod: `local_world_size` in a row, pods in the order of their index."""
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
        plan = self._gang.plan
        assert plan is not None
        self._checkpoint_at_start = plan.iteration
        self._status.begin(self._gang.generation, plan.iteration)
        self._watchdog.begin(self._gang.generation, [worker.global_rank for worker in worker_group.workers])
        return self._nursery.start(
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
                    OWNER_ENV: plan.owner,
                    PREFLIGHT_ENV: "1" if plan.preflight else "",
                }
                for worker in worker_group.workers
            }
        )

    def _stop_workers(self, worker_group: WorkerGroup) -> None:  # noqa: ARG002
        self._stop()

    def _stop(self) -> None:
        self._watchdog.end()
        self._nursery.stop()

    def _monitor_workers(self, worker_group: WorkerGroup) -> RunResult:
        exited = self._nursery.exited(_MONITOR_SECONDS)
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

    # The policy.

    def terminate(self) -> None:
        """SIGTERM came: save and leave. The second time: leave. Safe in a signal handler."""
        self._terminations += 1

    @property
    def terminating(self) -> bool:
        return self._terminations > 0

    def _invoke_run(self, role: str = "default") -> RunResult:  # noqa: ARG002
        group = self._worker_group
        self._status.set(phase="rendezvous")
        self._initialize_workers(group)
        while True:
            result = self._monitor_workers(group)
            group.state = result.state
            if self.terminating:
                self._leave(result)
            if self._keeper.fenced:
                self._stop()
                raise Ended(Ending(ExitCode.PEER_LOST, str(self._keeper.fenced)))
            again = self._after_ranks(result) or self._after_gang()
            if again:
                self._log(f"{again.why}: stopping ranks and meeting again")
                self._status.set(phase="rendezvous", message=again.why, rankRestarts=self._restarts)
                self._stop()
                if again.report is not None:
                    self._gang.move(again.report)
                self._restart_workers(group)

    def _after_gang(self) -> _Again | None:
        """Why the gang must meet again, None if it need not."""
        try:
            state = self._gang.watch()
            self._sharing.turn()
            self._obey_verdict(state)
            if state.generation != self._gang.generation:
                return self._begun(state)
            hang = self._hunt.turn(state)
        except StoreLost as lost:
            return _Again(f"the store on the Master pod is lost ({lost})")
        if hang is not None:
            self._gang.move(hang)
            return self._after_gang()
        self._refund()
        return None

    def _begun(self, state: State) -> _Again:
        """Another generation has begun. If ranks of this pod hung, it pays."""
        report = state.report
        if (
            report is not None
            and (report.kind, report.node_rank) == (Kind.HANG, self._gang.node_rank)
            and self._paid_for_hang != state.generation
        ):
            self._paid_for_hang = state.generation
            return self._spend(Ending(ExitCode.HANG, report.cause, report.rank), None)
        return _Again(f"generation {state.generation} has begun ({state.why})")

    def _after_ranks(self, result: RunResult) -> _Again | None:
        """What the ranks' ends mean. None while they run; raises Ended when the run is over."""
        if result.state == WorkerState.SUCCEEDED:
            return self._finish()
        if result.state != WorkerState.FAILED:
            return None
        ending, result = self._own_culprit(result)
        report = report_of(ending, self._status.failures(), self._gang.node_rank)
        if ending.code == ExitCode.TERMINATED:
            return self._stopped_early(ending)
        if ending.code == ExitCode.PEER_LOST:
            return self._await_blame(ending, report)
        if any(failure.exitcode == RESUME_ELSEWHERE for failure in result.failures.values()):
            self._give_up(ending, report)
        if self._status.failures().get(ending.rank or 0, {}).get("preflight"):
            self._give_up(ending, report)
        if self._moved():
            return _Again(f"{ending.message}, in a generation that is over")
        if ending.code == ExitCode.LOSS_NOT_FINITE:
            return _Again(ending.message, report)
        if ending.code < 128:
            self._gang.judge(ending)
            raise Ended(ending)
        return self._spend(ending, report)

    def _spend(self, ending: Ending, report: Report | None) -> _Again:
        """Take one restart from this pod's budget. Raises Ended when there is none left."""
        self._restarts += 1
        limit = self._worker_group.spec.max_restarts
        if self._restarts > limit:
            message = f"{ending.message}; {limit} restarts of ranks without a new checkpoint are used up"
            self._give_up(Ending(ending.code, message, ending.rank), report)
        return _Again(
            f"{ending.message} (restart {self._restarts} of {limit} without a new checkpoint)", report
        )

    def _give_up(self, ending: Ending, report: Report | None) -> NoReturn:
        """End this pod, for another to take its place. The others stop at once and wait for that one."""
        self._stop()
        if report is not None:
            report = replace(report, cause=ending.message)
            self._gang.move(report)
        raise Ended(ending, report)

    def _culprit(self, result: RunResult) -> Ending:
        self._events.drain()
        codes = {rank: failure.exitcode for rank, failure in result.failures.items()}
        return culprit(codes, self._status.failures(), self._memory)

    def _own_culprit(self, result: RunResult) -> tuple[Ending, RunResult]:
        """The culprit; a peer that ranks lost may be one of this pod, whose end comes in a moment."""
        deadline = time.monotonic() + _OWN_SECONDS
        ending = self._culprit(result)
        while ending.code == ExitCode.PEER_LOST and time.monotonic() < deadline and not self._moved():
            result = self._monitor_workers(self._worker_group)
            ending = self._culprit(result)
        return ending, result

    def explain(self, lost: NurseryLost) -> Ending:
        """How this pod ends when the process that holds its ranks is gone."""
        starved = f": the pod is out of memory{self._memory.limit()}" if self._memory.more() else ""
        return Ending(ExitCode.WORKER_DIED, f"{lost}{starved}")

    def _moved(self) -> bool:
        try:
            state = self._gang.watch()
        except StoreLost:
            return True
        self._obey_verdict(state)
        return state.generation != self._gang.generation

    def _obey_verdict(self, state: State) -> None:
        if state.verdict is not None:
            raise Ended(state.verdict)

    def _await_blame(self, ending: Ending, report: Report) -> _Again:
        """Ranks here lost a peer elsewhere: its pod, or its replacement, says so in a moment."""
        self._stop()
        deadline = time.monotonic() + _BLAME_SECONDS
        while not self._moved():
            if time.monotonic() >= deadline or self.terminating:
                break
            time.sleep(_MONITOR_SECONDS)
        return _Again(ending.message, report)

    def _stopped_early(self, ending: Ending) -> _Again:
        """Megatron saved and stopped before the last iteration."""
        try:
            leaving = self._gang.marked("leaving")
        except StoreLost as lost:
            return _Again(f"the store on the Master pod is lost ({lost})")
        if not leaving:
            raise Ended(ending)
        why = f"node {leaving[0]} was told to stop; its checkpoint is saved"
        return _Again(why, Report(Kind.STOP, why, leaving[0]))

    def _refund(self) -> None:
        """A new checkpoint since the last start gives the restarts back."""
        newest = self._status.get("checkpointIteration")
        if self._restarts and newest is not None and newest > (self._checkpoint_at_start or 0):
            self._restarts = 0
            self._status.set(rankRestarts=0)

    def _finish(self) -> _Again | None:
        """All ranks here are done. The pod leaves when all are, node 0 with its store last."""
        self._gang.mark("finished")
        deadline = time.monotonic() + _FINISH_SECONDS
        try:
            while len(self._gang.marked("finished")) < self._gang.nodes:
                state = self._gang.watch()
                self._sharing.turn()
                self._obey_verdict(state)
                if state.generation != self._gang.generation:
                    return self._begun(state)
                if time.monotonic() >= deadline:
                    late = f"not all pods finished within {_FINISH_SECONDS:.0f} s"
                    self._gang.move(Report(Kind.POD, late))
                time.sleep(_MONITOR_SECONDS)
        except StoreLost as lost:
            if self._gang.node_rank == 0:
                raise
            self._log(f"the store is gone after the last iteration: {lost}")
        raise Ended(Ending(ExitCode.OK, "all iterations are done"))

    def _leave(self, result: RunResult) -> None:
        """After SIGTERM: let Megatron save, within the grace. Raises Ended once there is nothing to wait
        for."""
        if not self._give_up_at:
            self._give_up_at = time.monotonic() + self._grace
            self._log(f"SIGTERM: asking Megatron to save, at most {self._grace:.0f} s")
            before = self._keeper.newest()
            self._status.set(message="told to stop", checkpointIteration=before)
            self._gang.mark("leaving")
            self._nursery.signal(signal.SIGTERM)
        if result.state == WorkerState.HEALTHY:
            if self._terminations == 1 and time.monotonic() < self._give_up_at:
                return
            self._stop()
            why = "told twice" if self._terminations > 1 else f"no save within {self._grace:.0f} s"
            raise Ended(Ending(ExitCode.TERMINATED, f"SIGTERM, left without a save: {why}"))
        if result.state == WorkerState.FAILED and self._culprit(result).code < 128:
            return
        self._stop()
        saved = self._keeper.newest()
        raise Ended(
            Ending(
                ExitCode.TERMINATED,
                f"SIGTERM: the newest whole checkpoint is iteration {saved}"
                if saved is not None
                else "SIGTERM: no save",
            )
        )
