"""Which rank the others wait for: by what each has enqueued, and in real process groups of gloo."""

import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from megatron_trainer.health import stacks
from megatron_trainer.health.collectives import Collectives, Waiting, awaited_ranks, common_operation
from megatron_trainer.health.stacks import RankState, collect_stacks, describe_hang, find_stalled_rank
from megatron_trainer.telemetry.reporter import STACKS_ENV

from testkit.ports import free_port

TP, DP = "tp", "dp"


def waits(group: str, number: int, *ranks: int) -> Waiting:
    return Waiting(group, number, "nccl:all_reduce", ranks)


def done(**enqueued: int) -> Collectives:
    return Collectives(enqueued, ())


def test_a_rank_that_has_not_enqueued_what_others_wait_for_is_named() -> None:
    ranks = {0: Collectives({DP: 5}, (waits(DP, 5, 0, 1, 2),)), 1: done(dp=4)}
    ranks[2] = Collectives({DP: 5}, (waits(DP, 5, 0, 1, 2),))
    assert awaited_ranks(ranks) == [1]


def test_a_rank_that_waits_itself_is_not_named_although_others_wait_for_it() -> None:
    """Rank 0 waits for rank 1, which waits for rank 2 in another group."""
    ranks = {
        0: Collectives({DP: 5}, (waits(DP, 5, 0, 1),)),
        1: Collectives({DP: 4, TP: 9}, (waits(TP, 9, 1, 2),)),
        2: done(tp=8),
    }
    assert awaited_ranks(ranks) == [2]


def test_work_enqueued_ahead_does_not_hide_the_first_collective_that_lacks_a_rank() -> None:
    """On GPUs a rank enqueues several collectives before the first one completes."""
    ahead = tuple(waits(DP, number, 0, 1) for number in (5, 6, 7))
    assert awaited_ranks({0: Collectives({DP: 7}, ahead), 1: done(dp=4)}) == [1]


def test_nobody_is_named_if_all_have_enqueued_the_same() -> None:
    ranks = {rank: Collectives({DP: 5}, (waits(DP, 5, 0, 1),)) for rank in (0, 1)}
    assert awaited_ranks(ranks) == []
    assert common_operation(ranks) == "nccl:all_reduce"


def test_nobody_is_named_if_ranks_wait_for_each_other() -> None:
    """Two groups in another order: a bug of the program, and no rank's hang."""
    ranks = {
        0: Collectives({DP: 5, TP: 1}, (waits(DP, 5, 0, 1),)),
        1: Collectives({DP: 4, TP: 2}, (waits(TP, 2, 0, 1),)),
    }
    assert awaited_ranks(ranks) == []
    assert common_operation(ranks) is None


def test_the_peer_of_a_receive_is_awaited() -> None:
    receive = Waiting("pp", 0, "nccl:recv 1<-0", (), peer=0)
    assert awaited_ranks({0: done(pp=3), 1: Collectives({"pp": 3}, (receive,))}) == [0]


def test_a_rank_that_did_not_report_is_not_named() -> None:
    assert awaited_ranks({0: Collectives({DP: 5}, (waits(DP, 5, 0, 1),))}) == []


RANKS = st.one_of(
    st.lists(st.integers(0, 99), unique=True).map(sorted),
    st.tuples(st.integers(0, 9), st.integers(1, 9), st.integers(1, 50)).map(
        lambda each: range(each[0], each[0] + each[1] * each[2], each[1])
    ),
).map(tuple)


@given(RANKS)
def test_any_group_survives_serialization(ranks: tuple[int, ...]) -> None:
    known = Collectives({DP: 5}, (waits(DP, 5, *ranks), Waiting("pp", 0, "nccl:send 0->1", (), 1)))
    assert Collectives.from_json(known.to_json()) == known


def test_a_large_group_takes_little_space() -> None:
    known = Collectives({DP: 5}, (waits(DP, 5, *range(3, 16384, 8)),))
    assert len(str(known.to_json())) < 200


