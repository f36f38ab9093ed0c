"""The elastic agent of a pod: starts its ranks, watches them and the gang, and decides when all meet again.

It is torch's agent in its types and its phases (rendezvous, start, monitor, stop), with a policy of its
own: a rank that dies anywhere stops the ranks everywhere at once, without waiting for a collective to time
out; only the pod whose rank died first pays for the restart; an end that would come again ends the run in
all pods.
"""

import json
import signal
import time
from collections.abc import Callable
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

from megatron_trainer.contract import ExitCode
from megatron_trainer.gangstore import State, StoreLost
from megatron_trainer.nursery import Nursery
from megatron_trainer.rendezvous import Ended, GangRendezvous
from megatron_trainer.report import GENERATION_ENV, RESUME_ELSEWHERE, RESUME_ENV
from megatron_trainer.status import EventSocket, Status
from megatron_trainer.termination import Ending

_MONITOR_SECONDS = 0.1
_SHARE_SECONDS = 0.5
# How long a pod whose ranks lost a peer waits for that peer's pod to say so, before it moves the generation
# itself.
_BLAME_SECONDS = 3.0
_FINISH_SECONDS = 60.0


class GangAgent(SimpleElasticAgent):
    """Runs this pod's ranks until the run ends. `run()` raises Ended with how it did."""

    def __init__(
        self,
        spec: WorkerSpec,
        gang: GangRendezvous,
        nursery: Nursery,
        status: Status,
        events: EventSocket,
        newest_checkpoint: Callable[[], int | None],
        termination_grace: float,
        log: Callable[[str], None],
    ) -> None:
        super().__init__(spec)
        self._gang = gang
        self._nursery = nursery
        self._status = status
        self._events = events
        self._newest_checkpoint = newest_checkpoint
        self._grace = termination_grace
        self._log = log
        self._restarts = 0
        self._loss_was_not_finite = False
        self._terminations = 0
        self._give_up_at = 0.0
        self._shared_at = 0.0
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
                }
                for worker in worker_group.workers
            }
        )

    def _stop_workers(self, worker_group: WorkerGroup) -> None:  # noqa: ARG002
        self._nursery.stop()

    def _monitor_workers(self, worker_group: WorkerGroup) -> RunResult:
        exited = self._nursery.exited(_MONITOR_SECONDS)
        failures = {
            worker.global_rank: ProcessFailure(
                local_rank=worker.local_rank, pid=worker.id, exitcode=exited[worker.local_rank], error_file=""
            )
            for worker in worker_group.workers
            if exited.get(worker.local_rank)
        }
        if failures:
            return RunResult(state=WorkerState.FAILED, failures=failures)
        done = {worker.global_rank: 0 for worker in worker_group.workers if worker.local_rank in exited}
        if len(done) == len(worker_group.workers):
            return RunResult(state=WorkerState.SUCCEEDED, return_values=done)
        return RunResult(state=WorkerState.HEALTHY)

    def _shutdown(self, death_sig: signal.Signals = signal.SIGTERM) -> None:  # noqa: ARG002
        self._nursery.stop()

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
            again = self._after_ranks(result) or self._after_gang()
            if again:
                self._log(f"{again}: stopping ranks and meeting again")
                self._status.set(phase="rendezvous", message=again, rankRestarts=self._restarts)
                self._nursery.stop()
                self._gang.move(again)
                self._restart_workers(group)

    def _after_gang(self) -> str | None:
        """Why the gang must meet again, None if it need not."""
        try:
            state = self._gang.watch()
            self._share_progress()
        except StoreLost as lost:
            return f"the store on the Master pod is lost ({lost})"
        self._obey_verdict(state)
        if state.generation != self._gang.generation:
            return f"generation {state.generation} has begun ({state.why})"
        self._refund()
        return None

    def _after_ranks(self, result: RunResult) -> str | None:
        """What the ranks' ends mean. None while they run; raises Ended when the run is over."""
        if result.state == WorkerState.SUCCEEDED:
            return self._finish()
        if result.state != WorkerState.FAILED:
            return None
        self._events.drain()
        ending = self._culprit(result)
        if ending.code == ExitCode.TERMINATED:
            return self._stopped_early(ending)
        if ending.code == ExitCode.PEER_LOST:
            return self._await_blame(ending)
        if any(failure.exitcode == RESUME_ELSEWHERE for failure in result.failures.values()):
            raise Ended(ending)
        if self._moved():
            return f"{ending.message}, in a generation that is over"
        once_more = ending.code == ExitCode.LOSS_NOT_FINITE and not self._loss_was_not_finite
        self._loss_was_not_finite = ending.code == ExitCode.LOSS_NOT_FINITE
        if ending.code < 128 and not once_more:
            self._gang.judge(ending)
            raise Ended(ending)
        self._restarts += 1
        limit = self._worker_group.spec.max_restarts
        if self._restarts > limit:
            raise Ended(
                Ending(
                    ending.code,
                    f"{ending.message}; {limit} restarts of ranks without a new checkpoint are used up",
                    ending.rank,
                )
            )
        return f"{ending.message} (restart {self._restarts} of {limit} without a new checkpoint)"

    def _culprit(self, result: RunResult) -> Ending:
        """The end among this pod's ranks that explains the others: one that comes again, then one of its
        own."""
        said = self._status.failures()
        endings = []
        for rank, failure in sorted(result.failures.items()):
            code, message = failure.exitcode, f"rank {rank} exited with code {failure.exitcode}"
            if code < 0:
                message = f"rank {rank} was killed by {signal.Signals(-code).name}"
            elif rank in said:
                message = f"rank {rank}: {said[rank]['message']}"
            known = code in set(ExitCode)
            endings.append(Ending(ExitCode(code) if known else ExitCode.WORKER_DIED, message, rank))
        order = {ExitCode.PEER_LOST: 2, ExitCode.TERMINATED: 3}
        return min(endings, key=lambda ending: 0 if ending.code < 128 else order.get(ending.code, 1))

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

    def _await_blame(self, ending: Ending) -> str:
        """Ranks here lost a peer elsewhere: its pod, or its replacement, says so in a moment."""
        self._nursery.stop()
        deadline = time.monotonic() + _BLAME_SECONDS
        while not self._moved():
            if time.monotonic() >= deadline or self.terminating:
                break
            time.sleep(_MONITOR_SECONDS)
        return ending.message

    def _stopped_early(self, ending: Ending) -> str:
        """Megatron saved and stopped before the last iteration."""
        try:
            elsewhere = self._gang.marked("leaving", of_all=False)
        except StoreLost:
            elsewhere = True
        if not elsewhere:
            raise Ended(ending)
        return "another pod was told to stop; its checkpoint is saved"

    def _refund(self) -> None:
        """A new checkpoint since the last start gives the restarts back."""
        newest = self._status.get("checkpointIteration")
        if self._restarts and newest is not None and newest > (self._checkpoint_at_start or 0):
            self._restarts = 0
            self._loss_was_not_finite = False
            self._status.set(rankRestarts=0)

    def _share_progress(self) -> None:
        """The pod with the rank that knows the loss tells the store; the others, node 0 among them, read
        it."""
        now = time.monotonic()
        if now - self._shared_at < _SHARE_SECONDS:
            return
        self._shared_at = now
        fields = self._status.snapshot()
        if self._gang.node_rank == self._gang.nodes - 1:
            if fields["iteration"] is not None:
                self._gang.store.set("progress", json.dumps(fields))
        else:
            record = json.loads(self._gang.store.get("progress") or "{}")
            if record.get("generation") == self._gang.generation:
                self._status.learn(record)

    def _finish(self) -> str | None:
        """All ranks here are done. The pod leaves when all are, node 0 with its store last."""
        self._gang.mark("finished")
        deadline = time.monotonic() + _FINISH_SECONDS
        try:
            while not self._gang.marked("finished", of_all=True):
                state = self._gang.watch()
                self._obey_verdict(state)
                if state.generation != self._gang.generation:
                    return f"generation {state.generation} has begun ({state.why})"
                if time.monotonic() >= deadline:
                    self._gang.move(f"not all pods finished within {_FINISH_SECONDS:.0f} s")
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
            before = self._newest_checkpoint()
            self._status.set(message="told to stop", checkpointIteration=before)
            self._gang.mark("leaving")
            self._nursery.signal(signal.SIGTERM)
        if result.state == WorkerState.HEALTHY:
            if self._terminations == 1 and time.monotonic() < self._give_up_at:
                return
            self._nursery.stop()
            why = "told twice" if self._terminations > 1 else f"no save within {self._grace:.0f} s"
            raise Ended(Ending(ExitCode.TERMINATED, f"SIGTERM, left without a save: {why}"))
        if result.state == WorkerState.FAILED and self._culprit(result).code < 128:
            return
        self._nursery.stop()
        saved = self._newest_checkpoint()
        raise Ended(
            Ending(
                ExitCode.TERMINATED,
                f"SIGTERM: the newest whole checkpoint is iteration {saved}"
                if saved is not None
                else "SIGTERM: no save",
            )
        )
