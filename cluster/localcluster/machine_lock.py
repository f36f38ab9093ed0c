"""Which checkout runs the full cluster of this machine: its addresses and control groups exist only once."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path

from localcluster.errors import ClusterError
from localcluster.paths import Paths
from localcluster.processes import Processes, boot_id, start_time

PATH = Path("/run/megatron-local-cluster.json")


@dataclass(frozen=True)
class Holder:
    """The checkout whose full cluster runs, and the command that took the lock, which runs before the cluster
    does."""

    checkout: str
    boot: str
    pid: int
    start_time: int | None

    def is_alive(self) -> bool:
        """Whether the command or a process of the checkout's cluster runs."""
        if self.boot != boot_id():
            return False
        if self.start_time is not None and start_time(self.pid) == self.start_time:
            return True
        return bool(Processes(Paths("full", Path(self.checkout)).home).live_pids())


def current_holder() -> Holder | None:
    """The lock's holder. A lock is void after a reboot, and once all processes of its cluster were killed."""
    try:
        holder = Holder(**json.loads(PATH.read_text()))
    except (FileNotFoundError, json.JSONDecodeError, TypeError):
        return None
    return holder if holder.is_alive() else None


def check(checkout: Path) -> None:
    """Raises ClusterError when another checkout holds the lock, with the command that stops its cluster."""
    holder = current_holder()
    if holder is not None and holder.checkout != str(checkout):
        raise ClusterError(
            f"the checkout {holder.checkout} runs the full cluster of this machine; "
            f"stop it with: cd {holder.checkout} && python -m localcluster down"
        )


def acquire(checkout: Path) -> None:
    """Take the lock. Raises ClusterError when another checkout holds it."""
    check(checkout)
    holder = Holder(str(checkout), boot_id(), os.getpid(), start_time(os.getpid()))
    partial = PATH.with_name(f"{PATH.name}.{os.getpid()}")
    partial.write_text(json.dumps(asdict(holder)))
    partial.rename(PATH)


def is_held_by(checkout: Path) -> bool:
    """Whether `checkout` holds the lock."""
    holder = current_holder()
    return holder is not None and holder.checkout == str(checkout)


def release(checkout: Path) -> None:
    """Release the lock unless another checkout holds it."""
    holder = current_holder()
    if holder is None or holder.checkout == str(checkout):
        PATH.unlink(missing_ok=True)
