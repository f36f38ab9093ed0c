"""Which rank's end explains the others, and what the gang is told of it."""

import signal
from collections.abc import Mapping
from typing import Any

from megatron_contract.exit_codes import ExitCode

from megatron_trainer.health.oom_kills import MemoryKills
from megatron_trainer.launcher.termination import Ending
from megatron_trainer.telemetry.incidents import Kind, Report

# What a rank says about its own end, by global rank: the event `failed`.
Said = Mapping[int, Mapping[str, Any]]


def culprit(codes: Mapping[int, int], said: Said, memory: MemoryKills) -> Ending:
    """The end among a pod's ranks that explains the others: one that comes again, then one of its own.

    `codes`: exit codes by global rank, negative for a signal.
    """
    endings = [_ending(rank, code, said, memory) for rank, code in sorted(codes.items())]
    order = {ExitCode.PEER_LOST: 2, ExitCode.TERMINATED: 3}
    return min(endings, key=lambda ending: 0 if ending.code < 128 else order.get(ending.code, 1))


def _ending(rank: int, code: int, said: Said, memory: MemoryKills) -> Ending:
    message = f"rank {rank} exited with code {code}"
    if code == 0:
        code, message = ExitCode.WORKER_DIED, f"{message} before the last iteration was done"
    elif code < 0:
        message = f"rank {rank} was killed by {signal.Signals(-code).name}"
        if code == -signal.SIGKILL and memory.more():
            message += f": the pod is out of memory{memory.limit()}"
    elif rank in said:
        message = f"rank {rank}: {said[rank]['message']}"
    return Ending(ExitCode(code) if code in set(ExitCode) else ExitCode.WORKER_DIED, message, rank)


def report_of(ending: Ending, said: Said, node_rank: int) -> Report:
    """What to tell the gang of the end of a rank of this pod."""
    if ending.code == ExitCode.PEER_LOST:
        return Report(Kind.POD, ending.message)
    words = said.get(-1 if ending.rank is None else ending.rank, {})
    kind = Kind.LOSS if ending.code == ExitCode.LOSS_NOT_FINITE else Kind.RANK
    return Report(
        kind,
        ending.message,
        node_rank,
        ending.rank,
        failed_iteration=words.get("iteration"),
        unreadable=words.get("unreadable"),
    )
