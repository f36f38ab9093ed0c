"""One pod's part in a run: the fork server, the progress server, the gang, the checkpoints."""

import os
import signal
import traceback
import uuid
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from megatron_contract.environment import ENV_PROGRESS_PORT
from megatron_contract.exit_codes import ExitCode
from megatron_contract.progress import ProgressReport

from megatron_trainer import engine
from megatron_trainer.checkpoints.checkpoint_lease import CheckpointLease, was_held
from megatron_trainer.checkpoints.checkpoint_manager import CheckpointManager
from megatron_trainer.checkpoints.volume import describe_write_error
from megatron_trainer.health.stacks import SIGNAL as STACKS_SIGNAL
from megatron_trainer.health.stacks import RankState, collect_stacks
from megatron_trainer.health.watchdog import Watchdog
from megatron_trainer.launcher import cpu_binding
from megatron_trainer.launcher.fork_server import PREFLIGHT, ForkServer, ForkServerLostError
from megatron_trainer.launcher.log_output import replace_streams
from megatron_trainer.launcher.preflight import DeviceChecks, GangPreflight
from megatron_trainer.launcher.warm_up import warm_up
from megatron_trainer.rendezvous.state import RunEndedError, State
from megatron_trainer.settings import SettingError, Settings
from megatron_trainer.telemetry.event_socket import EventSocket
from megatron_trainer.telemetry.incidents import FailureKind, FailureReport, merge_reports
from megatron_trainer.telemetry.peak_memory import PeakMemory
from megatron_trainer.telemetry.reporter import SOCKET_ENV, STACKS_ENV
from megatron_trainer.telemetry.run_journal import RunJournal
from megatron_trainer.telemetry.server import ProgressServer
from megatron_trainer.telemetry.status import Status
from megatron_trainer.telemetry.step_times import StepTimes
from megatron_trainer.termination import Ending
from megatron_trainer.tracking.processes import TrackingProcesses
from megatron_trainer.volume_paths import left_volume

if TYPE_CHECKING:
    # Imports torch.
    from megatron_trainer.rendezvous.handler import GangRendezvous


