"""Slow ranks that pods report, in the status: named once, with pod and node, and kept when they are over."""

from typing import Any

import pytest
from megatron_contract.limits import MAX_STRAGGLERS
from megatron_operator.api.status import Straggler
from megatron_operator.api.times import timestamp
from megatron_operator.lifecycle.job_status import adopt_job, set_job_replaced
from megatron_operator.lifecycle.status_size import MAX_STATUS_BYTES, json_bytes, within_budget
from megatron_operator.lifecycle.suspension import end_suspended_pods

from tests.unit.lifecycle.reconciling import reconcile

SLOW = {"rank": 9, "nodeRank": 1, "iteration": 40, "slowdown": 1.84, "ownSeconds": 0.92, "peerSeconds": 0.5}


def place(run: Any) -> None:
    for index, pod in enumerate(run.pods):
        pod["spec"] = {"nodeName": f"gpu-{index}"}


def stragglers(run: Any) -> list[Straggler]:
    return reconcile(run).current.stragglers or []


def test_a_slow_rank_is_named_with_pod_and_node_in_one_event(run: Any) -> None:
    place(run)
    run.report(iteration=50, stragglers=[SLOW])
    status = reconcile(run)
    [found] = status.current.stragglers
    assert (found.rank, found.pod, found.node, found.iteration) == (9, "worker-0", "gpu-1", 40)
    assert (found.since, found.until) == (timestamp(run.now), None)
    [event] = status.events
    assert (event.reason, event.warning) == ("SlowRank", True)
    assert event.message == (
        "rank 9 (worker-0 on gpu-1): 1.84 times as long as the peers for the own work, "
        "0.92 s of an iteration against 0.5 s; all others wait"
    )


def test_other_figures_of_a_slow_rank_change_nothing(run: Any) -> None:
    run.report(iteration=50, stragglers=[SLOW])
    reconcile(run)
    run.report(iteration=50, stragglers=[SLOW | {"slowdown": 1.9}])
    assert not reconcile(run).changed()


def test_the_slow_ranks_of_a_node_share_an_event(run: Any) -> None:
    ranks = [SLOW | {"rank": rank} for rank in (11, 8, 9)]
    run.report(iteration=50, stragglers=[*ranks, SLOW | {"rank": 1, "nodeRank": 0}])
    assert [event.message.partition(" (")[0] for event in reconcile(run).events] == [
        "ranks 8, 9, 11",
        "rank 1",
    ]


def test_a_rank_that_is_fast_again_stays_in_the_history_and_is_named_again(run: Any) -> None:
    run.report(iteration=50, stragglers=[SLOW])
    reconcile(run)
    run.report(iteration=80)
    over = run.now
    assert [each.until for each in stragglers(run)] == [timestamp(over)]
    run.report(iteration=90, stragglers=[SLOW | {"iteration": 85}])
    status = reconcile(run)
    assert [each.until for each in status.current.stragglers] == [timestamp(over), None]
    assert len(status.events) == 1


def test_no_rank_is_slow_once_no_pod_runs(run: Any) -> None:
    run.report(iteration=50, stragglers=[SLOW])
    reconcile(run)
    run.pods = []
    assert [each.until for each in stragglers(run)] == [timestamp(run.now)]


def test_no_rank_is_slow_once_the_job_is_done(run: Any) -> None:
    run.report(iteration=200, stragglers=[SLOW])
    reconcile(run)
    run.job["status"] = {"conditions": [{"type": "Succeeded", "status": "True"}]}
    assert [each.until for each in stragglers(run)] == [timestamp(run.now)]


@pytest.mark.parametrize(
    "state",
    [
        {"status": {"conditions": [{"type": "Failed", "status": "True"}]}},
        {"spec": {"runPolicy": {"suspend": True}}},
    ],
)
def test_no_rank_is_slow_once_the_job_is_not_active_though_its_pods_report_nothing(
    run: Any, state: dict[str, Any]
) -> None:
    run.report(iteration=50, stragglers=[SLOW])
    reconcile(run)
    run.reading = None
    run.job |= state
    assert [each.until for each in stragglers(run)] == [timestamp(run.now)]


def test_a_rank_stays_slow_while_the_pods_of_a_job_that_runs_report_nothing(run: Any) -> None:
    run.report(iteration=50, stragglers=[SLOW])
    reconcile(run)
    run.reading = None
    assert [each.until for each in stragglers(run)] == [None]


def test_no_rank_is_slow_once_the_run_is_suspended(run: Any) -> None:
    run.report(iteration=50, stragglers=[SLOW])
    reconcile(run)
    status = run.status()
    end_suspended_pods(status, run.snapshot())
    assert [each.until for each in status.current.stragglers] == [timestamp(run.now)]


def test_no_rank_is_slow_once_the_job_is_replaced(run: Any) -> None:
    run.report(iteration=50, stragglers=[SLOW])
    reconcile(run)
    status = run.status()
    set_job_replaced(status)
    assert [each.until for each in status.current.stragglers] == [timestamp(run.now)]


@pytest.mark.parametrize("outgoing", [None, "run"])
def test_no_rank_is_slow_in_the_next_job(run: Any, outgoing: str | None) -> None:
    run.report(iteration=50, stragglers=[SLOW])
    status = reconcile(run)
    status.set_recovery(outgoing_job=outgoing)
    run.job["metadata"]["uid"] = "another"
    adopt_job(status, run.job)
    assert [each.until for each in status.current.stragglers] == [timestamp(run.now)]


def test_the_status_keeps_the_last_twenty(run: Any) -> None:
    for rank in range(30):
        run.report(iteration=50 + rank, stragglers=[SLOW | {"rank": rank}])
        reconcile(run)
    assert [each.rank for each in stragglers(run)] == list(range(10, 30))


def test_the_history_loses_ranks_that_are_fast_again_before_those_that_are_slow(run: Any) -> None:
    still = [SLOW | {"rank": rank} for rank in range(MAX_STRAGGLERS - 1)]
    for rank in range(100, 110):
        run.report(iteration=50, stragglers=[*still, SLOW | {"rank": rank}])
        reconcile(run)
    kept = stragglers(run)
    assert [each.rank for each in kept if each.until is None] == [*range(MAX_STRAGGLERS - 1), 109]
    assert [each.rank for each in kept if each.until is not None] == [105, 106, 107, 108]
    run.report(iteration=50, stragglers=[*still, SLOW | {"rank": 109}])
    status = reconcile(run)
    assert (status.events, status.changed()) == ([], False)


@pytest.mark.parametrize(("bytes_over", "last"), [(0, "stragglers"), (MAX_STATUS_BYTES, "everything")])
def test_a_status_that_is_too_large_keeps_the_ranks_that_are_slow(
    run: Any, bytes_over: int, last: str
) -> None:
    run.report(iteration=50, stragglers=[SLOW | {"rank": rank} for rank in range(100, 104)])
    reconcile(run)
    run.report(iteration=50, stragglers=[SLOW | {"rank": rank} for rank in range(MAX_STRAGGLERS)])
    reconcile(run)
    status = run.body["status"]
    filler = "x" * (MAX_STATUS_BYTES - json_bytes(status) + bytes_over)
    reduced = within_budget(status | {"prepared": filler})
    assert reduced["omitted"][-1] == last
    assert [each["rank"] for each in reduced["stragglers"]] == list(range(MAX_STRAGGLERS))
    run.body["status"] = reduced
    assert reconcile(run).events == []
