"""The pages of journals, without a cluster and beside one, and `megatron ui --journals` as a process."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from http.cookiejar import CookieJar
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from megatron_contract.environment import HANGS_FOLDER, JOURNAL_FILE, PROGRESS_FILE
from megatron_operator.cli.main import cli
from megatron_operator.ui import journals
from megatron_operator.ui.access import KeyAccess
from megatron_operator.ui.app import Settings, application
from megatron_operator.ui.journals import Journals
from megatron_operator.ui.published import PublishedRecipes
from megatron_operator.ui.runs import Runs
from starlette.testclient import TestClient

from testkit.example_journals import UID, Start, write_run
from testkit.example_runs import NOW, ExampleRuns
from tests.unit.ui.conftest import KEY
from tests.unit.ui.test_pages import HOSTILE, live_parts


@pytest.fixture
def volume(tmp_path: Path) -> Path:
    """A checkpoint volume with two runs."""
    write_run(tmp_path / "checkpoints" / "llama3-8b", step=10)
    write_run(tmp_path / "checkpoints" / "tiny", [Start(1, 20)])
    return tmp_path / "checkpoints"


def client(volume: Path, runs: Runs | None, now: float = NOW) -> TestClient:
    options: dict[str, Any] = {"now": lambda: now, "journals": Journals([volume])}
    app = application(Settings(runs, KeyAccess(KEY), PublishedRecipes(None, None), **options))
    return TestClient(app, headers={"Authorization": f"Bearer {KEY}"})


@pytest.fixture
def page(volume: Path) -> Iterator[TestClient]:
    """The page without a cluster."""
    with client(volume, None) as found:
        yield found


def text_of(page: TestClient, path: str) -> str:
    response = page.get(path)
    assert response.status_code == 200, response.text
    return response.text


def links(page: TestClient) -> list[str]:
    return re.findall(r'<a href="(/journals/[^"]+)"', text_of(page, "/journals"))


def test_without_a_cluster_the_first_page_lists_the_journals(page: TestClient, volume: Path) -> None:
    text = text_of(page, "/")
    assert "2 runs" in text
    assert '<span class="namespace">checkpoints/</span>llama3-8b</a>' in text
    assert f'<span class="recipe">{volume / "llama3-8b"}</span>' in text
    assert "PodsReplaced" in text
    assert "node 2 was replaced" in text
    assert "GPU hours" not in text
    assert '<a href="/">Runs</a>' not in text
    assert "tiny" not in text_of(page, "/journals?text=8B")


def test_a_journal_has_its_course_with_marks_its_incidents_checkpoints_and_timeline(
    page: TestClient, volume: Path
) -> None:
    text = text_of(page, links(page)[0])
    assert '<span class="badge">journal</span>' in text
    assert re.findall("<figcaption>([^<]+)", text) == ["Loss", "Learning rate", "Tokens per second"]
    assert text.count("<polyline") == 3
    assert text.count('class="incident-label"') == 9
    assert "incident 2 at iteration 2451: rank 3 is stopped" in text
    assert "node 1 rank 3; resumed from iteration 2,000" in text
    assert 'class="part-redo"' in text
    assert re.search(r"12 found\..* complete one is of iteration 6,000", text)
    assert "The directory does not have the recipe" in text
    assert UID in text
    assert re.search(r"<td>Started</td>", text)
    assert str(volume / "llama3-8b") in text


def test_the_page_of_a_run_that_ended_long_ago_is_not_refreshed(page: TestClient, volume: Path) -> None:
    path = links(page)[1]
    assert "refresh-seconds" not in text_of(page, path)
    with client(volume, None, now=1_767_258_600.0) as live:
        assert 'name="refresh-seconds" content="20"' in text_of(live, path)


def test_a_file_that_is_not_read_to_its_end_is_reported_and_the_page_refreshed_soon(
    page: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journals, "READ_SECONDS", 0.0)
    monkeypatch.setattr("megatron_operator.ui.journal_progress.CHUNK", 16 << 10)
    path = links(page)[0]
    text = text_of(page, path)
    assert re.search(r"progress.jsonl is large: \d+ % of it is read so far", text)
    assert 'name="refresh-seconds" content="2"' in text
    assert "Goodput" not in text
    for _ in range(20):
        text = text_of(page, path)
    assert "is read so far" not in text
    assert "Goodput" in text


def test_the_page_has_the_main_threads_of_a_hang_first_those_of_the_rank_that_was_waited_for(
    page: TestClient,
) -> None:
    section = text_of(page, links(page)[0]).partition('<h2 id="hangs">')[2].partition("</section>")[0]
    assert re.findall(r"<summary>(.+?)</summary>", section) == ["Node 1", "Node 0"]
    first, second = re.findall(r"<pre[^>]*>(.*?)</pre>", section, re.DOTALL)
    assert "rank 3 (pid 44): stopped, 2460 iterations done, training\n  no answer" in first
    assert re.search(r"line \d+ in get_grad_norm_fp32", first)
    assert "rank 0 (pid 41)" in second
    assert "threading.py" not in section, "only main threads"
    assert "hangs/20260101T180255Z-generation-2" in section
    assert 'id="hangs"' not in text_of(page, links(page)[1])


def test_a_journal_without_a_hang_has_the_place_for_one(page: TestClient) -> None:
    with_hang, without = (text_of(page, path) for path in links(page))
    assert '<h2 id="hangs">' not in without
    assert "hang-stacks" in live_parts(with_hang)
    assert live_parts(without) == live_parts(with_hang)


def test_stacks_of_hangs_are_few_and_bounded_and_what_cannot_be_read_is_reported(
    page: TestClient, volume: Path
) -> None:
    hangs = volume / "llama3-8b" / HANGS_FOLDER
    shutil.rmtree(hangs)
    for number in range(10, 20):
        folder = hangs / f"20260102T0000{number}Z-generation-{number}"
        folder.mkdir(parents=True)
        os.mkfifo(folder / "node-0.txt")
        for node in range(1, 40):
            (folder / f"node-{node}.txt").touch()
        (folder / "node-1.txt").write_text("rank 1 (pid 2): running\n" + "  File <b>\n" * 200_000)
    (hangs / "20269999T999999Z-generation-9").mkdir()
    (hangs / "notes").mkdir()
    text = text_of(page, links(page)[0])
    assert len(text) < 400_000
    section = text.partition('<h2 id="hangs">')[2].partition("</section>")[0]
    times = re.findall(r"<h3>(.+?)</h3>", section)
    assert times == ["20269999T999999Z", "2026-01-02 00:00:19 UTC", "2026-01-02 00:00:18 UTC"]
    assert section.count("it is not a regular file") == 2
    assert "of 2 of 40 pods" in section
    assert "File &lt;b&gt;" in section


def test_two_journals_are_compared_by_uid_or_by_folder_and_name(page: TestClient) -> None:
    first = text_of(page, links(page)[0])
    [reference] = re.findall(r'href="/compare\?a=([^"]+)"', first)
    text = text_of(page, f"/compare?a={reference}&b=checkpoints/tiny")
    assert text.count('class="line-0"') == text.count('class="line-1"') == 3
    assert "checkpoints/llama3-8b (journal)</a>" in text
    assert "Not compared: a journal does not record the recipe." in text
    assert re.search(r'<th scope="row">Iteration</th><td>5,991</td><td>20</td>', text)
    assert set(links(page)) <= set(re.findall(r'<a href="([^"]+)"', text))
    assert page.get("/compare?a=checkpoints/tiny&b=checkpoints/missing").status_code == 404
    assert page.get("/compare?a=checkpoints/tiny&b=checkpoints/tiny@journal-0").status_code == 404


def test_beside_a_cluster_journals_have_their_own_list_and_are_compared_with_its_runs(
    volume: Path, runs: ExampleRuns
) -> None:
    with client(volume, runs) as page:
        text = text_of(page, "/")
        assert "llama3-8b-web" in text
        assert '<a href="/journals">Journals</a>' in text
        assert len(links(page)) == 2
        text = text_of(page, "/compare?a=research/llama3-8b-web&b=checkpoints/llama3-8b")
        assert text.count('class="line-1"') == 3
        assert re.search(r'<th scope="row">Recipe</th><td>llama3-8b</td><td>not recorded</td>', text)


def test_pages_without_journals_do_not_have_them(runs: ExampleRuns) -> None:
    app = application(Settings(runs, KeyAccess(KEY), PublishedRecipes(None, None)))
    with TestClient(app, headers={"Authorization": f"Bearer {KEY}"}) as page:
        assert "/journals" not in text_of(page, "/")
        assert page.get("/journals").status_code == 404


def test_journals_need_a_sign_in_and_an_unknown_one_is_not_found(page: TestClient) -> None:
    assert page.get("/journals/journal-0").status_code == 404
    for path in ("/", "/journals", links(page)[0]):
        assert page.get(path, headers={"Authorization": "Bearer other"}).status_code == 401


def test_text_of_journals_is_escaped(tmp_path: Path) -> None:
    save = write_run(tmp_path / 'x"><script>alert(1)<' / "a<b>&", [Start(1, 20), Start(11, 30)])
    journal = json.loads((save / JOURNAL_FILE).read_text())
    journal["incidents"] = [{"generation": 2, "detectedAt": 1e9, "kind": HOSTILE, "cause": HOSTILE}]
    journal["pending"] = {"cause": HOSTILE}
    (save / JOURNAL_FILE).write_text(json.dumps(journal))
    (save / "owner.json").write_text(json.dumps({"runId": HOSTILE}))
    with client(save, None) as page:
        for path in ("/", links(page)[0]):
            text = text_of(page, path)
            assert "a&lt;b&gt;&amp;" in text
            assert "<script>alert" not in text
            assert "<img" not in text


def test_what_cannot_be_read_is_on_the_page_with_its_path_and_what_to_do(
    page: TestClient, volume: Path
) -> None:
    (volume / "llama3-8b" / PROGRESS_FILE).unlink()
    (volume / "llama3-8b" / PROGRESS_FILE).mkdir()
    problem = f"{PROGRESS_FILE} cannot be read: it is not a regular file; move it away"
    assert f"<span>{problem}" in text_of(page, "/")
    text = text_of(page, links(page)[0])
    assert f"{volume / 'llama3-8b'}/{problem}" in text
    assert "There is no iteration to draw." in text
    assert "rank 11 was killed by SIGKILL" in text


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--journals", "/missing"], "--journals /missing: cannot be read: No such file or directory"),
        (["--journals", "/missing", "--token-review"], "leave out --token-review"),
    ],
)
def test_journals_that_cannot_be_shown_are_refused_with_a_fix(arguments: list[str], message: str) -> None:
    found = CliRunner().invoke(cli, ["ui", *arguments])
    assert found.exit_code == 2
    assert message in " ".join(found.output.split())


def test_a_cluster_that_is_named_is_asked_beside_the_journals(volume: Path) -> None:
    found = CliRunner().invoke(cli, ["ui", "--journals", str(volume), "--kubeconfig", "/missing"])
    assert found.exit_code == 2
    assert "no cluster is configured (/missing)" in found.output


def test_the_shell_serves_journals_without_any_kubeconfig(volume: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-c", "from megatron_operator.cli.main import main; main()"]
    environment = {**os.environ, "KUBECONFIG": "/missing", "HOME": str(tmp_path)}
    arguments = ["ui", "--port", "0", "--journals", str(volume / "tiny"), "--journals", str(volume)]
    process = subprocess.Popen([*command, *arguments], stdout=subprocess.PIPE, text=True, env=environment)
    try:
        assert process.stdout is not None
        link = process.stdout.readline().strip()
        opener = urllib.request.build_opener(urllib.request.HTTPCookieProcessor(CookieJar()))
        text = opener.open(link).read().decode()
        assert "2 runs" in text
        assert "the user of this shell" in text
        page = link.split("/sign-in")[0]
        [tiny, _] = sorted(re.findall(r'"(/journals/[^"]+)"', text), key=lambda each: "tiny" not in each)
        assert "<polyline" in opener.open(page + tiny).read().decode()
    finally:
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 0