class Pod:
    """The launcher of one pod."""

    def __init__(self, settings: Settings, flags: list[str], log: Callable[[str], None]) -> None:
        self._settings = settings
        self._argv = flags
        self._log = log
        self._flags = engine.read(flags)
        self._status = Status(settings.node_rank, self._flags.train_iters)
        self._step_times = StepTimes(settings.node_rank)
        self._peak_memory = PeakMemory()
        self._watchdog = Watchdog(settings.hang_timeout)
        self._incarnation = uuid.uuid4().hex
        self._gang_token = settings.read_gang_token()
        self._journal: RunJournal | None = None
        self._trackers: TrackingProcesses | None = None
        self._final_report: FailureReport | None = None
        self._stop_requests = 0

    def run(self) -> tuple[Ending, ProgressReport]:
        """Run the pod to its end.

        Returns how it ends, and its last report. Raises SettingError if the progress port is in use.
        """
        self._events = EventSocket(self._apply_event)
        os.environ[SOCKET_ENV] = self._events.address
        os.environ[STACKS_ENV] = str(self._events.folder)
        # Before any thread starts, and before torch is imported here: the fork server imports its own.
        self._fork_server = ForkServer(lambda: warm_up(self._settings.platform, self._argv))
        replace_streams()
        signal.signal(signal.SIGTERM, self._on_sigterm)
        signal.signal(signal.SIGINT, self._on_sigterm)
        self._events.start()
        self._devices = DeviceChecks(self._settings, self._events.folder)
        self._checkpoints = self._new_checkpoint_manager(None, None)
        try:
            self._serve_progress()
            ending = self._open_journal() or self._preflight()
            if ending is None:
                self._start_trackers()
                ending = self._train()
        except ForkServerLostError as error:
            ending = Ending(ExitCode.WORKER_DIED, str(error))
        except OSError as error:
            # Of a volume or of the node: a replacement may succeed.
            traceback.print_exc()
            ending = Ending(ExitCode.WORKER_DIED, f"launcher error: {type(error).__name__}: {error}")
        finally:
            self._fork_server.close()
            self._events.close()
        ending = self._checkpoints.verify(ending)
        self._status.set(phase="finished" if ending.code == ExitCode.OK else "failed", message=ending.message)
        if self._journal is not None and ending.code.retryable and self._checkpoints.fenced is None:
            kind = {ExitCode.TERMINATED: FailureKind.STOP, ExitCode.HANG: FailureKind.HANG}.get(
                ending.code, FailureKind.RANK
            )
            report = FailureReport(kind, ending.message, self._settings.node_rank, ending.rank)
            self._journal.set_pending(self._final_report or report)
        # Last, since it may take a while: nothing of the run depends on it.
        self._end_trackers(ending)
        return ending, self._status.report

    def _apply_event(self, event: dict[str, Any]) -> None:
        self._status.apply(event)
        self._watchdog.apply(event)
        self._step_times.apply(event)
        self._peak_memory.apply(event)

    def _serve_progress(self) -> None:
        port = self._settings.progress_port
        try:
            ProgressServer(port, lambda: self._status.report).start()
        except OSError as error:
            problem = os.strerror(error.errno or 0)
            raise SettingError(f"{ENV_PROGRESS_PORT} {port}: {problem}; set a free port") from error

    def _open_journal(self) -> Ending | None:
        """On node 0: acquire the checkpoint directory and read the history of the run.

        Returns how the pod ends if the directory is not writable: without a retry at the run's first start,
        with one if the run has written it before and it does not become writable again. With one as well if
        the history cannot be read now.
        """
        if self._settings.node_rank != 0:
            return None
        save = self._flags.save
        lease = None
        for directory in (save, self._flags.fast):
            if directory is not None and (problem := left_volume(directory)):
                return Ending(ExitCode.USAGE, f"checkpoints: {problem}")
        if save is not None:
            lease = CheckpointLease(save, self._incarnation, self._settings.run_id)
            written_before = was_held(save, self._settings.run_id)
            try:
                if written_before:
                    self._checkpoints.retry_until_writable(lease.acquire)
                else:
                    lease.acquire()
            except OSError as error:
                problem = describe_write_error(save, error)
                if written_before:
                    return Ending(ExitCode.WORKER_DIED, f"{problem}; this run has written it before")
                return Ending(ExitCode.USAGE, f"{problem}; mount the volume writable for user {os.getuid()}")
        try:
            self._journal = RunJournal(save, self._log)
        except OSError as error:
            return Ending(ExitCode.WORKER_DIED, f"the run's journal cannot be read: {error}")
        self._status.set_run(self._journal.summary())
        self._checkpoints = self._new_checkpoint_manager(self._journal, lease)
        return None

    def _new_checkpoint_manager(
        self, journal: RunJournal | None, lease: CheckpointLease | None
    ) -> CheckpointManager:
        return CheckpointManager(
            self._settings,
            self._flags,
            self._status,
            journal,
            lease,
            lambda: self._stop_requests > 0,
            self._log,
        )

    def _start_trackers(self) -> None:
        """On node 0, which holds the lease: only one process of each tracker may follow a run."""
        save, tracking = self._flags.save, self._settings.tracking
        if self._settings.node_rank == 0 and save is not None and tracking.trackers:
            self._trackers = TrackingProcesses(tracking, save, self._argv, self._log)
            self._trackers.start()

    def _end_trackers(self, ending: Ending) -> None:
        if self._trackers is None:
            return
        word: str | None = "stopped" if ending.code.retryable else "failed"
        if ending.code == ExitCode.OK:
            word = "finished"
        if self._checkpoints.fenced is not None:
            # The pod that took the lease continues the runs of the trackers.
            word = None
        self._trackers.close(word, lambda: self._stop_requests > 0)

    def _initial_state(self) -> State:
        """Return the state for a new store on this Master pod: of the run's first start, or of a restart."""
        journal = self._journal
        if journal is None or journal.generation == 0:
            return State(1)
        single = self._settings.nodes == 1
        cause = "the pod was replaced" if single else "all pods were replaced"
        report = FailureReport(FailureKind.POD, cause, 0 if single else None)
        return State(journal.generation + 1, merge_reports(journal.pending, report))

    def _on_sigterm(self, _number: int, _frame: object) -> None:
        self._stop_requests += 1
        if agent := getattr(self, "_agent", None):
            agent.terminate()

    def _interruption(self) -> Ending | None:
        """Return how this pod must end while it waits for others, None if it need not."""
        if self._stop_requests:
            return Ending(ExitCode.TERMINATED, "SIGTERM while no rank was training: nothing to save")
        if self._checkpoints.fenced:
            return Ending(ExitCode.PEER_LOST, str(self._checkpoints.fenced))
        return None

    def _preflight(self) -> Ending | None:
        """Check flags, tokenizer, names of data files and devices, before this pod waits for any other."""
        settings = self._settings
        environment = {
            "RANK": str(settings.world_size - 1),
            "WORLD_SIZE": str(settings.world_size),
            "LOCAL_WORLD_SIZE": str(settings.ranks_per_node),
        }
        devices = self._devices.environments() if settings.preflight else {}
        self._fork_server.start({PREFLIGHT: environment} | devices)
        # Meanwhile this process imports what it needs of torch.
        import megatron_trainer.launcher.agent  # noqa: F401

        while PREFLIGHT not in (exited := self._fork_server.exited(0.2)) or (
            exited[PREFLIGHT] == 0 and devices and not self._devices.done(exited)
        ):
            if self._stop_requests:
                self._fork_server.stop()
                return Ending(
                    ExitCode.TERMINATED, "SIGTERM before the first rank was started: nothing to save"
                )
        code = exited[PREFLIGHT]
        if code == 0:
            self._fork_server.stop()
            return self._devices.ending() if devices else None
        self._events.drain()
        failure = self._status.failures().get(settings.world_size - 1)
        if code not in set(ExitCode) or failure is None:
            return Ending(ExitCode.WORKER_DIED, f"the check of the flags ended with code {code}")
        return Ending(ExitCode(code), failure.message)

    def _train(self) -> Ending:
        """Join the gang and run this pod's ranks to the end of the run."""
        from torch.distributed.elastic.agent.server.api import WorkerSpec

        from megatron_trainer.health.hang_coordinator import HangCoordinator
        from megatron_trainer.launcher.agent import GangAgent, PodServices
        from megatron_trainer.rendezvous.telemetry_sync import TelemetrySync

        settings, gang = self._settings, self._new_rendezvous()
        self._telemetry_sync = TelemetrySync(
            gang, self._status, self._journal, self._step_times, self._peak_memory
        )
        spec = WorkerSpec(
            role="rank",
            local_world_size=settings.ranks_per_node,
            entrypoint="megatron_trainer.worker.main",
            rdzv_handler=gang,
            max_restarts=settings.max_rank_restarts,
        )
        services = PodServices(
            gang=gang,
            fork_server=self._fork_server,
            status=self._status,
            events=self._events,
            watchdog=self._watchdog,
            telemetry_sync=self._telemetry_sync,
            hangs=HangCoordinator(gang, self._watchdog, self._flags.save, self._collect_stacks, self._log),
            checkpoints=self._checkpoints,
            preflight=GangPreflight(
                settings, self._fork_server, self._events.folder, self._devices.reports(), self._log
            ),
            termination_grace=settings.termination_grace,
            cpus=self._bind_ranks(),
            log=self._log,
        )
        self._agent = GangAgent(spec, services)
        self._checkpoints.watch()
        try:
            self._agent.run()
        except RunEndedError as ended:
            self._final_report = ended.report
            if not ended.ending.code.retryable:
                gang.leave()
            return ended.ending
        except ForkServerLostError as error:
            ending = self._agent.explain(error)
            gang.advance(FailureReport(FailureKind.RANK, ending.message, settings.node_rank))
            return ending
        raise AssertionError("the agent ends by raising RunEndedError")

    def _bind_ranks(self) -> dict[int, str]:
        """Choose the cores of the local ranks, once: the devices of a pod do not change."""
        settings = self._settings
        if settings.platform != "gpu" or not settings.bind_cpus:
            return {}
        from megatron_trainer.platform.gpu import bus_ids

        binding = cpu_binding.choose(
            bus_ids(settings.ranks_per_node), self._flags.num_workers, os.sched_getaffinity(0)
        )
        self._log(f"ranks: {binding.describe()}")
        return binding.cpus

    def _new_rendezvous(self) -> "GangRendezvous":
        from megatron_trainer.rendezvous.handler import GangRendezvous
        from megatron_trainer.rendezvous.store import GangStore

        settings = self._settings
        return GangRendezvous(
            store=GangStore(
                settings.master_addr,
                settings.master_port,
                host=settings.node_rank == 0,
                initial=self._initial_state(),
                token=self._gang_token,
            ),
            run_id=settings.run_id,
            node_rank=settings.node_rank,
            nodes=settings.nodes,
            master_addr=settings.master_addr,
            timeout=settings.rendezvous_timeout,
            prepare=lambda state, new: self._checkpoints.prepare(state, new, self._telemetry_sync.latest),
            interruption=self._interruption,
            log=self._log,
            completed=self._checkpoints.completed,
            incarnation=self._incarnation,
        )

    def _collect_stacks(self) -> list[RankState]:
        first = self._settings.node_rank * self._settings.ranks_per_node
        return collect_stacks(
            {first + local: pid for local, pid in self._fork_server.pids.items()},
            self._settings.node_rank,
            self._watchdog.last_known(),
            self._events.folder,
            lambda: self._fork_server.signal(STACKS_SIGNAL),
        )
