"""Which part of which log the page shows of the pod that failed first."""

from pathlib import Path
from typing import Any

import pytest
from megatron_operator.sdk import AsyncConnection
from megatron_operator.ui.failure_log import LINES
from megatron_operator.ui.runs import RunLogs, WatchedRuns

from testkit.api_stand_in import ApiStandIn
from testkit.example_runs import training_run
from tests.unit.cli.test_first_failure import ended, pod

INCIDENT, EARLY, LATE = "2026-01-02T03:11:09Z", "2026-01-01T09:01:00Z", "2026-01-02T03:12:00Z"
TRACEBACK = "2026-01-02T03:11:08Z [rank25]: Traceback (most recent call last): it broke"
STACK = '2026-01-02T03:11:12Z   File "megatron/core/pipeline_parallel/schedules.py", line 712 in forward_step'


def iterations(time: str, first: int, last: int) -> list[str]:
    return [f"{time} iteration {number:8d}/ 100000 | lm loss: 2.5 |" for number in range(first, last)]


async def logs_of(
    api: ApiStandIn, kubeconfig: Path, log: list[str], *, previous: bool = False, **worker: Any
) -> RunLogs:
    """What the page reads of a run whose incident was in run-worker-2, which wrote `log`."""
    recipe = training_run("run")
    recovery = recipe["status"]["recovery"]
    recovery["lastIncident"] = recovery["history"][1]
    api.pods = [pod("master", born=EARLY), pod("worker", 2, **({"born": EARLY} | worker))]
    api.logs = {("run-worker-2", False): "now", ("run-master-0", False): "now"}
    api.logs["run-worker-2", previous] = "\n".join(log)
    async with AsyncConnection(kubeconfig=kubeconfig) as connection:
        return await WatchedRuns(connection, ["research"]).logs(recipe)


async def test_a_rank_that_was_restarted_in_its_pod_shows_its_failure_and_not_what_trains_since(
    api: ApiStandIn, kubeconfig: Path
) -> None:
    before = iterations("2026-01-02T03:11:05Z", 12_000, 12_934)
    since = iterations("2026-01-02T03:13:00Z", 12_901, 13_100)
    found = (await logs_of(api, kubeconfig, [*before, TRACEBACK, STACK, *since])).failure
    assert found is not None
    assert found.text is not None
    assert found.text.splitlines()[-2:] == [TRACEBACK, STACK]
    assert len(found.text.splitlines()) == LINES + 1
    assert found.part == "Its log around 2026-01-02T03:11:09Z."
    assert found.why == "uncorrectable ECC error on GPU 1 (2026-01-02T03:11:09Z)"
    [query] = [query for _, _, query in api.requests if "sinceTime" in query]
    assert query["sinceTime"] == "2026-01-02T03:10:09Z"
    assert int(query["limitBytes"]) <= 16 << 20


async def test_much_that_follows_a_failure_is_cut(api: ApiStandIn, kubeconfig: Path) -> None:
    noise = iterations("2026-01-02T03:11:20Z", 1, 1000)
    found = (await logs_of(api, kubeconfig, [TRACEBACK, *noise])).failure
    assert found is not None
    assert found.text is not None
    assert found.text.splitlines() == [TRACEBACK, *noise[:LINES]]


async def test_a_pod_that_was_replaced_shows_the_cause_and_no_log_of_another_pod(
    api: ApiStandIn, kubeconfig: Path
) -> None:
    found = (await logs_of(api, kubeconfig, iterations(LATE, 1, 200), born=LATE)).failure
    assert found is not None
    assert found.why.startswith("uncorrectable ECC error on GPU 1")
    assert found.why.endswith("that pod is gone, this one replaced it")
    assert found.text is None
    read = [path for _, path, _ in api.requests if path.endswith("/log")]
    assert read == ["/api/v1/namespaces/research/pods/run-worker-2/log"], "for the charts alone"


async def test_a_container_that_restarted_shows_the_end_of_its_previous_log(
    api: ApiStandIn, kubeconfig: Path
) -> None:
    log = [*iterations("2026-01-02T03:00:00Z", 1, 200), TRACEBACK]
    running = {"running": {"startedAt": INCIDENT}}
    found = (
        await logs_of(api, kubeconfig, log, previous=True, state=running, lastState=ended(INCIDENT))
    ).failure
    assert found is not None
    assert found.part == "The end of its log."
    assert found.text is not None
    assert found.text.splitlines() == [*log[-LINES:]]


