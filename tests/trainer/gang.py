"""Real Megatron on loopback: launchers as the training-operator starts them, four ranks, one or two pods."""

import atexit
import contextlib
import functools
import json
import math
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
from megatron_contract.environment import SAMPLES_DIR
from megatron_trainer.data.sample_history import SampleHistory

from testkit.ports import free_port
from tests.trainer.warm_process import LAUNCHER, WarmLauncher, WarmProcess

Launcher = subprocess.Popen[bytes] | WarmLauncher

DEADLINE_SECONDS = 300.0
WORLD_SIZE = 4
TRAIN_ITERS = 24
SAVE_INTERVAL = 8

# Tensor parallel 2 x data parallel 2, dropout at Megatron's default of 0.1. In fp32, since most CPUs have no
# instructions for bf16, without which torch's matrix products are far slower.
MODEL_FLAGS = (
    "--num-layers 2 --hidden-size 64 --num-attention-heads 4 --seq-length 64 --max-position-embeddings 64 "
    "--micro-batch-size 2 --global-batch-size 8 --lr 3e-3 --lr-decay-iters 100 "
    "--position-embedding-type rope "
    "--tensor-model-parallel-size 2 --use-distributed-optimizer --async-save --ckpt-format torch_dist "
    f"--save-interval {SAVE_INTERVAL} --log-interval 100 --eval-iters 0 --eval-interval 1000 --split 98,2,0 "
    "--tokenizer-type HuggingFaceTokenizer"
).split()


def until[T](what: str, probe: Callable[[], T | None]) -> T:
    """Wait until `probe` returns something; fail after DEADLINE_SECONDS."""
    deadline = time.monotonic() + DEADLINE_SECONDS
    while time.monotonic() < deadline:
        if (found := probe()) is not None:
            return found
        time.sleep(0.05)
    raise AssertionError(f"waited {DEADLINE_SECONDS:.0f} s for {what}")


@functools.cache
def temporary_root() -> Path:
    """Return the folder for the temporary folders of all gangs of this process, which is removed with it."""
    root = Path(tempfile.mkdtemp(prefix="gangs-"))
    atexit.register(shutil.rmtree, root, ignore_errors=True)
    return root


def _data_flags(corpus: Path) -> list[str]:
    text, tokenizer = corpus / "text_text_document", corpus / "tokenizer"
    return ["--data-path", str(text), "--tokenizer-model", str(tokenizer)]


