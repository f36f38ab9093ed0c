"""Runs over HTTP: apply, wait, stream, history, logs, deletion; the synchronous twin has the same surface."""

import inspect
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from megatron_operator.sdk import (
    ApiError,
    ApplyConflictError,
    AsyncConnection,
    AsyncRun,
    ClusterUnreachableError,
    Connection,
    InvalidRecipeError,
    LogUnavailableError,
    Recipe,
    Run,
    RunEndedError,
    RunFailedError,
    RunNotFoundError,
    WaitTimeoutError,
)

from testkit.api_stand_in import ApiStandIn

INCIDENT = {
    "number": 1,
    "time": "2026-01-01T11:00:00Z",
    "kind": "rank",
    "pod": "worker-0",
    "rank": 3,
    "cause": "rank 3 was killed by SIGKILL",
    "iteration": 130,
    "resumedFrom": 120,
    "lostIterations": 10,
    "seconds": {"detect": 1.0, "load": 2.0},
    "recoveredAt": "2026-01-01T11:00:05Z",
}
FAILED = {
    "phase": "Failed",
    "observedGeneration": 1,
    "conditions": [
        {
            "type": "Failed",
            "status": "True",
            "reason": "BudgetExhausted",
            "message": "10 restarts without a new checkpoint",
            "lastTransitionTime": "2026-01-01T12:00:00Z",
        }
    ],
    "recovery": {"restarts": 1, "lastIncident": INCIDENT, "history": [INCIDENT]},
}


def event(uid: str, reason: str) -> dict[str, Any]:
    return {
        "metadata": {"creationTimestamp": "2026-01-01T10:30:00Z"},
        "involvedObject": {"kind": "MegatronRecipe", "name": "tiny", "uid": uid},
        "reason": reason,
        "message": reason,
        "type": "Normal",
    }


def pod(kind: str, index: int) -> dict[str, Any]:
    return {
        "metadata": {
            "name": f"tiny-{kind}-{index}",
            "creationTimestamp": "2026-01-01T10:00:00Z",
            "labels": {
                "training.kubeflow.org/replica-type": kind,
                "training.kubeflow.org/replica-index": str(index),
            },
        },
        "spec": {"nodeName": "node"},
    }


def in_background(call: Callable[[], object]) -> threading.Thread:
    thread = threading.Thread(target=call, daemon=True)
    thread.start()
    return thread


def test_the_twins_have_the_same_surface() -> None:
    def surface(kind: type) -> dict[str, list[str]]:
        members = inspect.getmembers(kind, lambda member: callable(member) or isinstance(member, property))
        return {
            name: list(inspect.signature(getattr(member, "fget", member)).parameters)
            for name, member in members
            if not name.startswith("_")
        }

    assert surface(Run) == surface(AsyncRun)
    assert surface(Connection).items() <= surface(AsyncConnection).items()


def test_apply_creates_and_updates_in_the_namespace_of_the_context(
    run: Run, recipe: Recipe, connection: Connection, api: ApiStandIn
) -> None:
    assert (run.namespace, run.name, run.phase) == ("research", "tiny", None)
    Run.apply(recipe.replace(training={"lr": 1e-4}), connection)
    assert api.recipes["research", "tiny"]["spec"]["training"] == {"lr": 1e-4}
    assert run.refresh().recipe.to_dict()["spec"]["training"] == {"lr": 1e-4}
    method, path, query = api.requests[0]
    assert (method, path.rpartition("/")[2]) == ("PATCH", "tiny")
    assert query == {"fieldManager": "megatron-sdk", "force": "false"}


def test_fields_of_another_manager_are_taken_over_only_by_force(
    run: Run, recipe: Recipe, connection: Connection
) -> None:
    with pytest.raises(ApplyConflictError, match=r'conflict with "megatron-sdk".*force=True'):
        Run.apply(recipe, connection, field_manager="pipeline")
    Run.apply(recipe, connection, field_manager="pipeline", force=True)
    assert run.refresh().resource["metadata"]["managedFields"] == [{"manager": "pipeline"}]


