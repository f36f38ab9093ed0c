"""One pod's part of a run: the warm parent, the progress server, the gang, the checkpoints."""

import contextlib
import os
import signal
import sys
import threading
import time
from collections.abc import Callable

from megatron_trainer import checkpoints
from megatron_trainer.contract import ENV_PROGRESS_PORT, ExitCode
from megatron_trainer.flags import read as read_flags
from megatron_trainer.nursery import PREFLIGHT, Nursery, NurseryLost, Programs
from megatron_trainer.report import SOCKET_ENV
from megatron_trainer.server import ProgressServer
from megatron_trainer.settings import BadSetting, Settings
from megatron_trainer.status import EventSocket, Status, written_at
from megatron_trainer.termination import Ending

_WATCH_SECONDS = 0.5


def warm_up(platform: str, flags: list[str]) -> Programs:
    """Import torch and Megatron, in the nursery process. Says whether ranks can be forked from it."""
    if platform == "cpu":
        from megatron_trainer.platform import cpu

        cpu.install()
    import torch

    from megatron_trainer import train

    if "HuggingFaceTokenizer" in flags:
        # Imports transformers, which every rank would otherwise do for itself.
        import megatron.core.tokenizers.text.libraries.huggingface_tokenizer  # noqa: F401

    cold = None
    if platform == "gpu" and torch.cuda.is_initialized():
        cold = [sys.executable, "-m", "megatron_trainer.train", *flags]
        print("megatron-train: an import has initialised CUDA: ranks start cold, not forked", flush=True)
    return Programs(
        rank=lambda: train.run_rank(flags),
        preflight=lambda: train.check(flags),
        cold=cold,
    )


