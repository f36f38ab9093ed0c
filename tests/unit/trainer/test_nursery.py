"""The warm parent with small programs instead of Megatron."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
from megatron_trainer.launcher.fork_server import PREFLIGHT, Nursery, NurseryLost, Programs

DEADLINE_SECONDS = 60.0


def rank_program() -> int:
    """Does what the environment says: exit with a code, or start a helper and stay."""
    if "EXIT" in os.environ:
        return int(os.environ["EXIT"])
    helper = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    Path(os.environ["TELL"]).write_text(str(helper.pid))
    if os.environ.get("CRASH"):
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(600)
    return 0


@pytest.fixture
def nursery() -> Iterator[Nursery]:
    nursery = Nursery(lambda: Programs(rank=rank_program, preflight=lambda: 64, cold=None))
    yield nursery
    nursery.close()


def wait_for[T](look: Callable[[], T | None]) -> T:
    deadline = time.monotonic() + DEADLINE_SECONDS
    while time.monotonic() < deadline:
        if (found := look()) is not None:
            return found
        time.sleep(0.01)
    raise AssertionError(f"waited {DEADLINE_SECONDS:.0f} s in vain")


def helper_of(path: Path) -> int:
    """The helper's pid; it may be gone by the time it is read."""
    return wait_for(lambda: int(text) if path.exists() and (text := path.read_text()) else None)


def gone(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def exits(nursery: Nursery, count: int) -> dict[int, int]:
    return wait_for(lambda: found if len(found := nursery.exited(0.1)) == count else None)


def test_children_get_their_environment_and_their_exit_codes_are_told(nursery: Nursery) -> None:
    nursery.start({0: {"EXIT": "0"}, 1: {"EXIT": "138"}})
    assert exits(nursery, 2) == {0: 0, 1: 138}


def test_the_check_of_the_flags_runs_in_a_child_of_its_own(nursery: Nursery) -> None:
    nursery.start({PREFLIGHT: {}})
    assert exits(nursery, 1) == {PREFLIGHT: 64}


def test_exits_of_an_earlier_start_are_forgotten(nursery: Nursery) -> None:
    nursery.start({0: {"EXIT": "1"}})
    exits(nursery, 1)
    nursery.start({0: {"EXIT": "2"}})
    assert exits(nursery, 1) == {0: 2}


def test_a_rank_that_crashes_takes_its_helpers_with_it(nursery: Nursery, tmp_path: Path) -> None:
    nursery.start({0: {"TELL": str(tmp_path / "helper"), "CRASH": "1"}})
    assert exits(nursery, 1) == {0: -signal.SIGKILL}
    helper = helper_of(tmp_path / "helper")
    assert wait_for(lambda: gone(helper) or None)


def test_stopping_ends_ranks_and_helpers_before_it_returns(nursery: Nursery, tmp_path: Path) -> None:
    pids = nursery.start({0: {"TELL": str(tmp_path / "helper")}})
    helper = helper_of(tmp_path / "helper")
    nursery.stop()
    assert gone(helper)
    assert not psutil.pid_exists(pids[0])


def test_ranks_and_helpers_end_when_the_launcher_goes(tmp_path: Path) -> None:
    nursery = Nursery(lambda: Programs(rank=rank_program, preflight=lambda: 0, cold=None))
    pids = nursery.start({0: {"TELL": str(tmp_path / "helper")}})
    helper = helper_of(tmp_path / "helper")
    nursery.close()
    assert gone(helper)
    assert not psutil.pid_exists(pids[0])


def test_ranks_end_when_the_warm_parent_is_killed_and_the_launcher_is_told(tmp_path: Path) -> None:
    nursery = Nursery(lambda: Programs(rank=rank_program, preflight=lambda: 0, cold=None))
    pids = nursery.start({0: {"TELL": str(tmp_path / "helper")}})
    rank = pids[0]
    helper = helper_of(tmp_path / "helper")
    os.kill(nursery.pid, signal.SIGKILL)
    assert wait_for(lambda: gone(rank) or None)
    with pytest.raises(NurseryLost):
        nursery.exited(DEADLINE_SECONDS)
    nursery.close()
    os.kill(helper, signal.SIGKILL)


def test_a_program_that_raises_counts_as_a_rank_that_died(capfd: pytest.CaptureFixture[str]) -> None:
    def program() -> int:
        raise RuntimeError("a data loader's worker was killed")

    nursery = Nursery(lambda: Programs(rank=program, preflight=lambda: 0, cold=None))
    nursery.start({0: {}})
    assert exits(nursery, 1) == {0: 138}
    nursery.close()
    assert "a data loader's worker was killed" in capfd.readouterr().err
