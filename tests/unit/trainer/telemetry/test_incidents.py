"""How the failure reports of several pods become one."""

import json
from dataclasses import replace

import pytest
from megatron_trainer.telemetry.incidents import LONGEST_CAUSE, FailureKind, FailureReport, merge_reports

KILLED = FailureReport(FailureKind.RANK, "rank 3 was killed by SIGKILL", 1, 3, detected_at=20.0)
LOST_A_PEER = FailureReport(FailureKind.POD, "rank 0: Connection closed by peer", detected_at=19.0)
REPLACED = FailureReport(FailureKind.POD, "node 1 was replaced", 1, detected_at=30.0)


@pytest.mark.parametrize("order", [1, -1])
def test_an_indirect_report_adds_its_time_but_not_its_cause(order: int) -> None:
    first, second = [KILLED, LOST_A_PEER][::order]
    merged = merge_reports(first, second)
    assert (merged.kind, merged.cause, merged.node_rank, merged.rank) == (
        FailureKind.RANK,
        KILLED.cause,
        1,
        3,
    )
    assert merged.detected_at == 19.0


def test_a_pod_that_ended_after_its_ranks_has_both_causes_in_order() -> None:
    merged = merge_reports(KILLED, REPLACED)
    assert (merged.kind, merged.node_rank, merged.rank) == (FailureKind.POD, 1, 3)
    assert merged.cause == "rank 3 was killed by SIGKILL; node 1 was replaced"
    assert merge_reports(merged, REPLACED) == merged


def test_the_causes_of_many_pods_stay_short() -> None:
    merged = KILLED
    for rank in range(2048):
        merged = merge_reports(merged, replace(KILLED, cause=f"rank {rank} met an error", node_rank=rank))
    assert merged.cause.startswith("rank 3 was killed by SIGKILL; rank 0 met an error; ")
    assert merged.cause.endswith("; and others")
    assert len(merged.cause) < LONGEST_CAUSE + 20


def test_a_report_survives_json() -> None:
    assert FailureReport.from_json(json.loads(json.dumps(KILLED.to_json()))) == KILLED


@pytest.mark.parametrize(
    "change",
    [{"cause": 3}, {"rank": "3"}, {"failed_iteration": 1.5}, {"detected_at": None}, {"unreadable": True}],
)
def test_a_report_with_a_value_of_another_type_is_refused(change: dict[str, object]) -> None:
    with pytest.raises(TypeError, match="wrong type"):
        FailureReport.from_json(KILLED.to_json() | change)
