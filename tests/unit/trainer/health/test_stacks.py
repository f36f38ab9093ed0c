"""Which rank causes a hang: real processes that respond, are stopped, or wait."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from megatron_trainer.health import stacks
from megatron_trainer.health.collectives import Collectives, Waiting
from megatron_trainer.health.stacks import (
    RankState,
    collect_stacks,
    describe_hang,
    find_stalled_rank,
    main_frames,
    main_thread_first,
)
from megatron_trainer.telemetry.reporter import STACKS_ENV

PROGRAM = """
import sys, threading
from megatron_trainer.health.stacks import register_stack_dump

def busy():
    print("ready", flush=True)
    while True:
        pass

def waiting():
    print("ready", flush=True)
    threading.Event().wait()

register_stack_dump(int(sys.argv[1]))
threading.Thread(target=threading.Event().wait, daemon=True).start()
{"busy": busy, "waiting": waiting}[sys.argv[2]]()
"""


@pytest.fixture
def processes(tmp_path: Path) -> Iterator[dict[int, int]]:
    """Rank 0 waits, rank 1 loops in Python, rank 2 is stopped. By rank: process ids."""
    started = []
    for rank, what in enumerate(("waiting", "busy", "waiting")):
        command = [sys.executable, "-c", PROGRAM, str(rank), what]
        environment = os.environ | {STACKS_ENV: str(tmp_path)}
        process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        started.append(process)
    started[2].send_signal(signal.SIGSTOP)
    os.waitpid(started[2].pid, os.WUNTRACED)
    yield {rank: process.pid for rank, process in enumerate(started)}
    for process in started:
        process.kill()
        process.wait()


def test_every_rank_has_its_stacks_or_the_state_of_its_process(
    processes: dict[int, int], tmp_path: Path
) -> None:
    def ask() -> None:
        for pid in processes.values():
            os.kill(pid, stacks.SIGNAL)

    waits, loops, stopped = collect_stacks(processes, 1, {1: (7, "training")}, tmp_path, ask)
    assert (waits.state, loops.state, stopped.state) == ("running", "running", "stopped")
    assert waits.stacks.startswith("Main thread:\n  File")
    assert waits.stacks.count("hread 0x") == 1, "the other thread has a separate stack"
    assert loops.innermost.startswith("busy (<string>:")
    assert (loops.iteration, loops.doing, loops.node_rank) == (7, "training", 1)
    assert not stopped.answered
    assert "no answer to the request" in stopped.text()
    assert "7 iterations done" in loops.text()


def test_the_stacks_of_an_earlier_process_are_not_those_of_a_rank_that_hangs_before_it_has_its_handler(
    processes: dict[int, int], tmp_path: Path
) -> None:
    [earlier] = collect_stacks(
        {0: processes[0]}, 0, {}, tmp_path, lambda: os.kill(processes[0], stacks.SIGNAL)
    )
    assert earlier.innermost.startswith("wait (")
    [later] = collect_stacks({0: os.getpid()}, 0, {}, tmp_path, lambda: None)
    assert (later.state, later.answered, later.innermost) == ("running", False, "")


def test_no_thread_of_a_rank_is_woken_up_while_its_stacks_are_read(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """CPython's faulthandler may crash where a thread runs whose frames it reads (python/cpython#116008)."""
    done: list[str] = []
    monkeypatch.setattr(stacks, "_answers", lambda *_: done.append("stacks are read") or {})
    monkeypatch.setattr(stacks, "_ask_for_collectives", lambda *_: done.append("its thread wakes up"))
    collect_stacks({0: os.getpid()}, 0, {}, tmp_path, lambda: done.append("stacks are requested"))
    assert done == ["stacks are requested", "stacks are read", "its thread wakes up"]


def test_stacks_that_were_read_while_faulthandler_wrote_them_have_the_frames_up_to_there() -> None:
    full = (
        'Thread 0x00007f0000000001 (most recent call first):\n  File "a.py", line 1 in waits\n\n'
        "Current thread 0x00007f0000000002 (most recent call first):\n"
        '  File "b.py", line 2 in reads\n  File "c.py", line 3 in trains\n'
    )
    frames = ["reads (b.py:2)", "trains (c.py:3)"]
    for end in range(len(full) + 1):
        written = full[:end]
        main_thread_first(written, "7f0000000002")
        found = main_frames(written, "7f0000000002")
        assert not written.endswith("\n") or found == frames[: len(found)]
    assert found == frames


def rank(number: int, iteration: int = 5, **fields: object) -> RankState:
    state = RankState(
        number, number // 2, 100 + number, iteration, "training", "running", "f (a.py:1)", False
    )
    return replace(state, **fields)  # type: ignore[arg-type]


def test_a_stopped_rank_is_the_stalled_one() -> None:
    stopped = rank(2, state="stopped", answered=False, innermost="")
    assert find_stalled_rank([rank(0, in_collective=True), rank(1), stopped, rank(3)]) == stopped
    assert describe_hang(stopped, 11.2, Path("/save/x")) == (
        "rank 2 is stopped after iteration 5, all others wait for it (11 s); stacks of all ranks: /save/x"
    )


def test_otherwise_it_is_the_one_outside_of_a_collective() -> None:
    waiting = [rank(each, in_collective=True) for each in (0, 1, 3)]
    assert find_stalled_rank([*waiting, rank(2, iteration=6)]) == rank(2, iteration=6)
    assert "rank 2 hangs in f (a.py:1) after iteration 6" in describe_hang(rank(2, iteration=6), 11, None)


def test_otherwise_it_is_the_one_with_fewer_iterations() -> None:
    assert find_stalled_rank([rank(0), rank(1), rank(2, iteration=4), rank(3)]) == rank(2, iteration=4)


def test_a_rank_that_trains_alone_is_the_stalled_one_though_it_waits_for_its_collectives() -> None:
    unfinished = Waiting("0", 3, "nccl:all_reduce", (0,))
    alone = rank(0, in_collective=True, collectives=Collectives({"0": 3}, (unfinished,)))
    assert find_stalled_rank([alone]) == alone
    assert describe_hang(alone, 16, None, [alone]) == "rank 0 hangs in f (a.py:1) after iteration 5 (16 s)"


def test_no_rank_is_named_if_the_stalled_one_is_unknown() -> None:
    waiting = [rank(each, in_collective=True) for each in range(4)]
    assert find_stalled_rank(waiting) is None
    assert describe_hang(None, 11, None) == "no rank has made progress for 11 s, the stalled rank is unknown"
