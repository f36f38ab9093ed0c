"""Who runs the full cluster of this machine: its addresses and control groups exist once."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path

from localcluster.errors import ClusterError
from localcluster.processes import boot_id

PATH = Path("/run/megatron-local-cluster.json")


@dataclass(frozen=True)
class Claim:
    """The checkout whose full cluster runs, since which boot."""

    checkout: str
    boot: str


def current() -> Claim | None:
    """The claim of this boot; one of an earlier boot holds nothing."""
    try:
        claim = Claim(**json.loads(PATH.read_text()))
    except (FileNotFoundError, json.JSONDecodeError):
        return None
    return claim if claim.boot == boot_id() else None


def check(checkout: Path) -> None:
    """Raises ClusterError naming the other checkout that holds the machine, and how to stop its cluster."""
    holder = current()
    if holder is not None and holder.checkout != str(checkout):
        raise ClusterError(
            f"the checkout {holder.checkout} runs the full cluster of this machine; "
            f"stop it with: cd {holder.checkout} && python -m localcluster down"
        )


def take(checkout: Path) -> None:
    """Claim the machine. Raises ClusterError when another checkout holds it."""
    check(checkout)
    wanted = Claim(str(checkout), boot_id())
    partial = PATH.with_name(f"{PATH.name}.{os.getpid()}")
    partial.write_text(json.dumps(asdict(wanted)))
    partial.rename(PATH)


def is_ours(checkout: Path) -> bool:
    holder = current()
    return holder is not None and holder.checkout == str(checkout)


def release(checkout: Path) -> None:
    """Give the machine back, if it is `checkout`'s."""
    holder = current()
    if holder is None or holder.checkout == str(checkout):
        PATH.unlink(missing_ok=True)
