"""Pages of deleted runs, and what the archive adds to those of others."""

import asyncio
import re
from collections.abc import Iterator
from html import unescape
from pathlib import Path
from typing import Any

import pytest
from megatron_operator.sdk import AsyncConnection
from megatron_operator.ui.access import ClusterAccess, KeyAccess
from megatron_operator.ui.app import Settings, application
from megatron_operator.ui.archive import SMALLEST, Archive
from megatron_operator.ui.published import PublishedRecipes
from starlette.testclient import TestClient

from testkit.api_stand_in import ApiStandIn
from testkit.example_runs import NOW, ExampleRuns, training_run
from tests.unit.ui.conftest import KEY
from tests.unit.ui.test_pages import HOSTILE

DELETED = "/runs/research/gone"


@pytest.fixture
def archive(tmp_path: Path) -> Iterator[Archive]:
    """Two deleted runs, of which one has all that a run can have, and one of another namespace."""
    times = iter(NOW - 7200 + each for each in range(100_000))
    found = Archive(tmp_path / "runs.sqlite", "cluster", SMALLEST, lambda: next(times))
    recipe = training_run("gone")
    for iteration in range(1000, 61_000, 1000):
        recipe["status"]["progress"] |= {"iteration": iteration, "lmLoss": 2.0 + 1000 / iteration}
        recipe["status"]["phase"] = "Recovering" if iteration == 12_000 else "Training"
        recipe["status"]["checkpoint"] |= {"iteration": iteration}
        found.observe(
            recipe | {"status": dict(recipe["status"], progress=dict(recipe["status"]["progress"]))}
        )
        asyncio.run(found.flush())
    found.delete(recipe)
    found.delete(training_run("other", "teaching"))
    asyncio.run(found.flush())
    yield found
    found.close()


def settings(runs: ExampleRuns, access: Any, archive: Archive) -> Settings:
    options: dict[str, Any] = {"now": lambda: NOW, "archive": archive}
    return Settings(runs, access, PublishedRecipes(None, None), **options)


@pytest.fixture
def page(runs: ExampleRuns, archive: Archive) -> Iterator[TestClient]:
    app = application(settings(runs, KeyAccess(KEY), archive))
    with TestClient(app, headers={"Authorization": f"Bearer {KEY}"}) as client:
        yield client


@pytest.fixture
def shared(runs: ExampleRuns, archive: Archive, api: ApiStandIn, kubeconfig: Path) -> Iterator[TestClient]:
    """The page of a cluster, for alice."""
    api.tokens["token"] = {"username": "alice"}
    connection = AsyncConnection(kubeconfig=kubeconfig)
    app = application(settings(runs, ClusterAccess(connection), archive))
    with TestClient(app, headers={"Authorization": "Bearer token"}) as client:
        yield client
        client.portal.call(connection.close)  # type: ignore[union-attr]


def text_of(page: TestClient, path: str) -> str:
    response = page.get(path)
    assert response.status_code == 200, response.text
    return response.text


def test_a_deleted_run_has_its_course_timeline_ledger_and_recipe_and_is_marked(page: TestClient) -> None:
    text = text_of(page, DELETED)
    assert '<span class="badge">deleted</span>' in text
    assert "From the archive: this run was deleted, as the page noticed at 2026-01-04 10:" in text
    assert text.count("<polyline") == 4
    assert "Drawn from the archive: the run was deleted, and its pods with it." in text
    assert re.search(r"<td>Phase</td><td class=\"text\">Recovering</td>", text)
    assert "HangFound" in text
    assert 'class="part-train"' in text
    assert "The newest 20 that were reported" in text
    assert 'http-equiv="refresh"' not in text, "it does not change"
    assert "Tensor" not in text
    recipe = text_of(page, f"{DELETED}/recipe")
    assert "recipe: llama3-8b" in recipe


def test_the_ledger_of_a_deleted_run_ends_with_it(page: TestClient, archive: Archive) -> None:
    found = asyncio.run(archive.run("research", "gone"))
    assert found is not None
    hours = (found.until - 1_767_258_000.0) / 3600
    assert hours == pytest.approx(73, abs=0.1), "created on 1 January at 9:00"
    [total] = re.findall(r"</span> total</th><td[^>]*>([^<]+)</td>", text_of(page, DELETED))
    assert total == "3d01h"


def test_deleted_runs_are_listed_found_and_linked_by_uid(page: TestClient) -> None:
    text = text_of(page, "/archive")
    links = re.findall(r'<a href="(/runs/[^"]+)"', text)
    assert links == ["/runs/teaching/other?uid=teaching-other", "/runs/research/gone?uid=research-gone"]
    assert text_of(page, links[1]).count("<polyline") == 4
    assert re.findall(r'<a href="(/runs/[^"]+)"', text_of(page, "/archive?text=GONE")) == links[1:]
    assert re.findall(r'<a href="(/runs/[^"]+)"', text_of(page, "/archive?namespace=teaching")) == links[:1]
    assert '<a href="/archive">' in text_of(page, "/")
    assert "research/</span>gone" not in text_of(page, "/")


def test_links_within_the_page_of_a_deleted_run_stay_with_that_run(page: TestClient) -> None:
    text = unescape(text_of(page, f"{DELETED}?uid=research-gone&rank=3"))
    assert 'href="/runs/research/gone?uid=research-gone&rank=4&node=0#layout"' in text
    assert 'href="/runs/research/gone/recipe?uid=research-gone"' in text
    assert 'href="/compare?a=research/gone%40research-gone"' in text


