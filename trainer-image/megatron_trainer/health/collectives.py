"""Which rank the others wait for, from the collectives that each rank has enqueued.

Ranks that wait on a device show no frame of torch.distributed: they wait in `.item()` or a synchronization.
What they have enqueued, by process group, shows who is missing. Imports no torch.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Waiting:
    """A collective that a rank has enqueued and that is not known to have completed.

    `number` counts the collectives of the group; `ranks` are the group's global ranks; `operation` is for
    example `nccl:all_reduce`. `peer` is the other rank of a send or receive, which has no number.
    """

    group: str
    number: int
    operation: str
    ranks: tuple[int, ...]
    peer: int | None = None


@dataclass(frozen=True)
class Collectives:
    """What one rank has enqueued: the number of collectives by process group, and those it waits for."""

    enqueued: Mapping[str, int]
    waiting: tuple[Waiting, ...]

    def to_json(self) -> dict[str, Any]:
        """Return the JSON object that `from_json` reads; evenly spaced ranks take three numbers."""
        waiting = [
            [each.group, each.number, each.operation, _packed(each.ranks), each.peer] for each in self.waiting
        ]
        return {"enqueued": dict(self.enqueued), "waiting": waiting}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> "Collectives":
        """Read what `to_json` returned."""
        waiting = tuple(
            Waiting(group, number, operation, _unpacked(ranks), peer)
            for group, number, operation, ranks, peer in data["waiting"]
        )
        return cls(data["enqueued"], waiting)


def awaited_ranks(ranks: Mapping[int, Collectives]) -> list[int]:
    """Return the ranks that others wait for and that wait for nobody themselves, in ascending order.

    Empty if nobody is missing, so that a device or the network does not complete what all have enqueued, and
    if ranks wait for each other in a circle.
    """
    waits_for = {rank: _missing(rank, ranks) for rank in ranks}
    awaited = set().union(*waits_for.values())
    return sorted(rank for rank in awaited if not waits_for.get(rank))


def common_operation(ranks: Mapping[int, Collectives]) -> str | None:
    """Return the operation that all ranks of its group have enqueued and none has completed, None without."""
    for rank, known in sorted(ranks.items()):
        for each in known.waiting:
            if each.peer is None and len(each.ranks) > 1 and not _missing(rank, ranks):
                return each.operation
    return None


def _missing(rank: int, ranks: Mapping[int, Collectives]) -> set[int]:
    """Return the ranks that have not enqueued what `rank` waits for."""
    missing = set()
    for each in ranks[rank].waiting:
        if each.peer is not None:
            missing.add(each.peer)
        for other in each.ranks:
            known = ranks.get(other)
            if other != rank and known is not None and known.enqueued.get(each.group, 0) < each.number:
                missing.add(other)
    return missing


def _packed(ranks: Sequence[int]) -> list[int] | dict[str, int]:
    if len(ranks) < 3:
        return list(ranks)
    step = ranks[1] - ranks[0]
    if step <= 0 or tuple(ranks) != tuple(range(ranks[0], ranks[-1] + 1, step)):
        return list(ranks)
    return {"first": ranks[0], "last": ranks[-1], "step": step}


def _unpacked(ranks: list[int] | dict[str, int]) -> tuple[int, ...]:
    if isinstance(ranks, list):
        return tuple(ranks)
    return tuple(range(ranks["first"], ranks["last"] + 1, ranks["step"]))
