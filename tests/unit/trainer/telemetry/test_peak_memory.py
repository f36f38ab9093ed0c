"""The most memory that a pod's ranks have reserved, through the gang's store."""

from typing import Any

from megatron_contract.progress import ReportedMemory
from megatron_trainer.telemetry import peak_memory
from megatron_trainer.telemetry.peak_memory import PeakMemory


def step(rank: int, reserved: int | None, stage: int = 0, generation: int = 1) -> dict[str, Any]:
    event = {"event": "iteration", "rank": rank, "generation": generation, "iteration": 8}
    return event | {"stage": stage, "reservedBytes": reserved}


def pod(*events: dict[str, Any]) -> str:
    memory = PeakMemory()
    for event in events:
        memory.apply(event)
    return memory.dump()


def test_the_fullest_rank_of_each_stage_is_found_over_all_pods() -> None:
    first = pod(step(0, 50), step(1, 70), step(2, 40, stage=1))
    second = pod(step(4, 60), step(5, 45, stage=1))
    assert peak_memory.load([first, second], generation=1) == (
        ReportedMemory(1, 0, 70),
        ReportedMemory(5, 1, 45),
    )


def test_a_peak_stays_while_a_rank_needs_less() -> None:
    assert pod(step(0, 70), step(0, 50)) == pod(step(0, 70)), "nothing new is shared"


def test_ranks_that_were_restarted_have_a_new_peak() -> None:
    shared = pod(step(0, 70), step(0, 50, generation=2), step(0, 90))
    assert peak_memory.load([shared], generation=2) == (ReportedMemory(0, 0, 50),)
    assert peak_memory.load([shared], generation=1) == ()


def test_ranks_on_cpus_report_none() -> None:
    shared = pod(step(0, None), {"event": "phase", "phase": "saving", "generation": 1, "rank": 0})
    assert peak_memory.load([shared], generation=0) == ()
