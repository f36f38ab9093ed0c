"""Faults in the processes of one container, injected from the host: kill, stop, slow down, exhaust memory.

Nothing inside the container takes part: the host's kernel does it with signals, ptrace and control groups.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import platform
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from localcluster import cgroups
from localcluster.errors import ClusterError
from localcluster.processes import start_time, wait_until

_MIB = 1 << 20
_HEADROOM = 1024 * _MIB
"""Memory that the helper of out_of_memory() takes. The higher the limit, the more an OOM score adjustment
weighs against the resident memory of the fork server, which is larger than that of a rank."""

# Takes memory in the container's control group, 16 MiB at a time, until it is killed.
_HOG = """
import os, sys, time
open("/proc/self/oom_score_adj", "w").write(sys.argv[2])
open(sys.argv[1], "w").write(str(os.getpid()))
held = []
while True:
    held.append(b"x" * (16 << 20))
    time.sleep(0.01)
"""


@dataclass(frozen=True)
class Process:
    """A process, identified by the host's PID and its start time."""

    pid: int
    began: int
    """Clock ticks from the boot of the machine to its start, field 22 of /proc/PID/stat."""

    @property
    def alive(self) -> bool:
        """Whether it exists and is no zombie."""
        return start_time(self.pid) == self.began

    @property
    def parent(self) -> int:
        """PID of the parent; 0 when the process is gone."""
        return self._stat(1)

    @property
    def session(self) -> int:
        """PID of the session leader; 0 when the process is gone."""
        return self._stat(3)

    @property
    def command(self) -> str:
        """The command line; empty when the process is gone."""
        try:
            return (
                Path(f"/proc/{self.pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            )
        except OSError:
            return ""

    def signal(self, number: signal.Signals) -> None:
        """Send a signal. Raises ClusterError when the process is gone."""
        if not self.alive:
            raise ClusterError(f"process {self.pid} is gone; cannot send {number.name}")
        os.kill(self.pid, number)

    def kill(self) -> None:
        """SIGKILL, and wait until it is gone.

        Raises ClusterError when it was gone before, or does not end.
        """
        self.signal(signal.SIGKILL)
        wait_until(lambda: not self.alive, 20, f"process {self.pid} to end")

    def _stat(self, field: int) -> int:
        """A field of /proc/PID/stat, counted from the state after the name; 0 when the process is gone."""
        try:
            stat = Path(f"/proc/{self.pid}/stat").read_text()
        except OSError:
            return 0
        return int(stat[stat.rindex(")") + 2 :].split()[field])


class Container:
    """The processes of one running container, read from its control group."""

    def __init__(self, container_id: str) -> None:
        """`container_id` as in a pod's status, `containerd://...`.

        Raises ClusterError when the container is not running.
        """
        self.id = container_id.rpartition("/")[2]
        self._groups = _groups(self.id)
        if not self._groups:
            raise ClusterError(f"container {self.id[:12]} has no control group: it is not running")

    def processes(self) -> list[Process]:
        """All processes, oldest first; none once the container has ended."""
        try:
            pids = [int(line) for line in (self._groups[0] / "cgroup.procs").read_text().split()]
        except OSError:
            return []
        found = [Process(pid, began) for pid in pids if (began := start_time(pid)) is not None]
        return sorted(found, key=lambda process: (process.began, process.pid))

    @property
    def first(self) -> Process:
        """The container's PID 1. Raises ClusterError when it has ended."""
        for process in self.processes():
            if _pid_inside(process.pid) == 1:
                return process
        raise ClusterError(f"container {self.id[:12]} has ended")

    def children(self, parent: Process) -> list[Process]:
        """Children of a process, oldest first."""
        return [process for process in self.processes() if process.parent == parent.pid]

    @contextlib.contextmanager
    def out_of_memory(self, victim: Process, seconds: float = 30.0) -> Iterator[None]:
        """Make the kernel's OOM killer end `victim` at the container's limit; the limit is restored
        afterwards.

        A helper process uses up the memory that a lowered limit leaves. The victim has the highest OOM score,
        the helper the second highest: a further OOM before it is stopped must not end another process. Raises
        ClusterError when the victim is not killed within `seconds`.
        """
        group = next((path for path in self._groups if _limit_file(path)), None)
        limit = _limit_file(group) if group else None
        if group is None or limit is None:
            raise ClusterError(f"container {self.id[:12]} has no memory control group")
        before = limit.read_text()
        Path(f"/proc/{victim.pid}/oom_score_adj").write_text("1000")
        lowered = _held_bytes(group) + _HEADROOM
        others = max(_oom_score(each.pid, lowered) for each in self.processes() if each != victim)
        between = (_oom_score(victim.pid, lowered) + others) / 2
        adjustment = min(max(round(1000 * (between - _HEADROOM) / lowered), 0), 999)
        limit.write_text(str(lowered))
        args = [str(group / "cgroup.procs"), str(adjustment)]
        hog = subprocess.Popen([sys.executable, "-c", _HOG, *args])
        try:
            wait_until(lambda: not victim.alive, seconds, "the OOM killer to end the process")
            hog.kill()
            yield
        finally:
            hog.kill()
            hog.wait()
            with contextlib.suppress(OSError):
                limit.write_text(before)


@contextlib.contextmanager
def slowed(process: Process, running: float = 0.02, stopped: float = 0.08) -> Iterator[None]:
    """Let `process` run only `running` of every `running + stopped` seconds."""
    over = threading.Event()

    def turn() -> None:
        while process.alive and not over.wait(running):
            with contextlib.suppress(ProcessLookupError):
                os.kill(process.pid, signal.SIGSTOP)
                over.wait(stopped)
                os.kill(process.pid, signal.SIGCONT)

    thread = threading.Thread(target=turn, daemon=True, name=f"slow-{process.pid}")
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


class _Registers(ctypes.Structure):
    """struct user_regs_struct of x86-64."""

    _fields_ = [
        (name, ctypes.c_ulonglong)
        for name in (
            *("r15", "r14", "r13", "r12", "rbp", "rbx", "r11", "r10", "r9", "r8", "rax", "rcx", "rdx"),
            *("rsi", "rdi", "orig_rax", "rip", "cs", "eflags", "rsp", "ss", "fs_base", "gs_base"),
            *("ds", "es", "fs", "gs"),
        )
    ]


_GETREGS, _SETREGS, _ATTACH, _DETACH = 12, 13, 16, 17
_SYSCALL = b"\x0f\x05"
_EXIT_GROUP = 231
_WALL = 0x40000000


def end_with_success(process: Process) -> None:
    """Make a process exit with code 0 at an arbitrary point, as a stray `exit(0)` in a library would.

    Its main thread is made to call exit_group(0). Raises ClusterError where the machine is not x86-64 or the
    kernel does not permit ptrace, and where the process ends by itself meanwhile.
    """
    if platform.machine() != "x86_64":
        raise ClusterError(f"making a process exit is supported on x86_64 only, not on {platform.machine()}")
    libc = ctypes.CDLL(None, use_errno=True)
    libc.ptrace.restype = ctypes.c_long
    libc.ptrace.argtypes = (ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p)

    def ptrace(request: int, address: int = 0, data: object = None) -> None:
        if libc.ptrace(request, process.pid, address, data) == -1:
            code = ctypes.get_errno()
            raise ClusterError(f"ptrace({request}, {process.pid}): {os.strerror(code)}")

    ptrace(_ATTACH)
    try:
        os.waitpid(process.pid, _WALL)
        registers = _Registers()
        ptrace(_GETREGS, 0, ctypes.addressof(registers))
        # One that is there: other threads run on, and would run what is written into their code.
        registers.rip = _syscall_instruction(process.pid)
        registers.rax, registers.rdi = _EXIT_GROUP, 0
        # Otherwise the kernel would restart the system call that was interrupted by the attach.
        registers.orig_rax = 2**64 - 1
        ptrace(_SETREGS, 0, ctypes.addressof(registers))
        ptrace(_DETACH)
    except BaseException:
        # A process that has died is not gone for its parent before this one has waited for it.
        with contextlib.suppress(ClusterError):
            ptrace(_DETACH)
        with contextlib.suppress(ChildProcessError):
            os.waitpid(process.pid, _WALL | os.WNOHANG)
        raise
    wait_until(lambda: not process.alive, 20, f"process {process.pid} to end")


def _syscall_instruction(pid: int) -> int:
    """Address of a `syscall` instruction in the vDSO, which has one for clocks that it cannot read itself."""
    try:
        maps = Path(f"/proc/{pid}/maps").read_text()
        area = next(line.split()[0] for line in maps.splitlines() if line.endswith("[vdso]"))
        begin, end = (int(each, 16) for each in area.split("-"))
        with Path(f"/proc/{pid}/mem").open("rb") as memory:
            memory.seek(begin)
            return begin + memory.read(end - begin).index(_SYSCALL)
    except (OSError, StopIteration, ValueError) as error:
        raise ClusterError(f"process {pid} has no readable vDSO with a system call: {error!r}") from error


def _groups(container_id: str) -> list[Path]:
    """The container's control groups, one per hierarchy."""
    found = cgroups.mounted()
    points = [*found["cgroup"], *found["cgroup2"]]
    tops = [top for point in points for top in point.glob(f"{cgroups.PREFIX}node-*")]
    return [path for top in tops for path in top.glob(f"**/{container_id}") if path.is_dir()]


def _pid_inside(pid: int) -> int | None:
    """The PID in the innermost PID namespace; None when the process is gone."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return None
    line = next(line for line in status.splitlines() if line.startswith("NSpid:"))
    return int(line.split()[-1])


def _limit_file(group: Path) -> Path | None:
    """The file with the group's memory limit in cgroup v1 or v2."""
    for name in ("memory.limit_in_bytes", "memory.max"):
        if (group / name).exists():
            return group / name
    return None


def _oom_score(pid: int, limit: int) -> float:
    """The kernel's OOM score in bytes at a memory limit of `limit` bytes (oom_badness() of mm/oom_kill.c)."""
    try:
        resident = int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
        return resident + limit * int(Path(f"/proc/{pid}/oom_score_adj").read_text()) / 1000
    except OSError:
        return 0.0


def _held_bytes(group: Path) -> int:
    """Memory of the group, in bytes, that cannot be freed by dropping caches."""
    stat = dict(line.split() for line in (group / "memory.stat").read_text().splitlines())
    if "total_rss" in stat:
        return int(stat["total_rss"]) + int(stat.get("total_shmem", 0))
    return int(stat["anon"]) + int(stat["shmem"])
