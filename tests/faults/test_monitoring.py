"""The dashboard's queries and the chart's web page, over a run that trains and loses a rank."""

import itertools
import json
import math
import os
import re
import subprocess
import threading
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
import yaml
from localcluster import Cluster

from testkit.api_server import Api
from testkit.faults.injections import FaultContext, kill_rank
from testkit.installation import OPERATOR_NAMESPACE, install_operator
from testkit.kubectl import Kubectl, find_tool
from testkit.monitors import scrape_configs, serve_targets
from testkit.prometheus import Prometheus, serve
from testkit.waiting import wait_until
from testkit.watched_run import WatchedRun
from tests.unit.chart.test_dashboard import DASHBOARD, queries

VALUES = "tests/faults/monitoring.yaml"
NAME, ITERATIONS = "observed", 100_000
EVAL_INTERVAL = 10
NO_PLANNED_TIMES = "the planner has no times of CPUs"
WITHOUT_SERIES = {
    ("MFU", 0): NO_PLANNED_TIMES,
    ("Step time against the plan", 1): NO_PLANNED_TIMES,
    ("Step time over the plan's", 0): NO_PLANNED_TIMES,
    ("Avoided nodes", 0): "no node of the run is bad",
    ("Cost of this week by namespace", 0): "its accelerators have no price",
}
"""Panels, and the numbers of their queries, that show nothing of such a run, with the reason."""
STALE = ("Stale objects in an hour", 0)
"""Has series only where a watch was interrupted, as on a busy machine."""


@pytest.fixture(scope="module")
def monitored(kubectl: Kubectl) -> Iterator[Kubectl]:
    """kubectl of a cluster whose operator has metrics and the page."""
    install_operator(kubectl, VALUES)
    yield kubectl
    install_operator(kubectl)


def monitors(kubectl: Kubectl) -> list[dict[str, Any]]:
    """The chart's ServiceMonitor and PodMonitor, with a short interval."""
    chart = ("megatron-operator", "charts/megatron-operator", "--kube-version", "1.36.3")
    options = "metrics.prometheusOperator.monitors=true,metrics.prometheusOperator.interval=2s"
    files = ("charts/megatron-operator/values-local-simulated.yaml", VALUES)
    rendered = kubectl.helm(
        "template", *chart, "--namespace", OPERATOR_NAMESPACE, "--show-only", "templates/monitoring.yaml",
        *(word for file in files for word in ("-f", file)), "--set", options,
    )  # fmt: skip
    return [each for each in yaml.safe_load_all(rendered) if each]


