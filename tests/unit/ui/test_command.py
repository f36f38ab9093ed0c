"""`megatron ui` as a process, and what it refuses."""

import re
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from http.cookiejar import CookieJar
from pathlib import Path

import pytest
from click.testing import CliRunner
from megatron_operator.cli.main import cli
from megatron_operator.sdk import Connection, Recipe, Run

from testkit.api_stand_in import ApiStandIn


def test_the_page_of_the_shell_opens_by_its_link_only(api: ApiStandIn, kubeconfig: Path) -> None:
    recipe = Recipe("tiny-gpt", name="tiny", accelerator="cpu", count=4, data={"mockData": True})
    with Connection(kubeconfig=kubeconfig) as connection:
        Run.apply(recipe, connection)
    command = [sys.executable, "-c", "from megatron_operator.cli.main import main; main()"]
    arguments = ["ui", "--port", "0", "--kubeconfig", str(kubeconfig)]
    process = subprocess.Popen([*command, *arguments], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        link = process.stdout.readline().strip()
        assert re.fullmatch(r"http://127\.0\.0\.1:\d+/sign-in\?key=[\w-]{43}", link)
        api.wait_for_watch(1)
        page = link.split("/sign-in")[0]
        with pytest.raises(urllib.error.HTTPError, match="401"):
            urllib.request.urlopen(f"{page}/")
        opener = urllib.request.build_opener(urllib.request.HTTPCookieProcessor(CookieJar()))
        assert "research/</span>tiny" in opener.open(link).read().decode()
    finally:
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--address", "0.0.0.0"], "add --token-review"),
        (["-n", "a", "-A"], "give one of -n, --all-namespaces and --watch-namespaces"),
        (["--tls-key", __file__], "give both --tls-certificate and --tls-key"),
        (["--kubeconfig", "/missing"], "no cluster is configured (/missing)"),
        (["--port", "70000"], "70000 is not in the range"),
        (["--archive-size", "2Gi"], "add --archive FILE"),
        (["--archive", "x", "--archive-size", "2 GB"], "invalid quantity '2 GB'; use for example 2Gi"),
        (["--archive", "x", "--archive-size", "1Mi"], "1Mi is below 64Mi; set at least 64Mi"),
    ],
)
def test_what_cannot_be_served_is_refused_with_a_fix(arguments: list[str], message: str) -> None:
    found = CliRunner().invoke(cli, ["ui", *arguments])
    assert found.exit_code == 2
    assert message in found.output


def test_an_archive_that_cannot_be_used_is_refused_by_its_name(kubeconfig: Path, tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("not a database\n" * 1000)
    arguments = ["ui", "--port", "0", "--kubeconfig", str(kubeconfig), "--archive", str(path)]
    found = CliRunner().invoke(cli, arguments)
    assert found.exit_code == 2
    assert "file is not a database" in found.output
    assert "move the file away" in found.output


def test_a_run_that_was_deleted_is_still_shown_after_the_page_was_started_again(
    api: ApiStandIn, kubeconfig: Path, tmp_path: Path
) -> None:
    recipe = Recipe("tiny-gpt", name="tiny", accelerator="cpu", count=4, data={"mockData": True})
    with Connection(kubeconfig=kubeconfig) as connection:
        Run.apply(recipe, connection)
    command = [sys.executable, "-c", "from megatron_operator.cli.main import main; main()"]
    arguments = ["ui", "--port", "0", "--kubeconfig", str(kubeconfig), "--archive", str(tmp_path / "runs")]
    for number in (1, 2):
        process = subprocess.Popen([*command, *arguments], stdout=subprocess.PIPE, text=True)
        try:
            assert process.stdout is not None
            link = process.stdout.readline().strip()
            api.wait_for_watch(number)
            if number == 2:
                page = link.split("/sign-in")[0]
                opener = urllib.request.build_opener(urllib.request.HTTPCookieProcessor(CookieJar()))
                opener.open(link).read()
                # The list that found it missing is written within seconds.
                while "1 run" not in (text := opener.open(f"{page}/archive").read().decode()):
                    pass
                assert "research/</span>tiny" in text
        finally:
            process.send_signal(signal.SIGINT)
            assert process.wait(60) == 0
            assert process.stdout is not None
            process.stdout.close()
        if number == 1:
            api.remove("tiny")