START = """
import sys, threading
import torch
import torch.distributed as dist
from megatron_trainer.health.stacks import register_stack_dump
from megatron_trainer.worker.collective_recorder import record_collectives
from megatron_trainer.worker.step_phases import StepPhases

rank = int(sys.argv[1])
register_stack_dump(rank)
record_collectives(rank, None)
StepPhases().install()
dist.init_process_group("gloo", init_method=sys.argv[2], rank=rank, world_size=int(sys.argv[3]))
groups = [dist.new_group(ranks) for ranks in ([0, 1], [1, 2], [2, 3])[: int(sys.argv[3]) - 1]]
tensor = torch.ones(1)
dist.all_reduce(tensor)
print("ready", flush=True)
"""
CHAIN = """
if rank == 0:
    dist.all_reduce(tensor)
elif rank == 1:
    dist.all_reduce(tensor, group=groups[1])
else:
    threading.Event().wait()
"""
PIPELINE = """
if rank == 0:
    dist.all_reduce(tensor, group=groups[0])
elif rank == 1:
    dist.irecv(tensor, 3).wait()
elif rank == 2:
    dist.all_reduce(tensor, group=groups[2])
else:
    threading.Event().wait()
"""
"""Two stages of tensor parallelism 2. The first stage's rank 0 has received what rank 1 still waits for."""


@pytest.fixture
def hanging(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[dict[int, int]]:
    """Ranks that run a program, of which the last has stopped to take part. By rank: process ids."""
    program, size = request.param
    port = free_port()
    started = []
    for rank in range(size):
        arguments = [str(rank), f"tcp://127.0.0.1:{port}", str(size)]
        environment = os.environ | {STACKS_ENV: str(tmp_path)}
        command = [sys.executable, "-c", START + program, *arguments]
        started.append(subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True))
    for process in started:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
    yield {rank: process.pid for rank, process in enumerate(started)}
    for process in started:
        process.kill()
        process.wait()


def collected(processes: dict[int, int], folder: Path) -> list[RankState]:
    """The states once all ranks but the last are inside their collectives."""

    def ask() -> None:
        for pid in processes.values():
            os.kill(pid, stacks.SIGNAL)

    while True:
        states = collect_stacks(processes, 0, {}, folder, ask)
        if all(each.in_collective for each in states[:-1]):
            return [RankState.from_brief(state.brief()) for state in states]


def waiting(state: RankState) -> tuple[Waiting, ...]:
    return state.collectives.waiting if state.collectives else ()


@pytest.mark.parametrize("hanging", [(CHAIN, 3)], indirect=True)
def test_the_stalled_rank_of_a_chain_is_found_in_real_process_groups(
    hanging: dict[int, int], tmp_path: Path
) -> None:
    states = collected(hanging, tmp_path)
    stalled = find_stalled_rank(states)
    assert stalled is not None
    assert stalled.rank == 2
    assert {each.operation for state in states for each in waiting(state)} == {"gloo:all_reduce"}


@pytest.mark.parametrize("hanging", [(PIPELINE, 4)], indirect=True)
def test_a_rank_that_waits_for_a_receive_of_gloo_is_not_the_stalled_one(
    hanging: dict[int, int], tmp_path: Path
) -> None:
    """The recorder of gloo has no sends and receives: rank 1 seems to wait for nobody, and rank 0 for it."""
    states = collected(hanging, tmp_path)
    assert not waiting(states[1])
    stalled = find_stalled_rank(states)
    assert stalled is not None
    assert stalled.rank == 3
    assert "measured_collective" not in states[1].innermost


def test_no_rank_is_named_if_the_awaited_one_may_wait_in_a_receive_that_gloo_does_not_record() -> None:
    """Ranks 2 and 3 have enqueued what a device does not complete, so that rank 1 receives nothing from 3."""
    first, second = Waiting(TP, 9, "gloo:all_reduce", (0, 1)), Waiting("tp-1", 9, "gloo:all_reduce", (2, 3))
    collectives = [Collectives({TP: 9}, (first,)), done(tp=8), *[Collectives({"tp-1": 9}, (second,))] * 2]
    states = [
        RankState(number, number // 2, 7, 5, "training", "running", "f (a.py:1)", True, collectives=each)
        for number, each in enumerate(collectives)
    ]
    assert find_stalled_rank(states) is None
    alone = replace(states[3], in_collective=False, collectives=done())
    assert find_stalled_rank([*states[:3], alone]) == alone


def test_a_hang_that_no_rank_causes_names_the_operation() -> None:
    known = Collectives({DP: 5}, (waits(DP, 5, 0, 1),))
    states = [RankState(rank, 0, 7, 5, "training", "running", "item (a.py:1)", False) for rank in (0, 1)]
    states = [RankState.from_brief(state.brief() | {"collectives": known.to_json()}) for state in states]
    assert find_stalled_rank(states) is None
    assert "all ranks of a group are in nccl:all_reduce" in describe_hang(None, 80, None, states)
