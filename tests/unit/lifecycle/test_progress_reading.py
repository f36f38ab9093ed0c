"""One progress report from the reports of several pods."""

from typing import Any

import pytest
from megatron_contract.progress import ProgressReport
from megatron_operator.lifecycle.progress_reading import merge_reports


def report(**fields: Any) -> ProgressReport:
    return ProgressReport.parse({"schema": 1, "phase": "training", **fields})


def test_the_first_pods_report_counts_and_the_others_complete_it() -> None:
    first = report(nodeRank=0, iteration=7, lmLoss=None, generation=2)
    last = report(phase="loading", nodeRank=3, iteration=8, lmLoss=2.5, generation=2)
    merged = merge_reports({0: first, 3: last})
    assert (merged.phase, merged.node_rank) == ("training", 0)
    assert merged.lm_loss == 2.5
    assert merged.iteration == 8


def test_the_loss_is_that_of_the_iteration() -> None:
    """Pods are asked one after the other, and an iteration may end between the two."""
    first = report(nodeRank=0, iteration=7, lmLoss=2.75, learningRate=0.1, generation=2)
    second = report(nodeRank=1, iteration=8, lmLoss=2.5, learningRate=0.2, generation=2)
    merged = merge_reports({0: first, 1: second})
    assert (merged.iteration, merged.lm_loss, merged.learning_rate) == (8, 2.5, 0.2)
    merged = merge_reports({0: first, 1: report(nodeRank=1, iteration=8, generation=2)})
    assert (merged.iteration, merged.lm_loss) == (8, None)


def test_without_the_first_pod_the_next_ones_report_counts() -> None:
    merged = merge_reports({2: report(phase="rendezvous", iteration=None)})
    assert (merged.phase, merged.iteration) == ("rendezvous", None)


def test_a_new_pod_without_incidents_does_not_hide_those_of_others() -> None:
    old = {"generation": 2, "detectedAt": 1.0, "metAt": None}
    newer = {"generation": 2, "detectedAt": 1.0, "metAt": 5.0}
    expected = report(incidents=[newer]).incidents
    for incidents in ([], [old]):
        merged = merge_reports({0: report(incidents=incidents), 1: report(incidents=[newer])})
        assert merged.incidents == expected


def test_a_new_pod_without_evaluations_does_not_hide_those_of_others() -> None:
    known = report(evaluations=[{"iteration": 10, "loss": 2.5}])
    assert merge_reports({0: report(), 1: known}).evaluations == known.evaluations
    assert merge_reports({0: report(), 1: report()}).evaluations == ()


def test_the_warnings_of_all_pods_are_merged_without_duplicates() -> None:
    low, slow = {"reason": "CheckpointVolumeLow"}, {"reason": "SlowRank"}
    merged = merge_reports({0: report(warnings=[low]), 1: report(warnings=[low, slow])})
    assert [each.reason for each in merged.warnings] == ["CheckpointVolumeLow", "SlowRank"]


@pytest.mark.parametrize("asked_first", [0, 1])
def test_a_pod_that_was_asked_before_a_restart_adds_no_iteration_to_the_new_generation(
    asked_first: int,
) -> None:
    """Nor has the earlier generation reached the iteration of the new one."""
    before = report(generation=1, iteration=60)
    after = report(generation=2, iteration=52, resumedFrom=50)
    merged = merge_reports({asked_first: before, 1 - asked_first: after})
    assert (merged.generation, merged.iteration) == (2, 52)


def test_a_pod_that_has_not_met_its_peers_yet_takes_nothing_from_them() -> None:
    starting = report(phase="starting", generation=None, iteration=None)
    merged = merge_reports({0: starting, 1: report(generation=1, iteration=60)})
    assert (merged.phase, merged.generation, merged.iteration) == ("starting", 1, 60)
