"""One pod's part of a run: the warm parent, the progress server, the gang, the checkpoints."""

import os
import signal
import sys
import uuid
from collections.abc import Callable
from typing import Any

from megatron_contract.environment import ENV_PROGRESS_PORT
from megatron_contract.exit_codes import ExitCode

from megatron_trainer.checkpoints.checkpoint_lease import Ownership, owner
from megatron_trainer.checkpoints.checkpoint_manager import Keeper
from megatron_trainer.checkpoints.volume import why_unwritable
from megatron_trainer.health.stacks import SIGNAL as STACKS_SIGNAL
from megatron_trainer.health.stacks import RankState, collect
from megatron_trainer.health.watchdog import Watchdog
from megatron_trainer.launcher.flags import read as read_flags
from megatron_trainer.launcher.fork_server import PREFLIGHT, Nursery, NurseryLost, Programs
from megatron_trainer.launcher.settings import BadSetting, Settings
from megatron_trainer.launcher.termination import Ending
from megatron_trainer.rendezvous.state import Ended, State
from megatron_trainer.telemetry.incidents import Kind, Report, merge
from megatron_trainer.telemetry.reporter import SOCKET_ENV, STACKS_ENV
from megatron_trainer.telemetry.run_journal import Book
from megatron_trainer.telemetry.server import ProgressServer
from megatron_trainer.telemetry.status import EventSocket, Status


def warm_up(platform: str, flags: list[str]) -> Programs:
    """Import torch and Megatron, in the nursery process. Says whether ranks can be forked from it."""
    if platform == "cpu":
        from megatron_trainer.platform import cpu

        cpu.install()
    import torch

    from megatron_trainer.worker import main

    if "HuggingFaceTokenizer" in flags:
        # Imports transformers, which every rank would otherwise do for itself.
        import megatron.core.tokenizers.text.libraries.huggingface_tokenizer  # noqa: F401

    cold = None
    if platform == "gpu" and torch.cuda.is_initialized():
        cold = [sys.executable, "-m", "megatron_trainer.worker.main", *flags]
        print("megatron-train: an import has initialised CUDA: ranks start cold, not forked", flush=True)
    return Programs(
        rank=lambda: main.run_rank(flags),
        preflight=lambda: main.check(flags),
        cold=cold,
    )


