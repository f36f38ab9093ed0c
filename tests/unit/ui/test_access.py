"""Who sees what: TokenReview and SubjectAccessReview, the sign-in form, the key of the shell."""

import logging
import re
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
from megatron_operator.lifecycle.usage_records import Records, RunUse
from megatron_operator.sdk import AsyncConnection
from megatron_operator.ui.access import REMEMBERED, ClusterAccess, KeyAccess, see_runs
from megatron_operator.ui.app import Settings, application
from megatron_operator.ui.deleted_use import DeletedUse
from megatron_operator.ui.published import PublishedRecipes
from starlette.testclient import TestClient

from testkit.api_stand_in import ApiStandIn
from testkit.example_runs import NOW, ExampleRuns

RUN = "/runs/research/llama3-8b-web"
ALICE = {"username": "alice", "uid": "u1", "groups": ["nlp"], "extra": {"scopes": ["all"]}}
READS = {("alice", verb, "megatronrecipes", "research") for verb in ("get", "list")}


@pytest.fixture
def client(runs: ExampleRuns, api: ApiStandIn, kubeconfig: Path) -> Iterator[TestClient]:
    api.tokens["secret-token"] = ALICE
    api.rights = set(READS)
    connection = AsyncConnection(kubeconfig=kubeconfig)
    options: dict[str, Any] = {"now": lambda: NOW}
    access = ClusterAccess(connection)
    app = application(Settings(runs, access, PublishedRecipes(None, None), **options))
    with TestClient(app, base_url="https://page.example", follow_redirects=False) as client:
        yield client
        client.portal.call(connection.close)  # type: ignore[union-attr]


def bearer(token: str = "secret-token") -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


def test_without_a_token_the_answer_is_401_with_the_form_and_nothing_of_runs(client: TestClient) -> None:
    for path in ("/", RUN, f"{RUN}/recipe", "/compare", "/compare?a=research/x&b=research/y"):
        response = client.get(path)
        assert response.status_code == 401
        assert response.headers["WWW-Authenticate"] == "Bearer"
        assert "llama3" not in response.text.replace(RUN, "")
        assert '<form class="sign-in"' in response.text


def test_a_token_that_the_api_server_rejects_is_401(client: TestClient, api: ApiStandIn) -> None:
    assert client.get("/", headers=bearer("other")).status_code == 401
    assert client.get("/", headers=bearer("x" * 20_000)).status_code == 401
    assert client.get("/", headers={"Authorization": "Basic secret-token"}).status_code == 401
    assert [path for _, path, _ in api.requests].count("/apis/authentication.k8s.io/v1/tokenreviews") == 1


class KnownUse(DeletedUse):
    """Two deleted runs of each namespace, and a record of a run that exists."""

    def __init__(self, namespaces: tuple[str | None, ...], existing: str) -> None:
        self.namespaces = namespaces
        self.existing = existing

    async def records(self) -> list[Records] | str:
        held = {"train": 3600.0 * 1000}
        uses = {
            f"{name}-{number}": RunUse(
                namespace=name, name="gone", seconds=held, accelerator_seconds=held, weeks={}
            )
            for name in ("research", "teaching")
            for number in range(2)
        }
        return [Records({self.existing: uses["research-0"]}), Records().with_ended(uses).with_deleted(uses)]


@pytest.mark.parametrize(
    ("watched", "rights", "counted"),
    [
        ((None,), READS, ["research"]),
        ((None,), {("alice", "list", "megatronrecipes", "")}, ["research", "teaching"]),
        (("teaching",), {("alice", "list", "megatronrecipes", "")}, ["teaching"]),
    ],
)
def test_gpu_hours_of_deleted_runs_are_those_of_namespaces_that_the_viewer_may_list(
    runs: ExampleRuns,
    api: ApiStandIn,
    kubeconfig: Path,
    watched: tuple[str | None, ...],
    rights: set[Any],
    counted: list[str],
) -> None:
    api.tokens["secret-token"] = ALICE
    api.rights = set(rights)
    connection = AsyncConnection(kubeconfig=kubeconfig)
    existing = str(runs.recipes["research", "llama3-8b-web"]["metadata"].get("uid"))
    options: dict[str, Any] = {"now": lambda: NOW, "deleted_use": KnownUse(watched, existing)}
    access = ClusterAccess(connection)
    app = application(Settings(runs, access, PublishedRecipes(None, None), **options))
    with TestClient(app, base_url="https://page.example") as client:
        section = client.get("/ledger", headers=bearer()).text.partition("By week")[0]
        client.portal.call(connection.close)  # type: ignore[union-attr]
    assert "Of deleted runs" in section
    rows = dict(re.findall(r'<tr><th scope="row">(\w+)</th>(.+?)</tr>', section))
    assert [name for name, cells in rows.items() if ">2,000.0<" in cells and name != "total"] == counted


