"""Collects the Python stacks of a pod's ranks while they hang, and the collectives that they wait for.

A rank's faulthandler writes the stacks of all its threads on a signal. The handler is in C, so it runs while
the main thread waits in a collective. A process that is stopped or uninterruptible does not answer; its state
is in /proc.
"""

import contextlib
import faulthandler
import json
import os
import re
import signal
import socket
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from megatron_trainer.health.collectives import Collectives, awaited_ranks, common_operation
from megatron_trainer.telemetry.reporter import STACKS_ENV

SIGNAL: int = signal.SIGRTMIN + 1
_ANSWER_SECONDS = 2.0
_POLL_SECONDS = 0.05
_STATES = {"T": "stopped", "t": "stopped by a debugger", "D": "in an uninterruptible wait", "Z": "dead"}
NO_ANSWER = "  no answer to the request for its stacks"
MAIN_THREAD = "Main thread:"
"""First line of the stacks of a rank whose main thread is known."""
_THREAD = re.compile(r"hread 0x(?P<ident>[0-9a-f]+)")
_FRAME = re.compile(r'  File "(?P<file>[^"]*)", line (?P<line>\d+) in (?P<function>.*)')
# A main thread with one of these frames waits for other ranks: torch's own, and what measures their waits.
_COLLECTIVE_FRAME = re.compile(r"\(.*torch/distributed/|measured_collective \(.*/worker/step_phases\.py:")


def register_stack_dump(rank: int) -> None:
    """In a rank: write this process's stacks to the launcher's folder on SIGNAL."""
    folder = os.environ.get(STACKS_ENV)
    if not folder:
        return
    file = (Path(folder) / f"rank-{rank}").open("w")
    file.write(f"{os.getpid()} {threading.main_thread().ident:x}\n")
    file.flush()
    faulthandler.register(SIGNAL, file=file, all_threads=True, chain=False)


def collectives_socket(folder: Path, rank: int) -> Path:
    """Return the datagram socket that asks a rank for its collectives."""
    return folder / f"collectives-{rank}.socket"


def collectives_file(folder: Path, rank: int) -> Path:
    """Return the file in which a rank answers."""
    return folder / f"collectives-{rank}.json"


@dataclass(frozen=True)
class RankState:
    """The state of one rank when it was inspected.

    `doing` is its last reported activity, `state` that of the process, `innermost` the innermost frame of its
    main thread ("" if unknown), `in_collective` whether that thread waits for other ranks, and `answered`
    whether it wrote its stacks. `collectives` is None if it did not report them.
    """

    rank: int
    node_rank: int
    pid: int
    iteration: int | None
    doing: str
    state: str
    innermost: str
    in_collective: bool
    answered: bool = True
    stacks: str = ""
    collectives: Collectives | None = None

    def brief(self) -> dict[str, Any]:
        """Return all but the stacks as a JSON object, for the gang's store."""
        known = None if self.collectives is None else self.collectives.to_json()
        return asdict(replace(self, stacks="", collectives=None)) | {"collectives": known}

    @classmethod
    def from_brief(cls, brief: dict[str, Any]) -> "RankState":
        """Read what `brief` returned."""
        known = brief.get("collectives")
        return cls(**brief | {"collectives": None if known is None else Collectives.from_json(known)})

    def text(self) -> str:
        """Format for a file: one line, then the stacks."""
        return f"{self.headline()}\n{self.stacks or NO_ANSWER}\n"

    def headline(self) -> str:
        """Return rank, process, state, iterations done and activity."""
        known = f"{self.iteration} iterations done" if self.iteration is not None else "no iteration done"
        return f"rank {self.rank} (pid {self.pid}): {self.state}, {known}, {self.doing}"


def process_state(pid: int) -> str:
    """Return the state of a process from /proc: running, stopped, dead, gone, ..."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return "gone"
    letter = stat.rpartition(")")[2].split()[0]
    return _STATES.get(letter, "running")


def collect_stacks(
    pids: dict[int, int],
    node_rank: int,
    last_known: dict[int, tuple[int | None, str]],
    folder: Path,
    ask: Callable[[], None],
) -> list[RankState]:
    """Request the stacks of this pod's ranks and wait up to _ANSWER_SECONDS for them.

    `pids`: by global rank. `last_known`: iteration and activity by rank. `ask` sends the signal to all ranks.
    """
    states = {rank: process_state(pid) for rank, pid in pids.items()}
    running = [rank for rank in pids if states[rank] == "running"]
    ask()
    texts = _answers(folder, {rank: pids[rank] for rank in running})
    # Afterwards: a thread that wakes up while faulthandler reads its frames can crash the process.
    asked = [rank for rank in running if _ask_for_collectives(folder, rank)]
    collectives = _reported_collectives(folder, asked)
    found = []
    for rank, pid in sorted(pids.items()):
        main_thread, _, stacks = texts.get(rank, "").partition("\n")
        frames = main_frames(stacks, main_thread)
        innermost = next((each for each in frames if not each.startswith("measured_collective (")), "")
        iteration, doing = last_known.get(rank, (None, "unknown"))
        found.append(
            RankState(
                rank=rank,
                node_rank=node_rank,
                pid=pid,
                iteration=iteration,
                doing=doing,
                state=states[rank],
                innermost=innermost,
                in_collective=any(_COLLECTIVE_FRAME.search(frame) for frame in frames[:6]),
                answered=bool(stacks),
                stacks=main_thread_first(stacks, main_thread),
                collectives=collectives.get(rank),
            )
        )
    return found


def _answers(folder: Path, pids: Mapping[int, int]) -> dict[int, str]:
    """Read what the ranks wrote: complete once no file has changed between two polls.

    `pids`: by rank. What an earlier process of a rank wrote is left out.
    """
    deadline = time.monotonic() + _ANSWER_SECONDS
    texts: dict[int, str] = {}
    while time.monotonic() < deadline:
        time.sleep(_POLL_SECONDS)
        before = dict(texts)
        for rank, pid in pids.items():
            try:
                writer, _, text = (folder / f"rank-{rank}").read_text(errors="replace").partition(" ")
            except OSError:
                continue
            if writer == str(pid):
                texts[rank] = text
        if before == texts and all(texts.get(rank, "").count("\n") > 1 for rank in pids):
            break
    return texts


def _ask_for_collectives(folder: Path, rank: int) -> bool:
    """Ask a rank for its collectives; False if it does not listen."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as requests:
        requests.setblocking(False)
        try:
            collectives_file(folder, rank).unlink(missing_ok=True)
            requests.sendto(b"dump", str(collectives_socket(folder, rank)))
        except OSError:
            return False
    return True


