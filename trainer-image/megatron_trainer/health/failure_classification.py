"""Classifies the exits of a pod's ranks: which one explains the others, and what to report to the gang."""

import signal
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from megatron_contract.exit_codes import ExitCode
from megatron_contract.hardware import ErrorSource, Evidence, classify_error

from megatron_trainer.health.oom_kills import OomKillCounter
from megatron_trainer.secret_values import scrub
from megatron_trainer.telemetry.incidents import FailureKind, FailureReport
from megatron_trainer.telemetry.rank_failure import RankFailure
from megatron_trainer.termination import Ending

_NOTHING: Final[Mapping[int, str]] = MappingProxyType({})
_UNCAUGHT: Final = "what():"
"""How the C++ runtime prints the text of an exception that nothing caught."""
_LONGEST_ERROR: Final = 300


def classify_exits(
    codes: Mapping[int, int],
    failures: Mapping[int, RankFailure],
    oom_kills: OomKillCounter,
    stderr: Mapping[int, str] = _NOTHING,
) -> Ending:
    """Return the exit that explains the others.

    That is one of failed hardware, else one that would recur, else one that names a damaged checkpoint, else
    one with a cause of its own. If all lost a peer it is the one that was reported first: the others may have
    lost that rank.

    `codes`: exit codes by global rank, negative for a signal; `failures`: what ranks reported themselves, in
    the order of the reports.
    `stderr`: the last of what they wrote there.
    """
    endings = [
        _classify_exit(rank, code, failures, oom_kills, stderr.get(rank, ""))
        for rank, code in sorted(codes.items())
    ]
    order = {ExitCode.PEER_LOST: 2, ExitCode.TERMINATED: 3}
    reported = {rank: position for position, rank in enumerate(failures)}

    def priority(ending: Ending) -> tuple[int, int]:
        if ending.evidence is not None:
            return -1, 0
        if ending.code is ExitCode.PEER_LOST and ending.rank is not None:
            return order[ending.code], reported.get(ending.rank, len(reported))
        if not ending.code.retryable:
            return 0, 0
        failure = failures.get(-1 if ending.rank is None else ending.rank)
        found_damage = failure is not None and failure.unreadable is not None
        return order.get(ending.code, 1), 0 if found_damage else 1

    return min(endings, key=priority)


def _classify_exit(
    rank: int, code: int, failures: Mapping[int, RankFailure], oom_kills: OomKillCounter, stderr: str
) -> Ending:
    evidence = None
    message = f"rank {rank} exited with code {code}"
    if code == 0:
        code, message = ExitCode.WORKER_DIED, f"{message} before the last iteration was done"
    elif code < 0:
        message = f"rank {rank} was killed by {_signal_name(-code)}"
        if code == -signal.SIGKILL and oom_kills.increased():
            message += f": the pod is out of memory{oom_kills.describe_limit()}"
        if error := last_error(stderr):
            message += f": {scrub(error)}"
            found = classify_error(error)
            evidence = found.evidence
            if found.source is ErrorSource.PEER:
                code = ExitCode.PEER_LOST
    elif rank in failures:
        message = f"rank {rank}: {failures[rank].message}"
    if rank in failures and failures[rank].evidence:
        evidence = Evidence(failures[rank].evidence)
    return Ending(ExitCode(code) if code in set(ExitCode) else ExitCode.WORKER_DIED, message, rank, evidence)


def _signal_name(number: int) -> str:
    """The name of a signal; of the real-time signals only the first and the last have one."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def last_error(stderr: str) -> str:
    """The line that explains an abort: of failed hardware, else of a lost peer, CUDA or NCCL, else the last
    C++ exception that nothing caught; empty if there is none."""
    lines = [" ".join(line.split())[:_LONGEST_ERROR] for line in reversed(stderr.splitlines())]
    sources = [(classify_error(line).source, line) for line in lines]
    for wanted in (ErrorSource.HARDWARE, ErrorSource.PEER, ErrorSource.DEVICE):
        for source, line in sources:
            if source is wanted:
                return line
    return next((line for line in lines if _UNCAUGHT in line), "")


def failure_report(ending: Ending, failures: Mapping[int, RankFailure], node_rank: int) -> FailureReport:
    """Build the report to the gang for the exit of a rank of this pod.

    `failures` are those that ranks reported, by global rank.
    """
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
