"""Watching the recipes of a cluster: changes, lost connections, samples, logs."""

import asyncio
import copy
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from megatron_operator.sdk import AsyncConnection, Connection, Recipe, Run
from megatron_operator.ui.points import measured_memory
from megatron_operator.ui.runs import WatchedRuns

from testkit.api_stand_in import ApiStandIn
from testkit.example_runs import training_run
from testkit.fuzz.guard import limited

POD = {
    "metadata": {"name": "tiny-master-0", "labels": {"training.kubeflow.org/replica-type": "master"}},
    "spec": {"nodeName": "gpu-1"},
}
LINE = (
    " [2026-01-01 10:00:00] iteration {0:8d}/     100 | elapsed time per iteration (ms): 2000.0 |"
    " lm loss: 2.5 |"
)
MEMORY = (
    "[Rank 0] (after 2 iterations) memory (MB) | allocated: 1.00 | max allocated: 9.00 | reserved: 9.00"
    " | max reserved: 2048.00"
)


async def until(condition: Callable[[], bool]) -> None:
    """Wait for a state that the watch reaches by itself."""
    async with asyncio.timeout(20):
        while not condition():
            await asyncio.sleep(0.01)


def progress(iteration: int) -> dict[str, Any]:
    return training_run("x")["status"] | {
        "progress": {"iteration": iteration, "lmLoss": 2.0, "tokensPerSecond": 10.0}
    }


@pytest.fixture
def run(kubeconfig: Path) -> Run:
    recipe = Recipe("tiny-gpt", name="tiny", accelerator="cpu", count=4, data={"mockData": True})
    with Connection(kubeconfig=kubeconfig) as connection:
        return Run.apply(recipe, connection)


@pytest.fixture
async def watched(run: Run, kubeconfig: Path, api: ApiStandIn) -> AsyncIterator[WatchedRuns]:
    async with AsyncConnection(kubeconfig=kubeconfig) as connection:
        runs = WatchedRuns(connection, [None])
        task = asyncio.create_task(runs.follow())
        await until(lambda: runs.get(run.namespace, run.name) is not None)
        # It lists before it watches: a test that ends all watches must find one.
        await asyncio.to_thread(api.wait_for_watch, 1)
        yield runs
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def phase(runs: WatchedRuns) -> Any:
    return ((runs.get("research", "tiny") or {}).get("status") or {}).get("phase")


async def test_changes_and_deletions_are_followed(watched: WatchedRuns, api: ApiStandIn) -> None:
    assert watched.problem is None
    await asyncio.to_thread(api.set_status, "tiny", phase="Training")
    await until(lambda: phase(watched) == "Training")
    await asyncio.to_thread(api.remove, "tiny")
    await until(lambda: watched.all() == [])


async def test_samples_of_progress_are_kept_and_a_repeated_iteration_replaces_what_follows(
    watched: WatchedRuns, api: ApiStandIn
) -> None:
    for iteration in (10, 20, 30, 20):
        await asyncio.to_thread(api.set_status, "tiny", **progress(iteration))
        await until(lambda i=iteration: _iteration(watched) == i)  # type: ignore[misc]
    recipe = watched.get("research", "tiny")
    assert recipe is not None
    assert [point.iteration for point in (await watched.history(recipe)).points] == [10, 20]
    other = copy.deepcopy(recipe)
    other["metadata"]["uid"] = "another recipe of this name"
    assert (await watched.history(other)).points == ()


def _iteration(runs: WatchedRuns) -> Any:
    status = (runs.get("research", "tiny") or {}).get("status") or {}
    return (status.get("progress") or {}).get("iteration")


async def test_a_watch_that_ends_or_breaks_is_restored_and_a_deletion_meanwhile_noticed(
    watched: WatchedRuns, api: ApiStandIn
) -> None:
    await asyncio.to_thread(api.end_watches)
    await asyncio.to_thread(api.wait_for_watch, 2)
    api.aborting = True
    await asyncio.to_thread(api.end_watches, abort=True)
    await until(lambda: watched.problem is not None)
    await asyncio.to_thread(api.remove, "tiny")
    api.aborting = False
    await until(lambda: watched.problem is None)
    assert watched.all() == []


async def test_an_expired_version_lists_again(watched: WatchedRuns, api: ApiStandIn) -> None:
    api.expired = True
    await asyncio.to_thread(api.end_watches)
    await asyncio.to_thread(api.set_status, "tiny", phase="Starting")
    await until(lambda: phase(watched) == "Starting")


async def test_an_error_within_a_watch_is_a_problem(watched: WatchedRuns, api: ApiStandIn) -> None:
    failure = b'{"type": "ERROR", "object": {"code": 500, "reason": "InternalError", "message": "etcd"}}\n'
    api.watched = [failure]
    await asyncio.to_thread(api.end_watches)
    await until(lambda: watched.problem is not None)
    assert watched.problem == "500 InternalError: etcd"
    await until(lambda: watched.problem is None)