def test_an_incomplete_list_of_runs_shows_no_existing_run_as_deleted(
    runs: ExampleRuns, api: ApiStandIn, kubeconfig: Path
) -> None:
    api.tokens["secret-token"] = ALICE
    api.rights = {("alice", "list", "megatronrecipes", "")}
    connection = AsyncConnection(kubeconfig=kubeconfig)
    runs.recipes.clear()
    runs.problem = "the runs have not been read yet"
    options: dict[str, Any] = {"now": lambda: NOW, "deleted_use": KnownUse((None,), "exists")}
    app = application(Settings(runs, ClusterAccess(connection), PublishedRecipes(None, None), **options))
    with TestClient(app, base_url="https://page.example") as client:
        text = client.get("/ledger", headers=bearer()).text
        client.portal.call(connection.close)  # type: ignore[union-attr]
    assert "Runs that were deleted are not counted: the runs have not been read yet." in text
    assert "research" not in text


def test_a_viewer_sees_the_runs_of_namespaces_that_they_may_list(client: TestClient) -> None:
    text = client.get("/", headers=bearer()).text
    assert "llama3-8b-web" in text
    assert "llama3-8b-code" not in text, "it is in the namespace teaching"
    assert '<option value="teaching">' not in text
    assert client.get(RUN, headers=bearer()).status_code == 200


def test_gpu_hours_are_of_namespaces_that_the_viewer_may_list(client: TestClient) -> None:
    text = client.get("/ledger", headers=bearer()).text
    assert '<th scope="row">research</th>' in text
    assert "teaching" not in text
    assert client.get("/ledger?namespace=teaching", headers=bearer()).status_code == 403


def test_another_namespace_is_403_whether_or_not_the_run_exists(client: TestClient) -> None:
    answers = [
        client.get(path, headers=bearer())
        for path in ("/runs/teaching/llama3-8b-code", "/runs/teaching/none", "/?namespace=teaching")
    ]
    assert [each.status_code for each in answers] == [403, 403, 403]
    assert answers[0].text == answers[1].text
    assert "alice may not get megatronrecipes in namespace teaching" in answers[0].text
    compare = "/compare?a=research/llama3-8b-web&b=teaching/llama3-8b-code"
    assert client.get(compare, headers=bearer()).status_code == 403


def test_who_may_list_all_namespaces_sees_all(client: TestClient, api: ApiStandIn) -> None:
    api.rights.add(("alice", "list", "megatronrecipes", ""))
    assert "llama3-8b-code" in client.get("/", headers=bearer()).text


def test_nodes_and_logs_are_shown_only_to_who_may_read_them(client: TestClient) -> None:
    text = client.get(RUN, headers=bearer()).text
    assert "llama3-8b-web-worker-0" not in text
    assert "main threads of hanging ranks" not in text
    assert "alice may not read logs in this namespace (get pods/log)" in text


def test_with_rights_on_pods_and_logs_they_are_shown(client: TestClient, api: ApiStandIn) -> None:
    api.rights |= {("alice", "list", "pods", "research"), ("alice", "get", "pods/log", "research")}
    text = client.get(RUN, headers=bearer()).text
    assert "llama3-8b-web-worker-0" in text
    assert "main threads of hanging ranks" in text


