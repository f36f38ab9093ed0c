"""The measured steps of a pod's ranks, through the gang's store."""

from random import Random
from typing import Any

import pytest
from megatron_trainer.rendezvous.store_channel import LONGEST_MESSAGE, encode
from megatron_trainer.telemetry import step_times
from megatron_trainer.telemetry.step_times import KEPT_STEPS, StepTimes
from megatron_trainer.telemetry.stragglers import SLOW_SECONDS, WINDOW, StragglerDetector


def step(iteration: int, rank: int = 4, generation: int = 1, **fields: Any) -> dict[str, Any]:
    event = {"event": "iteration", "rank": rank, "generation": generation, "iteration": iteration}
    return event | {"stepSeconds": 1.0, "waitSeconds": 0.25, "stage": 1, "settled": True} | fields


def test_the_own_time_of_a_step_is_what_its_waits_leave() -> None:
    times = StepTimes(node_rank=2)
    times.apply(step(8))
    times.apply(step(8, rank=5, waitSeconds=2.0))
    [first, second] = step_times.load([times.dump()], generation=1)
    assert (first.rank, first.node_rank, first.stage, first.steps) == (4, 2, 1, {8: (0.75, 1.0)})
    assert second.steps == {8: (0.0, 1.0)}, "clocks of device and host differ"


def test_steps_that_were_not_measured_and_those_of_a_process_that_warms_up_do_not_count() -> None:
    times = StepTimes(node_rank=0)
    for event in (step(1, waitSeconds=None), step(4, settled=False), {"event": "phase", "phase": "saving"}):
        times.apply(event)
    assert step_times.load([times.dump()], generation=0) == []


def test_the_newest_steps_of_the_newest_generation_are_kept() -> None:
    times = StepTimes(node_rank=0)
    times.apply(step(400))
    for iteration in range(100):
        times.apply(step(iteration, generation=2))
    times.apply(step(404))
    [rank] = step_times.load([times.dump()], generation=2)
    assert list(rank.steps) == list(range(100 - KEPT_STEPS, 100))
    assert step_times.load([times.dump()], generation=1) == [], "the ranks have been restarted"


def test_pods_that_share_their_steps_one_apart_still_have_a_verdict() -> None:
    healthy, slow = StepTimes(node_rank=0), StepTimes(node_rank=1)
    detector = StragglerDetector()
    for iteration in range(100):
        healthy.apply(step(iteration, rank=0, waitSeconds=0.5))
        shared = [healthy.dump(), slow.dump()]
        if iteration >= WINDOW:
            found = detector.update(step_times.load(shared, generation=1), iteration * SLOW_SECONDS)
            assert [each.rank for each in found] == [1] * (iteration >= WINDOW + WINDOW // 2), (
                "the slow pod is a step behind"
            )
        slow.apply(step(iteration, rank=1, waitSeconds=0.1))


LARGE_GANG = 2048
"""Pods of 8 ranks."""


def test_the_steps_of_a_large_gang_are_shorter_than_a_message_to_its_store() -> None:
    """Node 0 reads them every few seconds; at 17 digits each they were longer from 1,300 pods on."""
    random = Random(3)
    times = StepTimes(node_rank=LARGE_GANG - 1)
    sent = {}
    for iteration in range(10**6, 10**6 + 4 * 2 * KEPT_STEPS, 4):
        for rank in range(8 * LARGE_GANG - 8, 8 * LARGE_GANG):
            seconds = random.uniform(20, 30)
            waited = random.uniform(0, 20)
            times.apply(step(iteration, rank, stepSeconds=seconds, waitSeconds=waited))
            sent[rank, iteration] = seconds - waited, seconds
    text = times.dump()
    answer = encode({"id": 1, "value": [dict.fromkeys(map(str, range(LARGE_GANG)), text), False]})
    assert len(answer) < LONGEST_MESSAGE
    ranks = step_times.load([text], generation=1)
    assert [len(each.steps) for each in ranks] == [KEPT_STEPS] * 8
    for each in ranks:
        for iteration, measured in each.steps.items():
            assert measured == pytest.approx(sent[each.rank, iteration], abs=1e-4)