async def test_a_log_that_the_node_has_rotated_away_is_not_replaced_by_newer_lines(
    api: ApiStandIn, kubeconfig: Path
) -> None:
    found = (await logs_of(api, kubeconfig, iterations("2026-01-02T05:00:00Z", 1, 200))).failure
    assert found is not None
    assert (found.text, found.part) == (None, "Its node does not have the log of that time any more.")


async def test_a_previous_log_that_cannot_be_read_does_not_cost_the_charts(
    api: ApiStandIn, kubeconfig: Path
) -> None:
    running = {"running": {"startedAt": INCIDENT}}
    log = iterations(LATE, 1, 20)
    api.lost_logs = {("run-worker-2", True)}
    found = await logs_of(api, kubeconfig, log, state=running, lastState=ended(INCIDENT))
    assert found.problem is None
    assert found.failure is not None
    assert found.failure.part.startswith("Its log cannot be read: 400")


async def failed_master(api: ApiStandIn, kubeconfig: Path) -> RunLogs:
    """What the page reads of a run whose master ended with an error, and whose other pod is worker-2."""
    recipe = training_run("run")
    recipe["status"]["recovery"] = {"restarts": 0}
    api.pods = [pod("master", born=EARLY, state=ended(INCIDENT)), pod("worker", 2, born=EARLY)]
    api.logs = {("run-worker-2", False): iterations(LATE, 7, 8)[0], ("run-master-0", False): TRACEBACK}
    async with AsyncConnection(kubeconfig=kubeconfig) as connection:
        return await WatchedRuns(connection, ["research"]).logs(recipe)


async def test_pods_of_a_deleted_run_of_the_name_are_not_read(api: ApiStandIn, kubeconfig: Path) -> None:
    before, now = training_run("run"), training_run("run")
    now["metadata"] |= {"uid": "another", "creationTimestamp": LATE}
    api.pods = [pod("master", born=EARLY, state=ended(INCIDENT))]
    api.logs = {("run-master-0", False): TRACEBACK}
    async with AsyncConnection(kubeconfig=kubeconfig) as connection:
        runs = WatchedRuns(connection, ["research"])
        assert (await runs.logs(before)).failure is not None
        assert (await runs.logs(now)).problem == "the run has no pods, whose logs could be read"


async def test_a_last_pod_that_never_started_does_not_hide_the_pod_that_failed(
    api: ApiStandIn, kubeconfig: Path
) -> None:
    api.lost_logs = {("run-worker-2", False)}
    found = await failed_master(api, kubeconfig)
    assert found.problem is not None
    assert found.problem.startswith("the log cannot be read: 400 BadRequest")
    assert found.failure is not None
    assert (found.failure.pod, found.failure.text) == ("run-master-0", TRACEBACK)


@pytest.mark.parametrize(
    ("silent", "iterations_read", "problem", "text"),
    [
        ("run-worker-2", [], "reading the log took more than 1 s", TRACEBACK),
        ("run-master-0", [7], None, None),
    ],
)
async def test_a_node_that_does_not_answer_costs_the_log_of_its_own_pod(
    silent: str,
    iterations_read: list[int],
    problem: str | None,
    text: str | None,
    api: ApiStandIn,
    kubeconfig: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for module in ("failure_log", "runs"):
        monkeypatch.setattr(f"megatron_operator.ui.{module}.LOG_SECONDS", 1.0)
    api.silent_pods = {silent}
    found = await failed_master(api, kubeconfig)
    assert [point.iteration for point in found.points] == iterations_read
    assert found.problem == problem
    assert found.failure is not None
    assert found.failure.text == text
    assert (found.failure.part == "Reading its log took more than 1 s.") == (text is None)


async def test_a_run_without_a_failure_has_no_pod_that_failed_first(
    api: ApiStandIn, kubeconfig: Path
) -> None:
    recipe = training_run("run")
    recipe["status"]["recovery"] = {"restarts": 0}
    api.pods, api.logs = [pod("master")], {("run-master-0", False): "now"}
    async with AsyncConnection(kubeconfig=kubeconfig) as connection:
        found = await WatchedRuns(connection, ["research"]).logs(recipe)
    assert found.failure is None
    assert found.problem is None