def test_a_recipe_without_data_is_not_applied(connection: Connection, api: ApiStandIn) -> None:
    with pytest.raises(InvalidRecipeError, match=r"spec\.data: is required"):
        Run.apply(Recipe("tiny-gpt", count=4), connection)
    assert api.requests == []


def test_runs_are_listed_by_namespace_and_label(recipe: Recipe, connection: Connection) -> None:
    labelled = recipe.to_dict()
    labelled["metadata"] |= {"name": "labelled", "labels": {"team": "nlp"}}
    for each in (recipe, recipe.replace(name="other", namespace="else"), Recipe.from_dict(labelled)):
        Run.apply(each, connection)
    assert [run.name for run in Run.list(connection)] == ["tiny", "labelled"]
    assert [run.name for run in Run.list(connection, namespace="else")] == ["other"]
    assert [run.name for run in Run.list(connection, all_namespaces=True, selector="team=nlp")] == [
        "labelled"
    ]
    assert Run.get("other", connection, namespace="else").namespace == "else"
    with pytest.raises(RunNotFoundError, match=r"^research/other: does not exist"):
        Run.get("other", connection)


def test_wait_returns_at_the_phase_without_polling(run: Run, api: ApiStandIn) -> None:
    waiting = in_background(run.wait)
    api.wait_for_watch(1)
    for phase in ("Starting", "Training", "Recovering", "Training", "Succeeded"):
        api.set_status("tiny", phase=phase, observedGeneration=1)
    waiting.join()
    assert run.phase == "Succeeded"
    assert len(api.requests) == 3, "apply, one list, one watch"


@pytest.mark.parametrize(
    ("phase", "goal"),
    [
        ("Training", "Training"),
        ("Training", "Starting"),
        ("Succeeded", "Training"),
        ("Evaluating", "Training"),
        ("Starting", "Checking"),
        ("Queued", "Queued"),
    ],
)
def test_a_later_phase_of_the_normal_course_counts_as_reached(
    phase: str, goal: str, run: Run, api: ApiStandIn
) -> None:
    api.set_status("tiny", phase=phase, observedGeneration=1)
    assert run.wait(phase=goal).phase == phase


@pytest.mark.parametrize(("phase", "goal"), [("Queued", "Importing"), ("Training", "Queued")])
def test_a_queue_is_neither_before_nor_after_another_phase(
    phase: str, goal: str, run: Run, api: ApiStandIn
) -> None:
    api.set_status("tiny", phase=phase, observedGeneration=1)
    waiting = in_background(lambda: run.wait(phase=goal))
    api.wait_for_watch(1)
    api.set_status("tiny", phase=goal, observedGeneration=1)
    waiting.join()
    assert run.phase == goal


def test_wait_for_a_condition(run: Run, api: ApiStandIn) -> None:
    waiting = in_background(lambda: run.wait(condition="Planned"))
    api.wait_for_watch(1)
    api.set_status("tiny", phase="Pending", conditions=[{"type": "Planned", "status": "Unknown"}])
    api.set_status("tiny", phase="Starting", conditions=[{"type": "Planned", "status": "True"}])
    waiting.join()
    assert run.phase == "Starting"


def test_a_failure_is_raised_with_the_last_incident(run: Run, api: ApiStandIn) -> None:
    api.set_status("tiny", **FAILED)
    with pytest.raises(RunFailedError) as failed:
        run.wait()
    assert str(failed.value) == (
        "research/tiny: Failed: 10 restarts without a new checkpoint; last incident 1 (rank):"
        " rank 3 was killed by SIGKILL (worker-0 rank 3; resumed from iteration 120, 10 iterations repeated;"
        " lost 3.0 s (detect 1.0 s, load 2.0 s))"
    )
    assert failed.value.incident is not None
    assert failed.value.incident.rank == 3
    assert run.wait(phase="Failed").phase == "Failed"


def test_a_status_that_precedes_the_newest_edit_does_not_end_the_wait(
    run: Run, recipe: Recipe, connection: Connection, api: ApiStandIn
) -> None:
    api.set_status("tiny", **FAILED)
    Run.apply(recipe.replace(training={"lr": 1e-4}), connection)
    waiting = in_background(lambda: run.wait(phase="Training"))
    api.wait_for_watch(1)
    api.set_status("tiny", phase="Training", observedGeneration=2)
    waiting.join()
    assert run.phase == "Training"


