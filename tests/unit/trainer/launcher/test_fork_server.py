"""The fork server with small programs instead of Megatron."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
from megatron_trainer.health.stacks import SIGNAL as STACKS_SIGNAL
from megatron_trainer.health.stacks import register_stack_dump
from megatron_trainer.launcher.fork_server import PREFLIGHT, ForkServer, ForkServerLostError, Programs
from megatron_trainer.launcher.output_tail import TAIL_BYTES
from megatron_trainer.telemetry.reporter import STACKS_ENV

pytestmark = pytest.mark.forks

DEADLINE_SECONDS = 60.0


def rank_program() -> int:
    """Exit with the code EXIT, or start a helper, write its pid to the file PID_FILE, and stay or CRASH."""
    if "EXIT" in os.environ:
        return int(os.environ["EXIT"])
    if "STDERR" in os.environ:
        # Not sys.stderr, which pytest replaces: what C++ writes does not pass through it either.
        os.write(2, b"." * 200_000 + f"\n{os.environ['STDERR']}\n".encode())
        os.abort()
    helper = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    Path(os.environ["PID_FILE"]).write_text(str(helper.pid))
    if os.environ.get("CRASH"):
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(600)
    return 0


@pytest.fixture
def fork_server() -> Iterator[ForkServer]:
    fork_server = ForkServer(lambda: Programs(rank=rank_program, preflight=lambda: 64))
    yield fork_server
    fork_server.close()


def wait_for[T](probe: Callable[[], T | None]) -> T:
    deadline = time.monotonic() + DEADLINE_SECONDS
    while time.monotonic() < deadline:
        if (found := probe()) is not None:
            return found
        time.sleep(0.01)
    raise AssertionError(f"waited {DEADLINE_SECONDS:.0f} s")


def helper_of(path: Path) -> int:
    """Return the helper's pid; it may have ended already."""
    return wait_for(lambda: int(text) if path.exists() and (text := path.read_text()) else None)