def _reported_collectives(folder: Path, ranks: Sequence[int]) -> dict[int, Collectives]:
    """Read what the ranks answer within _ANSWER_SECONDS; a rank that holds Python's lock does not."""
    deadline = time.monotonic() + _ANSWER_SECONDS
    reported: dict[int, Collectives] = {}
    while len(reported) < len(ranks):
        for rank in ranks:
            with contextlib.suppress(FileNotFoundError):
                reported[rank] = Collectives.from_json(json.loads(collectives_file(folder, rank).read_text()))
        if time.monotonic() >= deadline:
            break
        time.sleep(_POLL_SECONDS)
    return reported


def main_frames(stacks: str, main_thread: str) -> list[str]:
    """Return the main thread's frames (hexadecimal ident), innermost first, as `function (file:line)`.

    The stacks may end anywhere: faulthandler writes them in pieces.
    """
    frames: list[str] = []
    inside = False
    for line in stacks.splitlines():
        if thread := _THREAD.search(line):
            inside = bool(main_thread) and int(thread["ident"], 16) == int(main_thread, 16)
        elif inside and (match := _FRAME.match(line)):
            frames.append(f"{match['function']} ({match['file']}:{match['line']})")
    return frames


def main_thread_first(stacks: str, main_thread: str) -> str:
    """Move the stack of the main thread to the top and name it."""
    blocks = [block for block in stacks.strip().split("\n\n") if block]
    name = f"0x{int(main_thread or '0', 16):016x}"
    blocks.sort(key=lambda block: name not in block.splitlines()[0])
    if blocks and name in blocks[0].splitlines()[0]:
        blocks[0] = f"{MAIN_THREAD}\n" + blocks[0].partition("\n")[2]
    return "\n\n".join(blocks)


def find_stalled_rank(states: Sequence[RankState]) -> RankState | None:
    """Return the rank that the others wait for, None if that is unknown.

    That is a rank that cannot run, else one that has not enqueued a collective which others wait for. Without
    the ranks' collectives, and with gloo where each rank that is awaited waits itself in a send or receive,
    which gloo does not record, it is one that is not in a collective while others are. Among several it is
    the one with the fewest iterations. A rank that trains alone waits for itself: its collectives are
    recorded too.
    """
    if len(states) <= 1:
        return next(iter(states), None)
    unresponsive = [each for each in states if each.state != "running" or not each.answered]
    if unresponsive:
        return min(unresponsive, key=lambda each: (each.state == "running", each.iteration or 0, each.rank))
    known = _collectives_of(states)
    waiting = {rank: collectives.waiting for rank, collectives in known.items() if collectives.waiting}
    outside = [each for each in states if not each.in_collective and each.rank not in waiting]
    if waiting:
        awaited = awaited_ranks(known)
        missing = [each for each in states if each.rank in awaited]
        if all(each.operation.startswith("nccl:") for operations in waiting.values() for each in operations):
            return _earliest(missing)
        busy = [each for each in missing if not each.in_collective]
        return _earliest(busy or (outside if missing else []))
    if not outside or len(outside) == len(states):
        fewest = min(states, key=lambda each: each.iteration or 0)
        alone = sum((each.iteration or 0) == (fewest.iteration or 0) for each in states) == 1
        return fewest if alone else None
    return _earliest(outside)


def _earliest(states: Sequence[RankState]) -> RankState | None:
    return min(states, key=lambda each: (each.iteration or 0, each.rank), default=None)


def _collectives_of(states: Sequence[RankState]) -> dict[int, Collectives]:
    return {each.rank: each.collectives for each in states if each.collectives is not None}


def describe_hang(
    rank: RankState | None, silent: float, folder: Path | None, states: Sequence[RankState] = ()
) -> str:
    """Return the cause of a hang, for status and log. `silent`: seconds without an event of any rank.

    `states` are those of all ranks; they matter if the stalled rank is unknown.
    """
    kept = f"; stacks of all ranks: {folder}" if folder else ""
    if rank is None:
        operation = common_operation(_collectives_of(states))
        why = (
            f"all ranks of a group are in {operation}, which a device or the network does not complete"
            if operation
            else "the stalled rank is unknown"
        )
        return f"no rank has made progress for {silent:.0f} s, {why}{kept}"
    where = f" in {rank.innermost}" if rank.innermost else ""
    how = "hangs" if rank.state == "running" else f"is {rank.state}"
    at = "" if rank.iteration is None else f" after iteration {rank.iteration}"
    others = "" if len(states) == 1 else ", all others wait for it"
    return f"rank {rank.rank} {how}{where}{at}{others} ({silent:.0f} s){kept}"
