"""Which of the ends of pods in one place of the gang explains why it has a new pod."""

from typing import Any

import pytest
from megatron_operator.controller.pod_end_cache import PodEndCache
from megatron_operator.lifecycle.pod_termination import PodEnd
from megatron_operator.lifecycle.status_builder import RecipeKey

KEY = RecipeKey("default", "run")
FIRST, COUNTED, LATER = (f"2026-01-01T00:0{minute}:00Z" for minute in range(3))
"""Creation times: of a pod that was replaced, of that which was counted last, of one that followed."""
RECORDED = {"run-worker-0": PodEnd("worker-0: in the status (exit code 137)", 137)}


def ended(created: str, code: int | None, *, deleting: bool = False) -> dict[str, Any]:
    metadata: dict[str, Any] = {
        "name": f"run-worker-0-0-{created}",
        "namespace": "default",
        "uid": created,
        "creationTimestamp": created,
        "labels": {
            "jobset.sigs.k8s.io/jobset-name": "run",
            "jobset.sigs.k8s.io/replicatedjob-name": "worker",
            "jobset.sigs.k8s.io/job-index": "0",
        },
    }
    if deleting:
        metadata["deletionTimestamp"] = "2026-01-01T01:00:00Z"
    terminated = {"exitCode": code, "message": created, "finishedAt": "2026-01-01T01:00:00Z"}
    states = [] if code is None else [{"name": "pytorch", "state": {"terminated": terminated}}]
    return {"metadata": metadata, "status": {"phase": "Failed", "containerStatuses": states}}


def cause(cache: PodEndCache, recorded: dict[str, PodEnd], pods_as_of: str | None = COUNTED) -> str | None:
    end = cache.merged(KEY, recorded, pods_as_of).get("run-worker-0")
    return None if end is None else end.cause


@pytest.mark.parametrize("counted_first", [True, False])
def test_the_end_of_the_pod_that_was_counted_hides_that_of_a_later_one(counted_first: bool) -> None:
    cache = PodEndCache()
    pods = [ended(COUNTED, 138), ended(LATER, 143, deleting=True)]
    for pod in pods if counted_first else reversed(pods):
        cache.add(KEY, pod)
    assert cause(cache, {}) == f"worker-0: {COUNTED} (exit code 138)"


def test_of_counted_pods_the_last_one_counts() -> None:
    """A Job keeps the failed pods that it replaced itself."""
    cache = PodEndCache()
    for pod in (ended(COUNTED, 143, deleting=True), ended(FIRST, 138)):
        cache.add(KEY, pod)
    assert cause(cache, {}) == f"worker-0: {COUNTED} (exit code 143)"


@pytest.mark.parametrize("pods_as_of", [None, COUNTED])
def test_a_place_whose_pods_fail_again_and_again_keeps_the_ends_that_can_be_the_cause(
    pods_as_of: str | None,
) -> None:
    cache = PodEndCache()
    cache.add(KEY, ended(COUNTED, 138))
    for number in range(100):
        created = f"2026-01-02T00:{number // 60:02}:{number % 60:02}Z"
        cache.add(KEY, ended(created, 1))
        found = cause(cache, {}, pods_as_of)
        assert found == (
            f"worker-0: {COUNTED} (exit code 138)" if pods_as_of else f"worker-0: {created} (exit code 1)"
        )
    assert len(cache._ends[KEY]["run-worker-0"]) <= 2


def test_an_end_in_the_status_hides_that_of_a_later_pod_and_not_what_is_known_of_the_counted_one() -> None:
    cache = PodEndCache()
    cache.add(KEY, ended(LATER, 143, deleting=True))
    assert cause(cache, RECORDED) == RECORDED["run-worker-0"].cause
    cache.add(KEY, ended(COUNTED, 138))
    assert cause(cache, RECORDED) == f"worker-0: {COUNTED} (exit code 138)"


def test_the_end_of_a_later_pod_counts_where_no_other_is_known() -> None:
    cache = PodEndCache()
    cache.add(KEY, ended(LATER, 137))
    assert cause(cache, {}) == f"worker-0: {LATER} (exit code 137)"


def test_before_a_gang_was_counted_the_last_pod_counts() -> None:
    cache = PodEndCache()
    for pod in (ended(LATER, 137), ended(FIRST, 138)):
        cache.add(KEY, pod)
    assert cause(cache, {}, None) == f"worker-0: {LATER} (exit code 137)"


def test_a_deletion_after_the_end_adds_nothing() -> None:
    cache = PodEndCache()
    cache.add(KEY, ended(COUNTED, 138))
    cache.add(KEY, ended(COUNTED, None, deleting=True))
    assert cause(cache, {}) == f"worker-0: {COUNTED} (exit code 138)"


def test_what_was_dropped_is_not_known() -> None:
    cache = PodEndCache()
    cache.add(KEY, ended(COUNTED, 138))
    cache.drop(KEY)
    assert cause(cache, {}) is None