def test_a_run_that_exists_goes_before_a_deleted_one_of_its_name(page: TestClient, runs: ExampleRuns) -> None:
    recipe = training_run("gone")
    recipe["metadata"]["uid"] = "its successor"
    runs.recipes["research", "gone"] = recipe
    assert "From the archive" not in text_of(page, DELETED)
    assert "From the archive" in text_of(page, f"{DELETED}?uid=research-gone")
    assert page.get(f"{DELETED}?uid=unknown").status_code == 404


def test_a_deleted_run_does_not_stand_for_one_of_its_name_that_may_exist(
    page: TestClient, runs: ExampleRuns
) -> None:
    runs.problem = "the runs have not been read yet"
    assert page.get(DELETED).status_code == 503
    uid = training_run("gone")["metadata"]["uid"]
    assert '<span class="badge">deleted</span>' in text_of(page, f"{DELETED}?uid={uid}")


def test_a_deleted_run_is_compared_with_one_that_exists(page: TestClient) -> None:
    text = text_of(page, "/compare?a=research/llama3-8b-web&b=research/gone@research-gone")
    assert text.count('class="line-0"') == text.count('class="line-1"') == 4
    assert "research/gone (deleted)</a>" in text
    assert re.search(r'class="legend">.* research/gone \(deleted\)</p>', text)


def test_two_deleted_runs_of_one_name_are_compared_under_their_uids(
    page: TestClient, archive: Archive
) -> None:
    first = training_run("gone")
    first["metadata"] |= {"uid": "first", "creationTimestamp": "2025-12-01T09:00:00Z"}
    archive.delete(first)
    asyncio.run(archive.flush())
    text = text_of(page, "/compare?a=research/gone@first&b=research/gone@research-gone")
    assert '">research/gone@first</a>' in text
    assert '">research/gone@research-gone</a>' in text


def test_ages_of_a_deleted_run_are_those_at_its_end(page: TestClient) -> None:
    listed = text_of(page, "/archive")
    assert re.search(r"HangFound 1\dh\d\dm before the end: rank 2 is stopped after", listed)
    shown = text_of(page, DELETED)
    assert re.search(r"iteration 60,000, [\d.]+ ?\w+ before the end", shown)
    assert " ago" not in listed + shown


def test_gpu_hours_of_deleted_runs_are_on_their_pages(page: TestClient) -> None:
    text = text_of(page, "/ledger")
    assert "Runs that were deleted are not counted" in text
    assert 'The page of each <a href="/archive">deleted run</a> has its ledger' in text


def test_deleted_runs_need_the_right_to_list_the_runs_of_their_namespace(
    shared: TestClient, api: ApiStandIn
) -> None:
    for rights in ((), (("alice", "get", "megatronrecipes", "teaching"),)):
        api.rights = set(rights)
        assert shared.get("/runs/research/gone").status_code == 403
        assert "gone" not in text_of(shared, "/archive")
        assert shared.get("/archive?namespace=research").status_code == 403


def test_who_may_list_a_namespace_sees_its_deleted_runs_only(shared: TestClient, api: ApiStandIn) -> None:
    api.rights = {("alice", "list", "megatronrecipes", "research")}
    text = text_of(shared, "/archive")
    assert "gone" in text
    assert "teaching" not in text
    assert text_of(shared, DELETED).count("<polyline") == 4
    assert shared.get("/runs/teaching/other").status_code == 403
    compare = "/compare?a=research/gone&b=teaching/other"
    assert shared.get(compare).status_code == 403


def test_who_may_get_a_run_but_not_list_them_does_not_see_it_once_it_is_deleted(
    shared: TestClient, api: ApiStandIn
) -> None:
    api.rights = {("alice", "get", "megatronrecipes", "research")}
    assert shared.get(DELETED).status_code == 404


def test_text_of_archived_runs_is_escaped(page: TestClient, archive: Archive) -> None:
    recipe = training_run("hostile")
    recipe["status"]["phase"] = HOSTILE
    recipe["status"]["conditions"][0] |= {"reason": HOSTILE, "message": HOSTILE}
    recipe["status"]["recovery"]["history"][0] |= {"cause": HOSTILE, "time": HOSTILE}
    recipe["status"]["checkpoint"]["time"] = HOSTILE
    archive.delete(recipe)
    asyncio.run(archive.flush())
    for path in ("/archive", "/runs/research/hostile"):
        text = text_of(page, path)
        assert "<script>alert" not in text
        assert "<img" not in text


def test_why_runs_are_not_archived_is_on_the_pages(page: TestClient, archive: Archive) -> None:
    archive.problem = "the archive /x cannot be written: database or disk is full"
    for path in ("/", "/archive", "/runs/research/llama3-8b-web"):
        assert archive.problem in text_of(page, path)


def test_without_an_archive_the_page_has_none_and_names_the_option(
    runs: ExampleRuns,
) -> None:
    app = application(Settings(runs, KeyAccess(KEY), PublishedRecipes(None, None)))
    with TestClient(app, headers={"Authorization": f"Bearer {KEY}"}) as client:
        assert '<a href="/archive">' not in text_of(client, "/")
        found = client.get("/archive")
        assert found.status_code == 404
        assert "start it with --archive (chart: ui.archive)" in found.text