class Gang:
    """The launchers of one run, its checkpoint directory and its files there."""

    def __init__(
        self,
        folder: Path,
        corpus: Path | None,
        nodes: int,
        warm: WarmProcess | None = None,
        ranks: int = WORLD_SIZE,
    ) -> None:
        self.folder, self.save = folder, folder / "checkpoints"
        # Sockets are created there: pytest's folder of a test may have too long a path.
        self._temporary = temporary_root() / uuid.uuid4().hex[:8]
        self.nodes, self.ranks_per_node = nodes, ranks // nodes
        self.environment: dict[str, str] = {}
        self.flags = list(MODEL_FLAGS)
        self.length = ["--train-iters", str(TRAIN_ITERS)]
        self._data = _data_flags(corpus) if corpus is not None else ["--mock-data"]
        self._warm = warm
        self._store_port = free_port()
        self.progress_ports = [free_port() for _ in range(nodes)]
        self.pods: dict[int, Launcher] = {}
        self._started: list[psutil.Process] = []
        self._frozen: list[FrozenPod] = []

    def start(self, *nodes: int, extra: tuple[str, ...] = ()) -> None:
        """Start the launchers of `nodes`, all by default, with `extra` flags."""
        self._temporary.mkdir(exist_ok=True)
        for node in nodes or range(self.nodes):
            environment = os.environ | {
                "MEGATRON_PLATFORM": "cpu",
                "MEGATRON_RUN_ID": "test",
                "MEGATRON_PROGRESS_PORT": str(self.progress_ports[node]),
                "MEGATRON_TERMINATION_LOG": str(self.folder / f"termination-{node}"),
                "MEGATRON_TERMINATION_GRACE": str(int(DEADLINE_SECONDS)),
                "MASTER_ADDR": "localhost",
                "MASTER_PORT": str(self._store_port),
                "PET_NNODES": str(self.nodes),
                "PET_NODE_RANK": str(node),
                "PET_NPROC_PER_NODE": str(self.ranks_per_node),
                "TMPDIR": str(self._temporary),
                "PYTHONWARNINGS": "ignore",
                **self.environment,
            }
            flags = [*self.arguments(), *extra]
            self.pods[node] = self._launch(flags, environment, self.folder / f"pod-{node}.log")

    def arguments(self) -> list[str]:
        """Return the arguments of all launchers."""
        return [
            *self.flags,
            *self._data,
            *self.length,
            *("--save", str(self.save)),
        ]

    def _launch(self, flags: list[str], environment: dict[str, str], log: Path) -> Launcher:
        if self._warm is not None:
            return self._warm.start(flags, environment, log)
        command = [sys.executable, "-m", LAUNCHER, *flags]
        with log.open("ab") as output:
            return subprocess.Popen(command, env=environment, stdout=output, stderr=subprocess.STDOUT)

    def inject(self, *faults: dict[str, Any]) -> None:
        """Inject faults, as inject/sitecustomize.py describes, into ranks that are started from now on."""
        path = [str(Path(__file__).with_name("inject")), os.environ.get("PYTHONPATH", "")]
        self.environment |= {
            "PYTHONPATH": os.pathsep.join(filter(None, path)),
            "TEST_FAULTS": json.dumps(faults),
        }

    def hold_after(self, iteration: int) -> None:
        """Let the first generation wait after `iteration`, before a later checkpoint, until `release`."""
        faults = json.loads(self.environment.get("TEST_FAULTS", "[]"))
        until = str(self._released)
        self.inject(*faults, {"what": "hold", "at": iteration + 1, "generations": [1], "until": until})

    def release(self) -> None:
        """End the wait of `hold_after`."""
        self._released.touch()

    @property
    def _released(self) -> Path:
        return self.folder / "released"

    def incidents(self) -> list[dict[str, Any]]:
        return json.loads((self.save / "incidents.json").read_text())["incidents"]  # type: ignore[no-any-return]

    def progress(self, node: int) -> dict[str, Any]:
        url = f"http://127.0.0.1:{self.progress_ports[node]}/progress"
        with urllib.request.urlopen(url) as answer:
            return json.load(answer)  # type: ignore[no-any-return]

    def records(self) -> list[dict[str, Any]]:
        try:
            text = (self.save / "progress.jsonl").read_text()
        except FileNotFoundError:
            return []
        return [json.loads(line) for line in text.splitlines()]

    def losses(self) -> dict[int, list[float]]:
        """Return every recorded loss, by iteration: several for a repeated iteration."""
        losses: dict[int, list[float]] = {}
        for record in self.records():
            losses.setdefault(record["iteration"], []).append(record["lmLoss"])
        return losses

    def distinct_losses(self, until: float = math.inf) -> dict[int, set[float]]:
        """Return the losses of each iteration up to one: a single one where repetitions have the same."""
        return {each: set(losses) for each, losses in self.losses().items() if each <= until}

    def samples(self) -> SampleHistory:
        """Return which samples the iterations have read."""
        return SampleHistory(self.save / SAMPLES_DIR)

    def await_iteration(self, iteration: int, generation: int = 1) -> None:
        def reached() -> bool | None:
            for pod in self.pods.values():
                assert pod.poll() is None, f"a pod ended early with {pod.returncode}: {self.log()[-3000:]}"
            return (
                any(r["iteration"] >= iteration and r["generation"] >= generation for r in self.records())
                or None
            )

        until(f"iteration {iteration} of generation {generation}", reached)
        self._remember()

    def await_checkpoint(self, iteration: int) -> None:
        tracker = self.save / "latest_checkpointed_iteration.txt"

        def saved() -> bool | None:
            # Read first: a pod may end right after its last checkpoint.
            ended = [code for pod in self.pods.values() if (code := pod.poll()) is not None]
            if tracker.exists() and tracker.read_text().strip() == str(iteration):
                return True
            assert not ended, f"a pod ended early with {ended[0]}: {self.log()[-3000:]}"
            return None

        until(f"checkpoint {iteration}", saved)

    def wait(self) -> list[int]:
        """Wait for all pods. Returns their exit codes by node rank."""
        return [self.pods[node].wait(timeout=DEADLINE_SECONDS) for node in sorted(self.pods)]

    def run_to_end(self, code: int = 0) -> None:
        """Start all launchers and assert that each ends with `code`."""
        self.start()
        try:
            assert self.wait() == [code] * self.nodes, self.log()[-3000:]
        finally:
            self.stop()

    def ranks(self, node: int) -> list[psutil.Process]:
        """Return the rank processes of a pod: children of the fork server, the launcher's first child."""
        fork_server = min(psutil.Process(self.pods[node].pid).children(), key=lambda each: each.pid)
        ranks: list[psutil.Process] = fork_server.children()
        return ranks

    def cut_off(self) -> None:
        """Make launchers started from now on share only the checkpoint directory with earlier ones."""
        self._store_port = free_port()
        self.progress_ports = [free_port() for _ in range(self.nodes)]

    def kill_rank(self, node: int) -> None:
        self.ranks(node)[0].kill()

    def run_with_a_killed_rank(self, after: int, until: int) -> None:
        """Start, kill a rank after an iteration, and stop once the restarted ranks have done another."""
        self.start()
        try:
            self.await_iteration(after)
            self.kill_rank(0)
            self.await_iteration(until, generation=2)
        finally:
            self.stop()

    def replace(self, node: int) -> None:
        """Kill a pod's launcher and start another, as the training-operator replaces a pod."""
        self.pods[node].kill()
        self.pods[node].wait()
        self.start(node)

    def freeze(self, node: int) -> "FrozenPod":
        """Stop a pod by SIGSTOP, as when its machine is suspended. `start(node)` starts its replacement."""
        frozen = FrozenPod(self.pods.pop(node))
        self._frozen.append(frozen)
        self.progress_ports[node] = free_port()
        return frozen

    def files(self) -> dict[str, tuple[int, int, int]]:
        """Return inode, size and time of the last write of every file in the checkpoint directory."""
        stats = {path: path.stat() for path in self.save.rglob("*") if path.is_file()}
        return {
            str(path.relative_to(self.save)): (stat.st_ino, stat.st_size, stat.st_mtime_ns)
            for path, stat in stats.items()
        }

    def termination(self, node: int) -> dict[str, Any]:
        return json.loads((self.folder / f"termination-{node}").read_text())  # type: ignore[no-any-return]

    def log(self) -> str:
        return "".join(path.read_text(errors="replace") for path in sorted(self.folder.glob("pod-*.log")))

    def _remember(self) -> None:
        for pod in self.pods.values():
            self._started += psutil.Process(pod.pid).children(recursive=True)

    def survivors(self) -> list[str]:
        """Return the processes of this run that are still alive, after up to 10 s to be reaped."""
        _, alive = psutil.wait_procs(self._started, timeout=10)
        return [" ".join(process.cmdline()) for process in alive if process.status() != psutil.STATUS_ZOMBIE]

    def stop(self) -> None:
        for pod in self.pods.values():
            if pod.poll() is None:
                pod.send_signal(signal.SIGKILL)
                pod.wait()
        for frozen in self._frozen:
            frozen.kill()
        shutil.rmtree(self._temporary, ignore_errors=True)


