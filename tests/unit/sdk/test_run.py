"""Runs over HTTP: apply, history, logs, suspension, deletion; the synchronous twin has the same surface."""

import inspect
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
    RunNotFoundError,
)

from testkit.api_stand_in import ApiStandIn
from tests.unit.sdk.runs import FAILED, in_background, pod


def event(uid: str, reason: str) -> dict[str, Any]:
    return {
        "metadata": {"creationTimestamp": "2026-01-01T10:30:00Z"},
        "involvedObject": {"kind": "MegatronRecipe", "name": "tiny", "uid": uid},
        "reason": reason,
        "message": reason,
        "type": "Normal",
    }


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


@pytest.mark.parametrize(
    "text",
    [
        "",
        "contexts: [",
        "5",
        "{current-context: x, contexts: [{name: x, context: 5}], clusters: [], users: []}",
        "{current-context: x, contexts: 5}",
    ],
)
def test_a_file_that_is_not_a_kubeconfig_is_refused(text: str, tmp_path: Path) -> None:
    file = tmp_path / "config"
    file.write_text(text)
    with (
        Connection(kubeconfig=file) as connection,
        pytest.raises(ClusterUnreachableError, match=f"{file} is not a valid kubeconfig; set KUBECONFIG"),
    ):
        Run.list(connection)


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