@pytest.mark.usefixtures("watched")
async def test_a_watch_that_ends_is_repeated_only_after_a_pause(
    api: ApiStandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, over = asyncio.Semaphore(0), asyncio.Semaphore(0)

    async def pause(_began: float) -> None:
        begun.release()
        await over.acquire()

    monkeypatch.setattr("megatron_operator.ui.runs.pause_after_watch", pause)
    api.watched = [b""] * 1000
    await asyncio.to_thread(api.end_watches)
    async with asyncio.timeout(60):
        await begun.acquire()
        assert len(api.watched) == 1000, "the next watch begins after the pause"
        over.release()
        await begun.acquire()
    assert len(api.watched) == 999


async def test_a_page_of_one_namespace_watches_only_that(run: Run, kubeconfig: Path, api: ApiStandIn) -> None:
    async with AsyncConnection(kubeconfig=kubeconfig) as connection:
        runs = WatchedRuns(connection, ["research"])
        assert runs.problem_of("research") == "the runs have not been read yet"
        assert runs.problem_of("teaching") is None
        task = asyncio.create_task(runs.follow())
        await until(lambda: runs.get(run.namespace, run.name) is not None)
        await until(lambda: runs.problem_of("research") is None)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    paths = {path for method, path, _ in api.requests if method == "GET"}
    assert paths == {"/apis/megatron.training/v1alpha1/namespaces/research/megatronrecipes"}


async def test_logs_give_points_memory_and_the_failure_and_are_read_once(
    watched: WatchedRuns, api: ApiStandIn
) -> None:
    api.pods = [POD]
    failed_at = training_run("x")["status"]["recovery"]["lastIncident"]["time"]
    lines = [LINE.format(10), MEMORY, LINE.format(20), f"{failed_at} Traceback: it broke"]
    api.logs["tiny-master-0", False] = "\n".join(lines)
    await asyncio.to_thread(api.set_status, "tiny", **(training_run("x")["status"] | {"phase": "Failed"}))
    await until(lambda: phase(watched) == "Failed")
    recipe = watched.get("research", "tiny")
    assert recipe is not None
    first, second = await asyncio.gather(watched.logs(recipe), watched.logs(recipe))
    assert first is second
    assert [point.iteration for point in first.points] == [10, 20]
    expected = training_run("x")["status"]["plan"]["expected"]
    assert first.points[0].mfu == pytest.approx(expected["mfu"] * expected["stepSeconds"] / 2)
    assert first.memory == 2 << 30
    assert first.failure is not None
    assert first.failure.pod == "tiny-master-0"
    assert first.failure.text == f"{failed_at} Traceback: it broke"


async def test_lines_that_only_look_like_megatrons_cost_their_own_values(
    watched: WatchedRuns, api: ApiStandIn
) -> None:
    api.pods = [POD]
    wrong = ["memory (MB) | max reserved: 1.1.1", "memory (MB) | max reserved: " + "9" * 400]
    lines = [LINE.format(10).replace("2.5", "-"), *wrong, MEMORY, LINE.format(20)]
    api.logs["tiny-master-0", False] = "\n".join(lines)
    recipe = watched.get("research", "tiny")
    assert recipe is not None
    found = await watched.logs(recipe)
    assert [point.iteration for point in found.points] == [20]
    assert found.memory == 2 << 30
    [query] = [query for method, path, query in api.requests if path.endswith("/log")]
    assert int(query["limitBytes"]) <= 16 << 20


def test_a_hostile_log_is_searched_in_time_that_grows_with_its_length() -> None:
    lines = [("memory (MB) |" * 200)[:2000], "memory (MB) | " + "max reserved: " * 140] * 500
    with limited(10.0):
        assert measured_memory(lines) is None


async def test_an_error_that_nobody_expected_does_not_end_the_watch(
    watched: WatchedRuns, api: ApiStandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(watched, "_put", Mock(side_effect=RecursionError("maximum recursion depth exceeded")))
        await asyncio.to_thread(api.set_status, "tiny", phase="Starting")
        await until(lambda: watched.problem is not None)
    await until(lambda: watched.problem is None and phase(watched) == "Starting")


async def test_without_the_right_to_read_logs_the_page_states_it(
    watched: WatchedRuns, api: ApiStandIn
) -> None:
    api.pods, api.forbids_logs = [POD], True
    recipe = watched.get("research", "tiny")
    assert recipe is not None
    assert (await watched.logs(recipe)).problem == "this page has no right to read logs (chart value ui.logs)"


async def test_a_run_without_pods_has_no_log(watched: WatchedRuns) -> None:
    recipe = watched.get("research", "tiny")
    assert recipe is not None
    assert (await watched.logs(recipe)).problem == "the run has no pods, whose logs could be read"