def test_a_run_that_succeeded_does_not_become_suspended(run: Run, api: ApiStandIn) -> None:
    api.set_status("tiny", phase="Succeeded")
    with pytest.raises(RunEndedError, match="has succeeded, and is not Suspended"):
        run.wait(phase="Suspended")


def test_wait_ends_with_the_recipe_and_at_the_time_limit(run: Run, api: ApiStandIn) -> None:
    with pytest.raises(WaitTimeoutError, match=r"is not Succeeded after 0\.05 s \(phase None\)") as late:
        run.wait(timeout=0.05)
    assert isinstance(late.value, TimeoutError)
    api.remove("tiny")
    with pytest.raises(RunNotFoundError, match="was deleted before it was Succeeded"):
        run.wait()


@pytest.mark.parametrize("arguments", [{"phase": "Trainig"}, {"condition": "Runing"}])
def test_an_unknown_goal_is_refused(arguments: dict[str, str], run: Run) -> None:
    with pytest.raises(ValueError, match=r"unknown (phase|condition) .*; use one of .*Failed"):
        run.wait(**arguments)
    with pytest.raises(ValueError, match="either phase or condition"):
        run.wait(phase="Training", condition="Running")


def test_a_watch_that_ends_or_expires_loses_no_change(run: Run, api: ApiStandIn) -> None:
    waiting = in_background(run.wait)
    api.wait_for_watch(1)
    api.expired = True
    api.end_watches()
    api.wait_for_watch(3)
    api.set_status("tiny", phase="Succeeded")
    waiting.join()
    assert run.phase == "Succeeded"


def test_a_connection_that_breaks_is_restored(run: Run, api: ApiStandIn) -> None:
    waiting = in_background(run.wait)
    api.wait_for_watch(1)
    api.end_watches(abort=True)
    api.wait_for_watch(2)
    api.set_status("tiny", phase="Succeeded")
    waiting.join()
    assert run.phase == "Succeeded"


def test_a_wait_ends_when_another_thread_closes_the_connection(
    run: Run, api: ApiStandIn, connection: Connection
) -> None:
    errors: list[str] = []

    def wait() -> None:
        with pytest.raises(ClusterUnreachableError) as raised:
            run.wait()
        errors.append(str(raised.value))

    waiting = in_background(wait)
    api.wait_for_watch(1)
    connection.close()
    waiting.join(60)
    assert [error.partition(",")[0] for error in errors] == ["the connection is closed"]


