"""Launchers that are forked from a process with the imports."""

import signal
from pathlib import Path

import pytest

from tests.trainer.gang import Gang
from tests.trainer.warm_process import WarmLauncher

LAST_PID = Path("/proc/sys/kernel/ns_last_pid")
ATTEMPTS = 100  # other processes of the machine may take the number first


def start_as(pid: int, pod: Gang) -> WarmLauncher:
    """Start a launcher that gets this process id."""
    for _ in range(ATTEMPTS):
        try:
            LAST_PID.write_text(str(pid - 1))
        except OSError as error:
            pytest.skip(f"choosing the next process id needs root: {error}")
        pod.start()
        launcher = pod.pods[0]
        assert isinstance(launcher, WarmLauncher)
        if launcher.pid == pid:
            return launcher
        launcher.kill()
        launcher.wait()
    raise AssertionError(f"none of {ATTEMPTS} launchers got the process id {pid}")


def test_a_launcher_with_the_process_id_of_a_killed_one_does_not_count_as_killed(pod: Gang) -> None:
    pod.start()
    killed = pod.pods[0]
    killed.kill()
    assert killed.wait() == -signal.SIGKILL
    launcher = start_as(killed.pid, pod)
    assert launcher.poll() is None, "it runs"