def gone(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def exits(fork_server: ForkServer, count: int) -> dict[int, int]:
    return wait_for(lambda: found if len(found := fork_server.exited(0.1)) == count else None)


def test_a_warm_up_that_fails_prints_its_traceback(
    capfd: pytest.CaptureFixture[str],
) -> None:
    def warm_up() -> Programs:
        raise ModuleNotFoundError("No module named 'requests'")

    server = ForkServer(warm_up)
    with pytest.raises(ForkServerLostError, match="has died"):
        server.start({PREFLIGHT: {}})
    server.close()
    assert "ModuleNotFoundError: No module named 'requests'" in capfd.readouterr().err


def test_children_get_their_environment_and_exit_codes_are_reported(fork_server: ForkServer) -> None:
    fork_server.start({0: {"EXIT": "0"}, 1: {"EXIT": "138"}})
    assert exits(fork_server, 2) == {0: 0, 1: 138}


def test_the_preflight_runs_in_a_separate_child(fork_server: ForkServer) -> None:
    fork_server.start({PREFLIGHT: {}})
    assert exits(fork_server, 1) == {PREFLIGHT: 64}


ASKED_BEFORE_IT_HAS_ITS_HANDLER = """
import os
from megatron_trainer.health.stacks import SIGNAL, register_stack_dump
os.kill(os.getpid(), SIGNAL)
register_stack_dump(int(os.environ["RANK"]))
os.kill(os.getpid(), SIGNAL)
"""


def asked_before_it_has_its_handler() -> int:
    os.kill(os.getpid(), STACKS_SIGNAL)
    register_stack_dump(int(os.environ["RANK"]))
    os.kill(os.getpid(), STACKS_SIGNAL)
    return 0


@pytest.mark.parametrize(
    "cold", [None, [sys.executable, "-c", ASKED_BEFORE_IT_HAS_ITS_HANDLER]], ids=["forked", "cold"]
)
def test_a_request_for_stacks_kills_no_rank_that_has_not_registered_for_it(
    cold: list[str] | None, tmp_path: Path
) -> None:
    """As one that hangs while it imports."""
    programs = Programs(asked_before_it_has_its_handler, lambda: 64, cold_rank=cold)
    fork_server = ForkServer(lambda: programs)
    fork_server.start({0: {"RANK": "0", STACKS_ENV: str(tmp_path)}})
    assert exits(fork_server, 1) == {0: 0}
    assert (tmp_path / "rank-0").read_text().count("hread 0x") == 1
    fork_server.close()


def test_exits_of_an_earlier_start_are_dropped(fork_server: ForkServer) -> None:
    fork_server.start({0: {"EXIT": "1"}})
    exits(fork_server, 1)
    fork_server.start({0: {"EXIT": "2"}})
    assert exits(fork_server, 1) == {0: 2}


def test_exits_before_a_stop_are_dropped(fork_server: ForkServer) -> None:
    fork_server.start({0: {"EXIT": "143"}})
    exits(fork_server, 1)
    fork_server.stop()
    assert (fork_server.exited(0), fork_server.pids, fork_server.last_stderr(0)) == ({}, {}, "")


def test_the_helpers_of_a_crashed_rank_are_killed(fork_server: ForkServer, tmp_path: Path) -> None:
    fork_server.start({0: {"PID_FILE": str(tmp_path / "helper"), "CRASH": "1"}})
    assert exits(fork_server, 1) == {0: -signal.SIGKILL}
    helper = helper_of(tmp_path / "helper")
    assert wait_for(lambda: gone(helper) or None)


def test_stop_waits_until_ranks_and_helpers_are_gone(fork_server: ForkServer, tmp_path: Path) -> None:
    pids = fork_server.start({0: {"PID_FILE": str(tmp_path / "helper")}})
    helper = helper_of(tmp_path / "helper")
    fork_server.stop()
    assert gone(helper)
    assert not psutil.pid_exists(pids[0])


def test_stop_kills_a_rank_that_does_not_lead_its_session_yet(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    reached = tmp_path / "reached"

    def stay() -> None:
        reached.touch()
        time.sleep(600)

    monkeypatch.setattr(os, "setsid", stay)
    fork_server = ForkServer(lambda: Programs(rank=rank_program, preflight=lambda: 0))
    pids = fork_server.start({0: {"EXIT": "0"}})
    wait_for(lambda: reached.exists() or None)
    fork_server.stop()
    assert not psutil.pid_exists(pids[0])
    fork_server.close()


def test_ranks_and_helpers_end_with_the_launcher(tmp_path: Path) -> None:
    fork_server = ForkServer(lambda: Programs(rank=rank_program, preflight=lambda: 0))
    pids = fork_server.start({0: {"PID_FILE": str(tmp_path / "helper")}})
    helper = helper_of(tmp_path / "helper")
    fork_server.close()
    assert gone(helper)
    assert not psutil.pid_exists(pids[0])


def test_ranks_end_with_the_fork_server_and_the_launcher_gets_an_error(tmp_path: Path) -> None:
    fork_server = ForkServer(lambda: Programs(rank=rank_program, preflight=lambda: 0))
    pids = fork_server.start({0: {"PID_FILE": str(tmp_path / "helper")}})
    rank = pids[0]
    helper = helper_of(tmp_path / "helper")
    os.kill(fork_server.pid, signal.SIGKILL)
    assert wait_for(lambda: gone(rank) or None)
    with pytest.raises(ForkServerLostError):
        fork_server.exited(DEADLINE_SECONDS)
    fork_server.close()
    os.kill(helper, signal.SIGKILL)


def test_a_program_that_raises_counts_as_a_dead_rank(capfd: pytest.CaptureFixture[str]) -> None:
    def program() -> int:
        raise RuntimeError("a data loader's worker was killed")

    fork_server = ForkServer(lambda: Programs(rank=program, preflight=lambda: 0))
    fork_server.start({0: {}})
    assert exits(fork_server, 1) == {0: 138}
    fork_server.close()
    assert "a data loader's worker was killed" in capfd.readouterr().err


def test_the_end_of_an_aborted_ranks_stderr_is_kept_and_all_of_it_passed_on(
    capfd: pytest.CaptureFixture[str],
) -> None:
    fork_server = ForkServer(lambda: Programs(rank=rank_program, preflight=lambda: 64))
    fork_server.start({0: {"STDERR": "CUDA error: 0"}, 1: {"STDERR": "CUDA error: 1"}, 2: {"EXIT": "0"}})
    assert exits(fork_server, 3) == {0: -signal.SIGABRT, 1: -signal.SIGABRT, 2: 0}
    kept = [fork_server.last_stderr(key) for key in range(3)]
    fork_server.close()
    assert [text[-14:] for text in kept] == ["CUDA error: 0\n", "CUDA error: 1\n", ""]
    assert [len(text) for text in kept] == [TAIL_BYTES, TAIL_BYTES, 0]
    passed_on = capfd.readouterr().err
    dots = passed_on.count(".")
    assert dots == 400_000
    assert [rank for rank in (0, 1) if f"CUDA error: {rank}\n" not in passed_on] == []


@contextlib.contextmanager
def as_stderr(file: int) -> Iterator[None]:
    """Have processes that are forked meanwhile write their stderr to a file descriptor."""
    kept = os.dup(2)
    os.dup2(file, 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)


def test_a_log_that_nobody_reads_holds_up_neither_ranks_nor_their_ends() -> None:
    reading, writing = os.pipe()
    with as_stderr(writing):
        fork_server = ForkServer(lambda: Programs(rank=rank_program, preflight=lambda: 64))
    os.close(writing)
    try:
        fork_server.start({0: {"STDERR": "CUDA error: 0"}, 1: {"STDERR": "CUDA error: 1"}, 2: {"EXIT": "3"}})
        assert exits(fork_server, 3) == {0: -signal.SIGABRT, 1: -signal.SIGABRT, 2: 3}
        kept = [fork_server.last_stderr(key)[-14:] for key in (0, 1)]
        assert kept == ["CUDA error: 0\n", "CUDA error: 1\n"]
        fork_server.start({0: {"EXIT": "4"}})
        assert exits(fork_server, 1) == {0: 4}
    finally:
        os.close(reading)
        fork_server.close()
