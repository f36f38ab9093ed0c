"""Which checkout runs the full cluster of this machine: its addresses and control groups exist only once."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path

from localcluster.errors import ClusterError
from localcluster.processes import boot_id

PATH = Path("/run/megatron-local-cluster.json")


@dataclass(frozen=True)
class Holder:
    """The checkout whose full cluster runs, and the boot in which it was started."""

    checkout: str
    boot: str


def current_holder() -> Holder | None:
    """The holder of this boot's lock; the lock of an earlier boot is void."""
    try:
        holder = Holder(**json.loads(PATH.read_text()))
    except (FileNotFoundError, json.JSONDecodeError):
        return None
    return holder if holder.boot == boot_id() else None


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
    partial = PATH.with_name(f"{PATH.name}.{os.getpid()}")
    partial.write_text(json.dumps(asdict(Holder(str(checkout), boot_id()))))
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