def test_an_api_server_that_stays_away_is_reported(
    run: Run, api: ApiStandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("megatron_operator.sdk.connection.RETRY_DELAYS", (0.0, 0.0))
    api.aborting = True
    with pytest.raises(ClusterUnreachableError, match="the API server does not respond"):
        run.wait()


def test_watches_that_break_do_not_end_a_wait_while_the_api_server_responds(
    run: Run, api: ApiStandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("megatron_operator.sdk.connection.RETRY_DELAYS", (0.0, 0.0))
    api.broken_watches = 5
    errors: list[Exception] = []

    def wait() -> None:
        try:
            run.wait(timeout=30)
        except ClusterUnreachableError as error:
            errors.append(error)

    waiting = in_background(wait)
    while waiting.is_alive() and api.broken_watches:
        waiting.join(0.01)
    assert errors == []
    api.set_status("tiny", phase="Succeeded")
    waiting.join()
    assert run.phase == "Succeeded"


def test_stream_yields_each_change_of_the_progress_until_the_end(run: Run, api: ApiStandIn) -> None:
    api.set_status("tiny", phase="Training", progress={"iteration": 10, "trainIters": 20, "lmLoss": 2.5})
    readings = iter(run.stream())
    first = next(readings)
    assert (first.phase, first.iteration, first.train_iters, first.lm_loss) == ("Training", 10, 20, 2.5)
    api.set_status("tiny", warnings=[{"reason": "A", "message": "b"}])
    api.set_status("tiny", phase="Succeeded", progress={"iteration": 20}, checkpoint={"iteration": 20})
    [last] = readings
    assert (last.phase, last.iteration, last.checkpoint_iteration) == ("Succeeded", 20, 20)


def test_a_stream_that_is_left_early_ends_its_watch(run: Run, api: ApiStandIn) -> None:
    for _ in run.stream():
        break
    api.set_status("tiny", phase="Succeeded")
    assert run.wait().phase == "Succeeded"


def test_history_has_incidents_attempts_and_timeline(run: Run, api: ApiStandIn) -> None:
    evaluations = [{"iteration": 50, "loss": 2.5}, {"iteration": 100, "loss": 2.25}]
    api.set_status("tiny", **FAILED, validation=evaluations[-1] | {"evaluations": evaluations})
    api.events = [event("uid-tiny", "JobCreated")]
    history = run.history()
    assert [(each.iteration, each.loss) for each in history.evaluations] == [(50, 2.5), (100, 2.25)]
    assert [incident.cause for incident in history.incidents] == ["rank 3 was killed by SIGKILL"]
    assert [(a.number, a.since, a.resumed_from, a.iteration) for a in history.attempts] == [
        (1, "2026-01-01T10:00:00Z", None, 130),
        (2, "2026-01-01T11:00:05Z", 120, None),
    ]
    reasons = [entry.reason for entry in history.timeline]
    assert reasons == ["Created", "JobCreated", "RankRestarted", "BudgetExhausted"]
    assert history.recovery.restarts == 1


def test_history_has_no_event_of_an_earlier_run_of_the_name(run: Run, api: ApiStandIn) -> None:
    api.events = [event("uid-earlier", "Failed"), event("uid-tiny", "JobCreated")]
    assert [entry.reason for entry in run.history().timeline] == ["Created", "JobCreated"]


def test_logs_are_those_of_the_pod_that_failed_first(run: Run, api: ApiStandIn) -> None:
    with pytest.raises(LogUnavailableError, match=r"has no pods \(phase None\)"):
        run.logs()
    api.pods = [pod("master", 0), pod("worker", 0)]
    api.set_status("tiny", plan={"perNode": 2}, **FAILED)
    api.logs = {("tiny-worker-0", False): "one\ntwo\n", ("tiny-master-0", False): "master\n"}
    assert run.logs() == "one\ntwo\n"
    assert run.logs(rank=1, tail=5) == "master\n"
    assert api.requests[-1][2] == {"container": "pytorch", "tailLines": "5"}
    assert list(run.follow_logs()) == ["one", "two"]
    assert api.requests[-1][2]["follow"] == "true"
    with pytest.raises(LogUnavailableError, match="has no pod of rank 9"):
        run.logs(rank=9)


def test_logs_are_not_those_of_a_deleted_run_of_the_name(run: Run, api: ApiStandIn) -> None:
    older = pod("master", 0)
    older["metadata"]["creationTimestamp"] = "2026-01-01T09:59:59Z"
    api.pods, api.logs = [older], {("tiny-master-0", False): "of the deleted one\n"}
    with pytest.raises(LogUnavailableError, match="has no pods"):
        run.logs()


def test_a_log_that_is_followed_may_be_silent_for_longer_than_a_watch(
    run: Run, api: ApiStandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("megatron_operator.sdk.connection.SILENCE", 0.2)
    api.pods, api.logs = [pod("master", 0)], {("tiny-master-0", False): "loading\n"}
    api.running_pods = {"tiny-master-0"}
    lines = iter(run.follow_logs())
    assert next(lines) == "loading"
    waiting = in_background(run.wait)
    api.wait_for_watch(2)  # the first one began after the line, and was silent for too long
    api.end_containers()
    assert list(lines) == []
    api.set_status("tiny", phase="Succeeded")
    waiting.join()


def test_tcp_asks_for_the_peer_of_a_log_that_is_followed(run: Run, api: ApiStandIn) -> None:
    api.pods, api.logs = [pod("master", 0)], {("tiny-master-0", False): "loading\n"}
    api.running_pods = {"tiny-master-0"}
    lines = iter(run.follow_logs())
    assert next(lines) == "loading"
    server = f"0100007F:{int(api.url.rpartition(':')[2]):04X}"
    table = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()]
    timers = [fields[5].partition(":")[0] for fields in table if fields[2] == server and fields[3] == "01"]
    assert "02" in timers  # that of keepalive
    api.end_containers()
    assert list(lines) == []


def test_suspend_resume_and_delete(run: Run, api: ApiStandIn) -> None:
    assert run.suspend().resource["spec"]["suspend"] is True
    assert run.resume().resource["spec"]["suspend"] is False
    run.delete()
    assert api.recipes == {}
    run.delete()
    with pytest.raises(RunNotFoundError):
        run.suspend()


def re_create(run: Run, api: ApiStandIn) -> None:
    """Delete the run's recipe, and create another of its name."""
    again = run.resource | {"metadata": run.resource["metadata"] | {"uid": "another"}}
    api.remove(run.name)
    api.recipes[run.namespace, run.name] = again


def test_a_recipe_that_was_re_created_under_the_name_is_neither_deleted_nor_changed(
    run: Run, api: ApiStandIn
) -> None:
    re_create(run, api)
    run.delete()
    with pytest.raises(RunNotFoundError, match="was deleted, and its name is that of another recipe"):
        run.suspend()
    assert "suspend" not in api.recipes["research", "tiny"]["spec"]


def test_a_run_does_not_become_the_one_that_was_re_created_under_its_name(run: Run, api: ApiStandIn) -> None:
    re_create(run, api)
    api.set_status("tiny", phase="Succeeded")
    with pytest.raises(RunNotFoundError, match="was deleted, and its name"):
        run.refresh()
    with pytest.raises(RunNotFoundError, match="was deleted before it was Succeeded"):
        run.wait()
    with pytest.raises(RunNotFoundError, match="was deleted"):
        list(run.stream())
    assert (run.resource["metadata"]["uid"], run.phase) == ("uid-tiny", None)


def test_a_patch_that_is_refused_for_another_reason_keeps_its_message(run: Run, api: ApiStandIn) -> None:
    api.refusal = "spec.suspend: the policy of this namespace forbids it"
    with pytest.raises(ApiError, match="the policy of this namespace forbids it"):
        run.suspend()


def test_the_default_connection_is_that_of_the_kubeconfig(
    kubeconfig: Path, recipe: Recipe, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("megatron_operator.sdk.run._default", None)
    monkeypatch.setenv("KUBECONFIG", str(kubeconfig))
    Run.apply(recipe)
    assert [run.name for run in Run.list()] == ["tiny"]


def test_without_a_cluster_the_error_has_the_way_out(tmp_path: Path, kubeconfig: Path) -> None:
    with (
        Connection(kubeconfig=tmp_path / "missing") as connection,
        pytest.raises(
            ClusterUnreachableError, match=r"no cluster is configured \(.*missing\): .*[^.]; set KUBECONFIG"
        ),
    ):
        Run.list(connection)
    kubeconfig.write_text(kubeconfig.read_text().replace("http://127.0.0.1:", "http://127.0.0.1:1"))
    with (
        Connection(kubeconfig=kubeconfig) as connection,
        pytest.raises(ClusterUnreachableError, match="the API server does not respond"),
    ):
        Run.list(connection)


async def test_the_asynchronous_twin(recipe: Recipe, kubeconfig: Path, api: ApiStandIn) -> None:
    async with AsyncConnection(kubeconfig=kubeconfig, namespace="research") as connection:
        run = await AsyncRun.apply(recipe, connection)
        api.set_status("tiny", phase="Succeeded", progress={"iteration": 20})
        await run.wait(phase="Training")
        assert [reading.iteration async for reading in run.stream()] == [20]
        assert [each.name for each in await AsyncRun.list(connection)] == ["tiny"]
        assert repr(run) == "<AsyncRun research/tiny: Succeeded>"
        await run.delete()
    assert api.recipes == {}
