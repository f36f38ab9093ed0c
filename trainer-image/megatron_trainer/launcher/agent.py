"""The elastic agent of a pod: watches its ranks and the gang, and decides when all pods meet again.

It uses the types and phases of torch's agent (rendezvous, start, monitor, stop) with its own policy: a rank
that dies anywhere stops all ranks at once, without waiting for a collective to time out; only the pod whose
rank died first, or hung, uses one of its restarts, node 0 where ranks lost a peer and all pods are still
there; a failure that would recur ends the run in all pods.
"""

import contextlib
import signal
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, NoReturn

from megatron_contract.exit_codes import ExitCode
from torch.distributed.elastic.agent.server.api import RunResult, WorkerGroup, WorkerSpec, WorkerState

from megatron_trainer.checkpoints.checkpoint_manager import CheckpointManager
from megatron_trainer.health.device_errors import DeviceErrors
from megatron_trainer.health.failure_classification import classify_exits, failure_report
from megatron_trainer.health.hang_coordinator import HangCoordinator
from megatron_trainer.health.kernel_log import KernelLog
from megatron_trainer.health.oom_kills import OomKillCounter
from megatron_trainer.health.watchdog import Watchdog
from megatron_trainer.launcher.fork_server import ForkServer, ForkServerLostError
from megatron_trainer.launcher.preflight import GangPreflight
from megatron_trainer.launcher.rank_group import MONITOR_SECONDS, RankGroup
from megatron_trainer.rendezvous.handler import GangRendezvous
from megatron_trainer.rendezvous.state import RunEndedError, State
from megatron_trainer.rendezvous.store import StoreLostError
from megatron_trainer.rendezvous.telemetry_sync import TelemetrySync
from megatron_trainer.telemetry.event_socket import EventSocket
from megatron_trainer.telemetry.incidents import FailureKind, FailureReport
from megatron_trainer.telemetry.reporter import RESUME_ELSEWHERE
from megatron_trainer.telemetry.status import Status
from megatron_trainer.termination import Ending

# How long a pod whose ranks lost a peer waits for a report of that peer's pod, before it starts a new
# generation itself.
_PEER_REPORT_SECONDS = 3.0
# How long it first waits for its own other ranks: one of them may be the peer, not yet exited.
_OWN_RANKS_SECONDS = 1.0
_FINISH_SECONDS = 60.0


@dataclass(frozen=True)
class PodServices:
    """What the agent works with.

    `termination_grace`: seconds from SIGTERM for the last save. `cpus`: cores of local ranks.
    """

    gang: GangRendezvous
    fork_server: ForkServer
    status: Status
    events: EventSocket
    watchdog: Watchdog
    telemetry_sync: TelemetrySync
    hangs: HangCoordinator
    checkpoints: CheckpointManager
    preflight: GangPreflight
    termination_grace: float
    cpus: Mapping[int, str]
    log: Callable[[str], None]


@dataclass(frozen=True)
class _Restart:
    """The ranks must be restarted. `report` is for the other pods; None if they reported it themselves."""

    why: str
    report: FailureReport | None = None


