"""Checks devices and connections in seconds, before a pod's first ranks load anything.

Each rank multiplies matrices with a known product and compares it with that and with the other ranks; then
all ranks compute a sum, within a time limit. A rank that fails ends its pod, so that it is replaced, on
another node if the operator avoids this one.
"""

import hashlib
import os
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol

import torch

from megatron_trainer.errors import TrainerError

LIMIT_SECONDS = 60.0
_SIZE_ON_GPU, _SIZE_ON_CPU = 4096, 512
_LARGEST_BYTES_SUMMED = 64 << 20


class Store(Protocol):
    """The part of the process group's store that is used here."""

    def set(self, key: str, value: str) -> Any: ...

    def get(self, key: str) -> bytes: ...

    def check(self, keys: list[str]) -> bool: ...


class PreflightError(TrainerError):
    """This rank's device or connection is faulty. The text names node and rank."""


class FaultyDeviceError(TrainerError):
    """This rank's device computed a wrong product, or none."""


class PeerFailedError(TrainerError):
    """Another rank is faulty or did not respond."""


def run(store: Store, on_timeout: Callable[[TrainerError], None], limit: float = LIMIT_SECONDS) -> None:
    """Check this rank together with all others. Needs the default process group.

    `limit` is in seconds; after it, `on_timeout` is called on a thread with a PreflightError,
    FaultyDeviceError or PeerFailedError, and must end the process. Raises the same.
    """
    rank, world = torch.distributed.get_rank(), torch.distributed.get_world_size()
    steps = _Steps(store, rank, world)
    with _limited(limit, lambda: on_timeout(steps.timeout_error(limit))):
        digest = product_digest(rank)
        steps.complete("product", digest)
        _sum_over_all(rank, world)
        steps.complete("sum", "done")
        _compare(store, rank, world, digest)


def _name(rank: int) -> str:
    node = int(os.environ.get("GROUP_RANK", "0"))
    return f"preflight: rank {rank} on node {node} ({socket.gethostname()})"


def product_digest(rank: int) -> str:
    """Multiply two [size, size] matrices with a known product, twice. Returns a digest of the result.

    (u v^T)(w z^T) = (v . w) u z^T: with small whole numbers the sums are exact in any order, so every device
    must return the same bits. Raises FaultyDeviceError.
    """
    on_gpu = os.environ.get("MEGATRON_PLATFORM", "gpu") == "gpu"
    size, kind = (_SIZE_ON_GPU, torch.bfloat16) if on_gpu else (_SIZE_ON_CPU, torch.float32)
    count = torch.arange(size, device="cuda")
    u, v, w, z = ((count * step % 5 - 2).to(torch.float32) for step in (1, 2, 3, 4))
    left, right = torch.outer(u, v).to(kind), torch.outer(w, z).to(kind)
    expected = (torch.dot(v, w) * torch.outer(u, z)).to(kind)
    first, second = left @ right, left @ right
    if not torch.equal(first, second):
        raise FaultyDeviceError(f"{_name(rank)} got different results for the same product")
    wrong = int((first != expected).sum())
    if wrong:
        raise FaultyDeviceError(
            f"{_name(rank)}: {wrong} of {size * size} elements of a known product are wrong"
        )
    return hashlib.sha256(first.float().cpu().numpy().tobytes()).hexdigest()[:16]


def _sum_over_all(rank: int, world: int) -> None:
    """Sum a small number per rank, in a small tensor and in one large enough to use every link."""
    # Below 2^24 for any world, so that float32 is exact.
    expected = float(sum(each % 256 for each in range(world)))
    for elements in (1, _LARGEST_BYTES_SUMMED // 4 if torch.cuda.get_device_name() != "cpu" else 1 << 16):
        tensor = torch.full((elements,), float(rank % 256), device="cuda")
        torch.distributed.all_reduce(tensor)
        if not bool((tensor == expected).all()):
            raise PreflightError(f"{_name(rank)} got a wrong sum over all ranks")


def _compare(store: Store, rank: int, world: int, digest: str) -> None:
    """Compare the product between all ranks; the ranks outside of the majority are faulty."""
    mine = torch.tensor([int(digest, 16) >> 11], dtype=torch.float64, device="cuda")
    low, high = mine.clone(), mine.clone()
    torch.distributed.all_reduce(low, op=torch.distributed.ReduceOp.MIN)
    torch.distributed.all_reduce(high, op=torch.distributed.ReduceOp.MAX)
    if torch.equal(low, high):
        return
    digests = [store.get(_Steps.key("product", each)).decode() for each in range(world)]
    most = max(set(digests), key=digests.count)
    if digest != most:
        others = digests.count(most)
        raise FaultyDeviceError(f"{_name(rank)} got a different product than {others} of {world} ranks")
    raise PeerFailedError("preflight: another rank got a different product")


class _Steps:
    """The steps that each rank has completed, in the process group's store."""

    def __init__(self, store: Store, rank: int, world: int) -> None:
        self._store, self._rank, self._world = store, rank, world
        self._reached = "nothing"

    @staticmethod
    def key(step: str, rank: int) -> str:
        return f"preflight/{step}/{rank}"

    def complete(self, step: str, value: str) -> None:
        self._store.set(self.key(step, self._rank), value)
        self._reached = step

    def timeout_error(self, limit: float) -> TrainerError:
        """Return the error for a passed time limit; without the sum, any rank may be at fault."""
        if self._reached == "nothing":
            return FaultyDeviceError(
                f"{_name(self._rank)} did not multiply two matrices within {limit:.0f} s"
            )
        missing = [each for each in range(self._world) if not self._store.check([self.key("product", each)])]
        if missing:
            return PeerFailedError(f"preflight: ranks {missing[:8]} did not respond within {limit:.0f} s")
        return PreflightError(
            f"{_name(self._rank)}: no sum over all {self._world} ranks within {limit:.0f} s"
        )


@contextmanager
def _limited(seconds: float, then: Callable[[], None]) -> Iterator[None]:
    timer = threading.Timer(seconds, then)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