@pytest.fixture(scope="module")
def prometheus(monitored: Kubectl, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    """A server that scrapes what the chart's monitors select."""
    with serve_targets(Api(monitored.kubeconfig)) as discovery:
        config = {"scrape_configs": scrape_configs(monitors(monitored), discovery)}
        with serve(tmp_path_factory.mktemp("prometheus"), config) as server:
            yield server


@pytest.fixture(scope="module")
def run(monitored: Kubectl, prometheus: Prometheus) -> Iterator[WatchedRun]:  # noqa: ARG001
    """A run that trains, after an interruption which Prometheus has seen."""
    run = WatchedRun(monitored, NAME, ITERATIONS)
    run.manifest["spec"]["training"] |= {"evalIters": 1, "evalInterval": EVAL_INTERVAL}
    run.apply()
    before = run.settled()
    kill_rank(1, 0)(FaultContext(run, Cluster(quiet=True)))
    wait_until("the rank to be replaced", lambda: run.recovered_incidents(before.incidents))
    yield run
    run.delete()


def queries_by_panel() -> Iterator[tuple[tuple[str, int], str]]:
    """Each query of the dashboard, by the title of its panel and its number there."""
    numbers: Counter[str] = Counter()
    for title, query, _ in queries(json.loads(DASHBOARD.read_text())):
        yield (title, numbers[title]), query
        numbers[title] += 1


def values_of(prometheus: Prometheus, query: str, namespace: str) -> list[float]:
    """What a query of the dashboard answers for the run."""
    chosen = {"$namespace": namespace, "$run": NAME, "$__rate_interval": "5m"}
    expression = re.sub(r"\$[a-z_]\w+", lambda variable: chosen[variable[0]], query)
    return [float(each["value"][1]) for each in prometheus.query(expression)]


def test_every_query_of_the_dashboard_has_series_of_a_run_that_trains(
    run: WatchedRun, prometheus: Prometheus
) -> None:
    namespace, asked = run.kubectl.namespace, list(queries_by_panel())
    found: dict[tuple[str, int], list[float]] = {}

    def answered() -> bool:
        found.update({key: values_of(prometheus, query, namespace) for key, query in asked})
        return not missing()

    def missing() -> list[tuple[str, int]]:
        return [key for key, values in found.items() if not values and key not in {*WITHOUT_SERIES, STALE}]

    wait_until(lambda: f"series of {missing()}", answered)
    assert [key for key in WITHOUT_SERIES if found[key]] == []
    assert all(map(math.isfinite, itertools.chain(*found.values())))

    # What is known of the run without Prometheus.
    (loss,) = found["Loss", 0]
    assert loss in {record.loss for record in run.records()}
    assert found["Accelerators", 0] == [4]
    assert found["Interruptions", 0] == found["Interruptions by kind", 0] == [1]
    assert found["Incidents", 0] == [1], "the mark of the interruption"
    assert found["Leaders", 0] == [1]
    assert 0 < found["Iterations done", 0][0] < 1
    assert 0 < found["Goodput", 0][0] < 1


@dataclass(frozen=True)
class Page:
    """The page of the chart's Service, as `kubectl port-forward` reaches it."""

    url: str

    def get(self, path: str, token: str | None = None) -> tuple[int, str]:
        """Status and body."""
        headers = {} if token is None else {"Authorization": f"Bearer {token}"}
        try:
            with urllib.request.urlopen(
                urllib.request.Request(self.url + path, headers=headers), timeout=30
            ) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()


@pytest.fixture(scope="module")
def page(monitored: Kubectl) -> Iterator[Page]:
    """The command of docs/ui.md, with a free port."""
    command = ["-n", OPERATOR_NAMESPACE, "port-forward", "service/megatron-ui", ":8433"]
    environment = os.environ | {"KUBECONFIG": str(monitored.kubeconfig)}
    with subprocess.Popen(
        [find_tool("kubectl"), *command], env=environment, stdout=subprocess.PIPE, text=True
    ) as forward:
        assert forward.stdout is not None
        line = forward.stdout.readline()
        # It prints a line for each connection, and would wait for a reader.
        threading.Thread(target=forward.stdout.read, daemon=True).start()
        try:
            match = re.match(r"Forwarding from (127\.0\.0\.1:\d+) ", line)
            assert match is not None, line
            yield Page(f"http://{match[1]}")
        finally:
            forward.terminate()


def token_of(kubectl: Kubectl, account: str, *, may_read: bool) -> str:
    """A token of a new service account in the namespace of the run, with the role `view` or without."""
    kubectl.run("create", "serviceaccount", account)
    if may_read:
        subject = f"--serviceaccount={kubectl.namespace}:{account}"
        kubectl.run("create", "rolebinding", account, "--clusterrole=view", subject)
    return kubectl.run("create", "token", account).strip()


def shown(text: str) -> tuple[int, str | None]:
    """The iteration, and its loss where it is known, among the first lines of a run's page."""
    found = dict(re.findall(r"<dt>([^<]+)</dt><dd>([^<]+)</dd>", text))
    return int(found["Progress"].partition(" of ")[0].replace(",", "")), found.get("Loss")


def test_the_page_shows_the_run_to_whom_the_cluster_lets_read_it(
    run: WatchedRun, page: Page, monitored: Kubectl
) -> None:
    token = token_of(monitored, "viewer", may_read=True)
    path = f"/runs/{monitored.namespace}/{run.name}"

    status, text = page.get(f"/?namespace={monitored.namespace}", token)
    assert status == 200, text
    assert f'href="{path}"' in text
    row = text.partition(f'href="{path}"')[2].partition("</tr>")[0]
    assert re.search(r"[\d,]+ of 100,000", row), row

    def has_loss() -> str | None:
        status, text = page.get(path, token)
        assert status == 200, text
        return text if shown(text)[1] else None

    text = wait_until("the page to show a loss", has_loss)
    iteration, loss = shown(text)
    expected = {record.loss for record in run.records() if record.iteration == iteration}
    assert {loss} == {f"{each:.4g}" for each in expected}
    assert "killed by SIGKILL" in text
    assert "<figcaption>Loss</figcaption>" in text

    def moved() -> bool:
        return shown(page.get(path, token)[1])[0] > iteration

    wait_until(f"the page to show more than iteration {iteration}", moved)


def test_the_page_refuses_whom_the_cluster_does_not_let_read_the_run(
    run: WatchedRun, page: Page, monitored: Kubectl
) -> None:
    path = f"/runs/{monitored.namespace}/{run.name}"
    stranger = token_of(monitored, "stranger", may_read=False)
    for refused in (path, f"/?namespace={monitored.namespace}"):
        status, text = page.get(refused, stranger)
        assert status == 403
        assert run.name not in text.replace(path, "")
    status, text = page.get("/", stranger)
    assert (status, run.name in text) == (200, False)
    assert page.get(path)[0] == page.get(path, "wrong")[0] == 401