def has_stopped(process: psutil.Process) -> bool:
    return bool(process.status() == psutil.STATUS_STOPPED)


def has_ended(process: psutil.Process) -> bool:
    """Whether a process has ended, or would have if its parent were not frozen."""
    return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE


class FrozenPod:
    """The processes of a pod, stopped by SIGSTOP. They continue in the order that a test chooses."""

    def __init__(self, launcher: Launcher) -> None:
        self.launcher = launcher
        (self._fork_server,) = psutil.Process(launcher.pid).children()
        self._ranks = self._fork_server.children()
        launcher.send_signal(signal.SIGSTOP)
        self._fork_server.suspend()
        # The ranks and what they started: checkpoint writers.
        self._below = self._fork_server.children(recursive=True)
        for process in self._below:
            process.suspend()

    def resume_ranks(self) -> None:
        """Continue the ranks and their checkpoint writers, and wait until the ranks have ended."""
        for process in self._below:
            # A rank that ends ends its writer too.
            with contextlib.suppress(psutil.NoSuchProcess):
                process.resume()
        until("the ranks to end", lambda: all(map(has_ended, self._ranks)) or None)

    def resume_fork_server(self) -> None:
        """Continue the fork server, which passes on what the ranks have written to stderr."""
        self._fork_server.resume()

    def resume_launcher(self) -> int:
        """Continue the launcher and its fork server. Returns the launcher's exit code."""
        self._fork_server.resume()
        self.launcher.send_signal(signal.SIGCONT)
        return self.launcher.wait(timeout=DEADLINE_SECONDS)

    def kill(self) -> None:
        for process in (*self._below, self._fork_server):
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        self.launcher.kill()
        self.launcher.wait()


PHASES = ("lastStepAt", "detectedAt", "metAt", "loadedAt", "firstStepAt", "caughtUpAt")


def assert_phases_in_order(incident: dict[str, Any]) -> None:
    """Assert that an incident from which the run recovered has all its times, in order."""
    times = [incident[phase] for phase in PHASES]
    assert None not in times
    assert times == sorted(times)


def assert_same_training(run: Gang, undisturbed: Gang) -> None:
    """Assert that all iterations were done with the losses and samples of `undisturbed`.

    Losses of repeated iterations are equal too.
    """
    expected = {iteration: losses[0] for iteration, losses in undisturbed.losses().items()}
    found = run.losses()
    assert sorted(found) == list(range(1, TRAIN_ITERS + 1))
    different = {
        iteration: (losses, expected[iteration])
        for iteration, losses in found.items()
        if set(losses) != {expected[iteration]}
    }
    assert not different, f"iteration: (losses, expected loss): {different}"
    assert run.samples().places() == undisturbed.samples().places()
