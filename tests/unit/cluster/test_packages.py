"""Another apt that works on the machine is waited for."""

import fcntl
import subprocess
import sys
import time
from pathlib import Path

from localcluster import packages
from localcluster.packages import wait_for_lock

HOLDER = """
import fcntl, sys
file = open(sys.argv[1], "r+")
fcntl.lockf(file, fcntl.LOCK_EX)
print("held", flush=True)
sys.stdin.read()
"""


def test_a_lock_that_another_process_holds_is_waited_for(tmp_path: Path) -> None:
    lock = tmp_path / "lock"
    lock.touch()
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(lock)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as holder:
        assert holder.stdin is not None
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"
        deadline = time.monotonic() + 2 * packages.LOCK_POLL
        wait_for_lock(lock, deadline)
        assert time.monotonic() >= deadline, "it was held until then"
        holder.stdin.close()
        wait_for_lock(lock, time.monotonic() + 600)
    with lock.open("r+") as file:
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)


def test_a_lock_that_does_not_exist_is_free(tmp_path: Path) -> None:
    wait_for_lock(tmp_path / "none", time.monotonic() + 600)