class Pod:
    """Runs the launcher's side of a pod. `run` returns how the pod ends, the last iteration and
    checkpoint."""

    def __init__(self, settings: Settings, flags: list[str], log: Callable[[str], None]) -> None:
        self._settings = settings
        self._flags = flags
        self._log = log
        known = read_flags(flags)
        self._save, self._load, self._format = known.save, known.load, known.ckpt_format
        self._train_iters = known.train_iters
        self._status = Status(settings.node_rank, known.train_iters)
        self._stop_requests = 0

    def run(self) -> tuple[Ending, int | None, int | None]:
        self._events = EventSocket(self._status.apply)
        os.environ[SOCKET_ENV] = self._events.address
        # Before any thread is started, and before torch is imported here: the nursery imports its own.
        self._nursery = Nursery(lambda: warm_up(self._settings.platform, self._flags))
        signal.signal(signal.SIGTERM, self._on_sigterm)
        signal.signal(signal.SIGINT, self._on_sigterm)
        self._events.start()
        try:
            self._serve()
            ending = self._preflight() or self._train()
        except NurseryLost as lost:
            ending = Ending(ExitCode.WORKER_DIED, str(lost))
        finally:
            self._nursery.close()
            self._events.close()
        ending = self._verify(ending)
        self._status.set(phase="finished" if ending.code == ExitCode.OK else "failed", message=ending.message)
        return ending, self._status.get("iteration"), self._status.get("checkpointIteration")

    def _serve(self) -> None:
        port = self._settings.progress_port
        try:
            ProgressServer(port, self._status.snapshot).start()
        except OSError as error:
            raise BadSetting(f"{ENV_PROGRESS_PORT} {port}: {error.strerror}; set a free port") from error

    def _on_sigterm(self, _number: int, _frame: object) -> None:
        self._stop_requests += 1
        if agent := getattr(self, "_agent", None):
            agent.terminate()

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
        import megatron_trainer.agent  # noqa: F401

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

        from megatron_trainer.agent import GangAgent
        from megatron_trainer.gangstore import GangStore
        from megatron_trainer.rendezvous import Ended, GangRendezvous

        settings = self._settings
        gang = GangRendezvous(
            store=GangStore(settings.master_addr, settings.master_port, host=settings.node_rank == 0),
            run_id=settings.run_id,
            node_rank=settings.node_rank,
            nodes=settings.nodes,
            master_addr=settings.master_addr,
            timeout=settings.rendezvous_timeout,
            choose_checkpoint=self._choose_checkpoint,
            stopping=lambda: self._stop_requests > 0,
            log=self._log,
        )
        spec = WorkerSpec(
            role="rank",
            local_world_size=settings.ranks_per_node,
            entrypoint="megatron_trainer.train",
            rdzv_handler=gang,
            max_restarts=settings.max_rank_restarts,
        )
        self._agent = GangAgent(
            spec,
            gang,
            self._nursery,
            self._status,
            self._events,
            self._newest_checkpoint,
            settings.termination_grace,
            self._log,
        )
        threading.Thread(target=self._watch_checkpoints, daemon=True, name="checkpoints").start()
        try:
            self._agent.run()
        except Ended as ended:
            if ended.ending.code < 128:
                gang.leave()
            return ended.ending
        raise AssertionError("the agent ends by raising Ended")

    def _newest_checkpoint(self) -> int | None:
        return None if self._save is None else checkpoints.newest_whole(self._save, self._format)

    def _choose_checkpoint(self) -> int | None:
        """On node 0, while no rank is alive: put the checkpoint directory in order.

        Returns the iteration that the run itself saved last, None if it has saved none: Megatron begins then,
        from --load if that is another directory. Raises Ended where nothing is left to do or to load.
        """
        from megatron_trainer.rendezvous import Ended

        chosen = None
        if self._save is not None:
            choice = checkpoints.choose(self._save, self._format)
            for repair in choice.repairs:
                self._log(repair)
            chosen = choice.iteration
        if chosen is not None:
            self._log(f"starting from iteration {chosen}")
            if self._train_iters is not None and chosen >= self._train_iters:
                raise Ended(
                    Ending(ExitCode.OK, f"iteration {chosen} of {self._train_iters} was done already")
                )
            return chosen
        elsewhere = self._load is not None and self._load != self._save
        if (elsewhere or self._settings.require_checkpoint) and not self._can_load():
            raise Ended(
                Ending(ExitCode.NO_CHECKPOINT, f"no whole checkpoint in {self._load}; one is required")
            )
        self._log(f"starting from what is in {self._load}" if elsewhere else "starting from the beginning")
        return None

    def _can_load(self) -> bool:
        if self._load is None:
            return False
        released = checkpoints.tracked(self._load) == "release"
        return released or checkpoints.newest_whole(self._load, self._format) is not None

    def _verify(self, ending: Ending) -> Ending:
        """Look at the checkpoint once more: exit 0 only if that of the last iteration is whole."""
        if self._save is None:
            return ending
        newest = self._newest_checkpoint()
        self._tell_checkpoint(newest)
        if ending.code == ExitCode.OK and self._train_iters is not None and (newest or 0) < self._train_iters:
            return Ending(
                ExitCode.WORKER_DIED,
                f"all {self._train_iters} iterations are done but the newest whole checkpoint is {newest}",
            )
        return ending

    def _tell_checkpoint(self, iteration: int | None) -> None:
        assert self._save is not None
        written = None if iteration is None else written_at(checkpoints.directory(self._save, iteration))
        self._status.checkpoint(iteration, written)

    def _watch_checkpoints(self) -> None:
        """Follow Megatron's tracker; when a new whole checkpoint is there, delete old ones (on node 0)."""
        if self._save is None:
            return
        seen: str | None = None
        while True:
            time.sleep(_WATCH_SECONDS)
            with contextlib.suppress(OSError):
                text = checkpoints.tracked(self._save)
                if text is None or text == seen:
                    continue
                newest = self._newest_checkpoint()
                if newest is None or str(newest) != text:
                    continue
                seen = text
                self._tell_checkpoint(newest)
                if self._settings.node_rank == 0 and self._settings.keep_checkpoints:
                    checkpoints.prune(self._save, self._settings.keep_checkpoints, self._format, self._log)