class GangAgent(RankGroup):
    """Runs this pod's ranks until the run ends. `run()` raises RunEndedError with the reason."""

    def __init__(self, spec: WorkerSpec, services: PodServices) -> None:
        super().__init__(
            spec,
            services.gang,
            services.fork_server,
            services.status,
            services.watchdog,
            services.cpus,
        )
        self._events = services.events
        self._telemetry_sync = services.telemetry_sync
        self._hangs = services.hangs
        self._checkpoints = services.checkpoints
        self._preflight = services.preflight
        self._grace = services.termination_grace
        self._log = services.log
        self._restarts = 0
        self._terminations = 0
        self._save_deadline = 0.0
        self._counted_hang = 0
        self._oom_kills = OomKillCounter()
        self._kernel_log = KernelLog()
        self._device_errors = DeviceErrors()

    def terminate(self) -> None:
        """Handle SIGTERM: save and exit; the second time exit at once. Safe in a signal handler."""
        self._terminations += 1

    @property
    def terminating(self) -> bool:
        """Whether SIGTERM was received."""
        return self._terminations > 0

    def _invoke_run(self, role: str = "default") -> RunResult:  # noqa: ARG002
        group = self._worker_group
        self._status.set(phase="rendezvous")
        self._initialize_workers(group)
        while True:
            result = self._monitor_workers(group)
            group.state = result.state
            if self.terminating:
                self._save_and_exit(result)
            if self._checkpoints.fenced:
                self._stop()
                raise RunEndedError(Ending(ExitCode.PEER_LOST, str(self._checkpoints.fenced)))
            restart = self._check_ranks(result) or self._check_gang()
            if restart:
                self._log(f"{restart.why}: stopping the ranks for a new rendezvous")
                self._status.set(phase="rendezvous", message=restart.why, rank_restarts=self._restarts)
                # First: the others need not wait for a rank that takes long to end. They meet no sooner.
                if restart.report is not None:
                    self._gang.advance(restart.report)
                self._stop()
                self._restart_workers(group)

    def _start_workers(self, worker_group: WorkerGroup) -> dict[int, Any]:
        """Start the ranks, after the preflight where the plan asks for it. None if the generation is over."""
        assert self._gang.plan is not None
        if self._gang.unexplained is not None:
            self._use_restart_of_node_0(self._gang.unexplained)
        if self._gang.plan.preflight and not self._passes_preflight():
            return {}
        return super()._start_workers(worker_group)

    def _passes_preflight(self) -> bool:
        """Check all nodes. False if another is at fault, so that the generation is over."""
        try:
            ending = self._preflight.run(self._gang)
            if ending is not None:
                self._end_pod(ending, FailureReport(FailureKind.POD, ending.message, self._gang.node_rank))
            return self._gang.poll().generation == self._gang.generation
        except StoreLostError:
            return False

    def _check_gang(self) -> _Restart | None:
        """Exchange state with the other pods. Returns why the ranks must be restarted, None otherwise."""
        try:
            state = self._gang.poll()
            self._telemetry_sync.sync()
            self._raise_verdict(state)
            if state.generation != self._gang.generation:
                return self._follow_generation(state)
            hang = self._hangs.poll(state)
        except StoreLostError as error:
            return _Restart(f"the store on the Master pod is lost ({error})")
        if hang is not None:
            self._gang.advance(hang)
            return self._check_gang()
        self._reset_restarts(self._status.report.checkpoint_iteration)
        return None

    def _follow_generation(self, state: State) -> _Restart:
        """Restart for a generation that another pod started. If ranks of this pod hung, it uses a restart.

        Node 0 uses one for a hang of which no rank is known.
        """
        report = state.report
        if (
            report is not None
            and report.kind == FailureKind.HANG
            and (report.node_rank or 0) == self._gang.node_rank
            and self._counted_hang != state.generation
        ):
            self._counted_hang = state.generation
            return self._use_restart(Ending(ExitCode.HANG, report.cause, report.rank), None)
        return _Restart(f"generation {state.generation} has started ({state.why})")

    def _check_ranks(self, result: RunResult) -> _Restart | None:
        """React to the exits of ranks. None while all run; raises RunEndedError when the run is over."""
        if result.state == WorkerState.SUCCEEDED:
            return self._finish()
        if result.state != WorkerState.FAILED:
            return None
        if self._hangs.is_reported_soon and _crashed(result):
            # A rank may crash while it writes its stacks. It is the hang that restarts the ranks.
            return None
        ending, result = self._classify_settled(result)
        if ending.code == ExitCode.PEER_LOST and self._gang.nodes == 1:
            # No other pod has the peer.
            ending = replace(ending, code=ExitCode.WORKER_DIED)
        report = failure_report(ending, self._status.failures(), self._gang.node_rank)
        if ending.evidence is not None:
            self._end_pod(ending, report)
        if ending.code == ExitCode.TERMINATED:
            return self._handle_early_stop(ending)
        if ending.code == ExitCode.PEER_LOST:
            return self._await_peer_report(ending, report)
        if any(failure.exitcode == RESUME_ELSEWHERE for failure in result.failures.values()):
            self._end_pod(ending, report)
        if self._generation_is_over():
            return _Restart(f"{ending.message}, in an earlier generation")
        if ending.code == ExitCode.LOSS_NOT_FINITE:
            # The retry policy counts those of which the iteration is known.
            known = report.failed_iteration is not None
            return _Restart(ending.message, report) if known else self._use_restart(ending, report)
        if not ending.code.retryable:
            self._end_run(ending)
        return self._use_restart(ending, report)

    def _use_restart(self, ending: Ending, report: FailureReport | None) -> _Restart:
        """Count one restart of this pod's ranks. Raises RunEndedError if none is left."""
        if self._restarts:
            # The ranks may have died before their last checkpoint was reported. No non-persistent one is.
            with contextlib.suppress(OSError):
                self._reset_restarts(self._checkpoints.newest_to_load())
        self._restarts += 1
        limit = self._worker_group.spec.max_restarts
        if self._restarts > limit:
            message = f"{ending.message}; all {limit} rank restarts without a new checkpoint are used"
            last = Ending(ending.code, message, ending.rank)
            if not last.code.retryable:
                self._end_run(last)
            self._end_pod(last, report)
        return _Restart(
            f"{ending.message} (restart {self._restarts} of {limit} without a new checkpoint)", report
        )

    def _use_restart_of_node_0(self, lost: FailureReport) -> None:
        """Count a restart of this pod, node 0: ranks lost a peer, and no pod was replaced or reported why."""
        ending = Ending(ExitCode.WORKER_DIED, lost.cause)
        restart = self._use_restart(ending, replace(lost, node_rank=self._gang.node_rank))
        self._log(restart.why)
        self._status.set(rank_restarts=self._restarts)

    def _reset_restarts(self, newest: int | None) -> None:
        """Reset the count once the newest checkpoint is newer than the last start."""
        if self._restarts and newest is not None and newest > (self._checkpoint_at_start or 0):
            self._restarts = 0
            self._status.set(rank_restarts=0)

    def _end_run(self, ending: Ending) -> NoReturn:
        """End all pods with `ending`."""
        self._gang.end_run(ending)
        raise RunEndedError(ending)

    def _end_pod(self, ending: Ending, report: FailureReport | None) -> NoReturn:
        """End this pod so that it is replaced.

        The other pods stop their ranks and wait for the replacement.
        """
        if report is not None:
            report = replace(report, cause=ending.message)
            self._gang.advance(report)
        self._shutdown()
        raise RunEndedError(ending, report)

    def _shutdown(self, death_sig: signal.Signals = signal.SIGTERM) -> None:
        """Stop the ranks as far as possible: an error would replace the one with which the agent ends."""
        try:
            super()._shutdown(death_sig)
        except ForkServerLostError as error:
            self._log(f"the ranks were not stopped: {error}")

    def _classify(self, result: RunResult) -> Ending:
        self._events.drain()
        codes = {rank: failure.exitcode for rank, failure in result.failures.items()}
        stderr = {
            rank: self._fork_server.last_stderr(failure.local_rank)
            for rank, failure in result.failures.items()
        }
        ending = classify_exits(codes, self._status.failures(), self._oom_kills, stderr)
        return self._device_errors.explain(self._kernel_log.explain(ending))

    def _classify_settled(self, result: RunResult) -> tuple[Ending, RunResult]:
        """Classify the exits; a lost peer may be a rank of this pod that exits a moment later."""
        deadline = time.monotonic() + _OWN_RANKS_SECONDS
        ending = self._classify(result)
        while (
            ending.code == ExitCode.PEER_LOST
            and time.monotonic() < deadline
            and not self._generation_is_over()
        ):
            result = self._monitor_workers(self._worker_group)
            ending = self._classify(result)
        return ending, result

    def explain(self, error: ForkServerLostError) -> Ending:
        """Return how this pod ends when the fork server is gone."""
        oom = (
            f": the pod is out of memory{self._oom_kills.describe_limit()}"
            if self._oom_kills.increased()
            else ""
        )
        return Ending(ExitCode.WORKER_DIED, f"{error}{oom}")

    def _generation_is_over(self) -> bool:
        try:
            state = self._gang.poll()
        except StoreLostError:
            return True
        self._raise_verdict(state)
        return state.generation != self._gang.generation

    def _raise_verdict(self, state: State) -> None:
        if state.verdict is not None:
            raise RunEndedError(state.verdict)

    def _await_peer_report(self, ending: Ending, report: FailureReport) -> _Restart:
        """Wait for the pod of the lost peer, or its replacement, to report what happened.

        Whether a pod is lost is not known within seconds. Without a report node 0 counts a restart once all
        pods have met again and none of them is new.
        """
        self._stop()
        deadline = time.monotonic() + _PEER_REPORT_SECONDS
        while not self._generation_is_over():
            if time.monotonic() >= deadline or self.terminating:
                break
            time.sleep(MONITOR_SECONDS)
        return _Restart(ending.message, report)

    def _handle_early_stop(self, ending: Ending) -> _Restart:
        """Megatron saved and stopped before the last iteration: on SIGTERM of a pod, or by its own limits."""
        try:
            leaving = self._gang.marked("leaving")
        except StoreLostError as error:
            return _Restart(f"the store on the Master pod is lost ({error})")
        if not leaving:
            raise RunEndedError(ending)
        why = f"node {leaving[0]} received SIGTERM and saved a checkpoint"
        return _Restart(why, FailureReport(FailureKind.STOP, why, leaving[0]))

    def _finish(self) -> _Restart | None:
        """All ranks of this pod are done. The pod exits when those of all pods are, node 0 last."""
        self._checkpoints.report_newest()
        deadline = time.monotonic() + _FINISH_SECONDS
        try:
            self._telemetry_sync.sync(at_once=True)
            self._gang.mark("finished")
            while not self._gang.all_marked("finished"):
                if self._must_exit_now():
                    break
                state = self._gang.poll()
                self._telemetry_sync.sync()
                self._raise_verdict(state)
                if state.generation != self._gang.generation:
                    return self._follow_generation(state)
                if time.monotonic() >= deadline:
                    late = f"not all pods finished within {_FINISH_SECONDS:.0f} s"
                    self._gang.advance(FailureReport(FailureKind.POD, late))
                time.sleep(MONITOR_SECONDS)
            self._telemetry_sync.sync(at_once=True)
        except StoreLostError as error:
            # No failure, on node 0 neither: what remains is the check of the last checkpoint.
            self._log(f"the store was lost after the last iteration: {error}")
        raise RunEndedError(Ending(ExitCode.OK, "all iterations are done"))

    def _must_exit_now(self) -> bool:
        """Whether SIGTERM was received twice, or once and the time for a save is over."""
        return self._terminations > 1 or bool(self._save_deadline and time.monotonic() >= self._save_deadline)

    def _save_and_exit(self, result: RunResult) -> None:
        """After SIGTERM: let Megatron save, within the grace period.

        Raises RunEndedError when that is over.
        """
        if not self._save_deadline:
            self._save_deadline = time.monotonic() + self._grace
            self._log(f"SIGTERM: waiting up to {self._grace:.0f} s for Megatron to save")
            self._status.set(message="SIGTERM received")
            self._gang.mark("leaving")
            self._fork_server.signal(signal.SIGTERM)
        if result.state == WorkerState.SUCCEEDED:
            self._finish()
        if result.state == WorkerState.HEALTHY:
            if not self._must_exit_now():
                return
            self._stop()
            why = "second SIGTERM" if self._terminations > 1 else f"not done within {self._grace:.0f} s"
            raise RunEndedError(Ending(ExitCode.TERMINATED, f"SIGTERM: exited without a save: {why}"))
        if result.state == WorkerState.FAILED and not self._classify(result).code.retryable:
            return
        self._stop()
        try:
            saved = self._checkpoints.newest()
            message = "no save" if saved is None else f"the newest complete checkpoint is iteration {saved}"
        except OSError as error:
            message = f"the checkpoints cannot be read: {error}"
        raise RunEndedError(Ending(ExitCode.TERMINATED, f"SIGTERM: {message}"))


def _crashed(result: RunResult) -> bool:
    return any(failure.exitcode == -signal.SIGSEGV for failure in result.failures.values())
