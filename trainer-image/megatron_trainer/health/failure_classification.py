"""Classifies the exits of a pod's ranks: which one explains the others, and what to report to the gang."""

import signal
from collections.abc import Mapping

from megatron_contract.exit_codes import ExitCode
from megatron_contract.hardware import Evidence

from megatron_trainer.health.oom_kills import OomKillCounter
from megatron_trainer.telemetry.incidents import FailureKind, FailureReport
from megatron_trainer.telemetry.rank_failure import RankFailure
from megatron_trainer.termination import Ending


def classify_exits(
    codes: Mapping[int, int], failures: Mapping[int, RankFailure], oom_kills: OomKillCounter
) -> Ending:
    """Return the exit that explains the others.

    That is one of failed hardware, else one that would recur, else one with a cause of its own.

    `codes`: exit codes by global rank, negative for a signal; `failures`: what ranks reported themselves.
    """
    endings = [_classify_exit(rank, code, failures, oom_kills) for rank, code in sorted(codes.items())]
    order = {ExitCode.PEER_LOST: 2, ExitCode.TERMINATED: 3}

    def priority(ending: Ending) -> int:
        if ending.evidence is not None:
            return -1
        return order.get(ending.code, 1) if ending.code.retryable else 0

    return min(endings, key=priority)


def _classify_exit(
    rank: int, code: int, failures: Mapping[int, RankFailure], oom_kills: OomKillCounter
) -> Ending:
    message = f"rank {rank} exited with code {code}"
    if code == 0:
        code, message = ExitCode.WORKER_DIED, f"{message} before the last iteration was done"
    elif code < 0:
        message = f"rank {rank} was killed by {signal.Signals(-code).name}"
        if code == -signal.SIGKILL and oom_kills.increased():
            message += f": the pod is out of memory{oom_kills.describe_limit()}"
    elif rank in failures:
        message = f"rank {rank}: {failures[rank].message}"
    reported = failures[rank].evidence if rank in failures else ""
    evidence = Evidence(reported) if reported else None
    return Ending(ExitCode(code) if code in set(ExitCode) else ExitCode.WORKER_DIED, message, rank, evidence)


def failure_report(ending: Ending, failures: Mapping[int, RankFailure], node_rank: int) -> FailureReport:
    """Build the report to the gang for the exit of a rank of this pod."""
    if ending.code == ExitCode.PEER_LOST:
        return FailureReport(FailureKind.POD, ending.message)
    failure = failures.get(-1 if ending.rank is None else ending.rank)
    kind = FailureKind.LOSS if ending.code == ExitCode.LOSS_NOT_FINITE else FailureKind.RANK
    return FailureReport(
        kind,
        ending.message,
        node_rank,
        ending.rank,
        failed_iteration=failure.iteration if failure else None,
        unreadable=failure.unreadable if failure else None,
    )