def test_signing_in_sets_a_cookie_that_scripts_cannot_read_and_returns_to_the_page(
    client: TestClient,
) -> None:
    response = client.post("/sign-in", data={"token": " secret-token\n", "wanted": f"{RUN}?rank=1"})
    assert (response.status_code, response.headers["Location"]) == (303, f"{RUN}?rank=1")
    cookie = response.headers["Set-Cookie"]
    assert all(word in cookie for word in ("HttpOnly", "Secure", "SameSite=lax"))
    assert client.get(RUN).status_code == 200
    assert client.post("/sign-out").status_code == 303
    assert client.get(RUN).status_code == 401


@pytest.mark.parametrize(
    "wanted", ["//evil.example/", "/\\evil.example", "https://evil.example", "/a\r\nX: y"]
)
def test_signing_in_never_leads_to_another_site(client: TestClient, wanted: str) -> None:
    response = client.post("/sign-in", data={"token": "secret-token", "wanted": wanted})
    assert response.headers["Location"] == "/"


def test_a_wrong_token_or_one_too_long_for_a_cookie_signs_nobody_in(client: TestClient) -> None:
    for token in ("", "wrong", "x" * 5000, "schlüssel"):
        response = client.post("/sign-in", data={"token": token})
        assert response.status_code == 401
        assert "Set-Cookie" not in response.headers
    assert client.post("/sign-in", data={"token": "x" * 40_000}).status_code == 413


def test_the_form_of_another_site_and_a_key_in_the_url_are_refused(client: TestClient) -> None:
    other = {"Sec-Fetch-Site": "cross-site"}
    assert client.post("/sign-in", data={"token": "secret-token"}, headers=other).status_code == 403
    assert "Set-Cookie" not in client.get("/sign-in?key=secret-token").headers


def test_no_token_is_logged(client: TestClient, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    client.get("/", headers=bearer())
    client.post("/sign-in", data={"token": "wrong-secret"})
    client.get("/")
    assert "secret" not in "".join(f"{each.message} {each.args}" for each in caplog.records)


@pytest.fixture
async def access(kubeconfig: Path) -> AsyncIterator[tuple[ClusterAccess, list[float]]]:
    now = [100.0]
    async with AsyncConnection(kubeconfig=kubeconfig) as connection:
        yield ClusterAccess(connection, lambda: now[0]), now


async def test_answers_are_used_for_ten_seconds(
    access: tuple[ClusterAccess, list[float]], api: ApiStandIn
) -> None:
    cluster, now = access
    api.tokens["t"] = ALICE
    viewer = await cluster.viewer("t")
    assert viewer is not None
    assert (viewer.name, viewer.uid, viewer.groups, viewer.extra) == (
        "alice",
        "u1",
        ("nlp",),
        {"scopes": ["all"]},
    )
    api.rights = set(READS)
    assert await cluster.allows(viewer, see_runs("research"))
    api.tokens.clear()
    api.rights.clear()
    now[0] += REMEMBERED - 0.1
    assert await cluster.viewer("t") == viewer
    assert await cluster.allows(viewer, see_runs("research"))
    now[0] += 0.2
    assert await cluster.viewer("t") is None
    assert not await cluster.allows(viewer, see_runs("research"))


async def test_tokens_are_not_kept(access: tuple[ClusterAccess, list[float]], api: ApiStandIn) -> None:
    cluster, _ = access
    api.tokens["very-secret"] = ALICE
    await cluster.viewer("very-secret")
    assert "very-secret" not in repr(vars(cluster))


def test_the_link_of_the_shell_signs_in_and_only_its_key_does(runs: ExampleRuns) -> None:
    settings = Settings(
        runs, KeyAccess("k3y"), PublishedRecipes(None, None), key_in_url=True, secure_cookie=False
    )
    with TestClient(application(settings), follow_redirects=False) as client:
        assert client.get("/sign-in?key=other").status_code == 401
        response = client.get("/sign-in?key=k3y")
        assert (response.status_code, response.headers["Location"]) == (303, "/")
        assert client.get(RUN).status_code == 200


def test_an_unreachable_api_server_is_503_and_not_an_open_door(runs: ExampleRuns, tmp_path: Path) -> None:
    missing = ClusterAccess(AsyncConnection(kubeconfig=tmp_path / "none"))
    app = application(Settings(runs, missing, PublishedRecipes(None, None)))
    with TestClient(app) as client:
        response = client.get(RUN, headers=bearer())
    assert response.status_code == 503
    assert "llama3" not in response.text