class Pod:
    """Runs the launcher's side of a pod. `run` returns how the pod ends, the last iteration and
    checkpoint."""

    def __init__(self, settings: Settings, flags: list[str], log: Callable[[str], None]) -> None:
        self._settings = settings
        self._flags = flags
        self._log = log
        self._known = read_flags(flags)
        self._status = Status(settings.node_rank, self._known.train_iters)
        self._watchdog = Watchdog(settings.hang_timeout)
        self._incarnation = uuid.uuid4().hex
        self._book: Book | None = None
        self._told: Report | None = None
        self._stop_requests = 0

    def run(self) -> tuple[Ending, int | None, int | None]:
        self._events = EventSocket(self._take)
        os.environ[SOCKET_ENV] = self._events.address
        os.environ[STACKS_ENV] = str(self._events.folder)
        # Before any thread is started, and before torch is imported here: the nursery imports its own.
        self._nursery = Nursery(lambda: warm_up(self._settings.platform, self._flags))
        signal.signal(signal.SIGTERM, self._on_sigterm)
        signal.signal(signal.SIGINT, self._on_sigterm)
        self._events.start()
        self._keeper = self._kept(None, None)
        try:
            self._serve()
            ending = self._open_book() or self._preflight() or self._train()
        except NurseryLost as lost:
            ending = Ending(ExitCode.WORKER_DIED, str(lost))
        finally:
            self._nursery.close()
            self._events.close()
        ending = self._keeper.verify(ending)
        self._status.set(phase="finished" if ending.code == ExitCode.OK else "failed", message=ending.message)
        if self._book is not None and ending.code >= 128 and self._keeper.fenced is None:
            kind = {ExitCode.TERMINATED: Kind.STOP, ExitCode.HANG: Kind.HANG}.get(ending.code, Kind.RANK)
            report = Report(kind, ending.message, self._settings.node_rank, ending.rank)
            self._book.last_words(self._told or report)
        return ending, self._status.get("iteration"), self._status.get("checkpointIteration")

    def _take(self, event: dict[str, Any]) -> None:
        self._status.apply(event)
        self._watchdog.apply(event)

    def _serve(self) -> None:
        port = self._settings.progress_port
        try:
            ProgressServer(port, self._status.snapshot).start()
        except OSError as error:
            raise BadSetting(f"{ENV_PROGRESS_PORT} {port}: {error.strerror}; set a free port") from error

    def _open_book(self) -> Ending | None:
        """On node 0: claim the checkpoint directory and read what happened to the run so far.

        Returns how the pod ends where the directory cannot be written: for good at the run's first start, and
        to try elsewhere where the run has written it before and it does not become writable again.
        """
        if self._settings.node_rank != 0:
            return None
        save = self._known.save
        ownership = None
        if save is not None:
            ownership = Ownership(save, self._incarnation, self._settings.run_id)
            before = owner(save)
            try:
                if before:
                    self._keeper.persist(ownership.claim)
                else:
                    ownership.claim()
            except OSError as error:
                said = why_unwritable(save, error)
                if before:
                    return Ending(ExitCode.WORKER_DIED, f"{said}; this run has written it before")
                return Ending(ExitCode.USAGE, f"{said}; mount the volume writable for user {os.getuid()}")
        self._book = Book(save, self._log)
        self._status.set_quietly(**self._book.public())
        self._keeper = self._kept(self._book, ownership)
        return None

    def _kept(self, book: Book | None, ownership: Ownership | None) -> Keeper:
        return Keeper(
            self._settings,
            self._known,
            self._status,
            book,
            ownership,
            lambda: self._stop_requests > 0,
            self._log,
        )

    def _first_state(self) -> State:
        """The state of a store that this Master pod begins: the run's first, or one that goes on."""
        book = self._book
        if book is None or book.generation == 0:
            return State(1)
        alone = self._settings.nodes == 1
        anew = Report(
            Kind.POD, "the pod was replaced" if alone else "all pods were started anew", 0 if alone else None
        )
        return State(book.generation + 1, merge(book.inherited(), anew))

    def _on_sigterm(self, _number: int, _frame: object) -> None:
        self._stop_requests += 1
        if agent := getattr(self, "_agent", None):
            agent.terminate()

    def _interruption(self) -> Ending | None:
        if self._stop_requests:
            return Ending(ExitCode.TERMINATED, "SIGTERM while no rank was training: nothing to save")
        if self._keeper.fenced:
            return Ending(ExitCode.PEER_LOST, str(self._keeper.fenced))
        return None

    def _preflight(self) -> Ending | None:
        """Let Megatron check its flags, tokenizer and data files now: before waiting for any other pod."""
        settings = self._settings
        environment = {
            "RANK": str(settings.world_size - 1),
            "WORLD_SIZE": str(settings.world_size),
            "LOCAL_WORLD_SIZE": str(settings.ranks_per_node),
        }
        self._nursery.start({PREFLIGHT: environment})
        # Meanwhile this process imports what it needs of torch.
        import megatron_trainer.launcher.agent  # noqa: F401

        while PREFLIGHT not in (exited := self._nursery.exited(0.2)):
            if self._stop_requests:
                self._nursery.stop()
                return Ending(
                    ExitCode.TERMINATED, "SIGTERM before the first rank was started: nothing to save"
                )
        code = exited[PREFLIGHT]
        if code == 0:
            return None
        self._events.drain()
        said = self._status.failures().get(settings.world_size - 1)
        if code not in set(ExitCode) or said is None:
            return Ending(ExitCode.WORKER_DIED, f"the check of the flags ended with code {code}")
        return Ending(ExitCode(code), said["message"])

    def _train(self) -> Ending:
        from torch.distributed.elastic.agent.server.api import WorkerSpec

        from megatron_trainer.health.hang_coordinator import HangHunt
        from megatron_trainer.launcher.agent import GangAgent
        from megatron_trainer.rendezvous.handler import GangRendezvous
        from megatron_trainer.rendezvous.store import GangStore
        from megatron_trainer.rendezvous.telemetry_sync import Sharing

        settings, keeper = self._settings, self._keeper
        first = self._first_state()
        gang = GangRendezvous(
            store=GangStore(
                settings.master_addr, settings.master_port, host=settings.node_rank == 0, first=first
            ),
            run_id=settings.run_id,
            node_rank=settings.node_rank,
            nodes=settings.nodes,
            master_addr=settings.master_addr,
            timeout=settings.rendezvous_timeout,
            prepare=lambda state, new: keeper.prepare(state, new, sharing.told),
            interruption=self._interruption,
            log=self._log,
            incarnation=self._incarnation,
        )
        sharing = Sharing(gang, self._status, self._book)
        self._agent = GangAgent(
            WorkerSpec(
                role="rank",
                local_world_size=settings.ranks_per_node,
                entrypoint="megatron_trainer.worker.main",
                rdzv_handler=gang,
                max_restarts=settings.max_rank_restarts,
            ),
            gang,
            self._nursery,
            self._status,
            self._events,
            self._watchdog,
            sharing,
            HangHunt(gang, self._watchdog, self._known.save, self._look_at_ranks, self._log),
            keeper,
            settings.termination_grace,
            self._log,
        )
        keeper.watch()
        try:
            self._agent.run()
        except Ended as ended:
            self._told = ended.report
            if ended.ending.code < 128:
                gang.leave()
            return ended.ending
        except NurseryLost as lost:
            ending = self._agent.explain(lost)
            gang.move(Report(Kind.RANK, ending.message, settings.node_rank))
            return ending
        raise AssertionError("the agent ends by raising Ended")

    def _look_at_ranks(self) -> list[RankState]:
        first = self._settings.node_rank * self._settings.ranks_per_node
        return collect(
            {first + local: pid for local, pid in self._nursery.pids.items()},
            self._settings.node_rank,
            self._watchdog.last_known(),
            self._events.folder,
            lambda: self._nursery.signal(STACKS_SIGNAL),
        )
