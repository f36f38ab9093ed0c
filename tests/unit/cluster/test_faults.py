"""Faults that are injected into a process are those of the table, whatever its threads do meanwhile."""

import subprocess
import sys

import pytest
from localcluster.errors import ClusterError
from localcluster.faults import Process, end_with_success
from localcluster.processes import start_time

# Threads wake each other all the time, in the system call in which the main thread waits.
BUSY_THREADS = """
import threading
condition = threading.Condition()
def turn():
    while True:
        with condition:
            condition.notify_all()
            condition.wait(0.0005)
for _ in range(8):
    threading.Thread(target=turn, daemon=True).start()
print("up", flush=True)
event = threading.Event()
while True:
    event.wait(0.0005)
"""


def test_a_process_with_busy_threads_exits_with_success() -> None:
    codes = []
    for _ in range(8):
        with subprocess.Popen([sys.executable, "-c", BUSY_THREADS], stdout=subprocess.PIPE) as child:
            assert child.stdout is not None
            child.stdout.readline()
            began = start_time(child.pid)
            assert began is not None
            end_with_success(Process(child.pid, began))
            codes.append(child.wait())
    assert codes == [0] * 8


def test_a_process_that_has_ended_is_an_error() -> None:
    with subprocess.Popen([sys.executable, "-c", ""]) as child:
        child.wait()
    with pytest.raises(ClusterError, match=r"ptrace\(16, [0-9]+\): No such process"):
        end_with_success(Process(child.pid, 0))
