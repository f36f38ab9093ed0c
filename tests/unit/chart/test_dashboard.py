"""The Grafana dashboard: its ConfigMap, and its queries compared with what operator and trainer export."""

import importlib
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[3]
DASHBOARD = ROOT / "charts" / "megatron-operator" / "files" / "dashboard.json"
METRICS = ROOT / "tests" / "unit" / "surface" / "metrics.txt"
OF_TARGET = {"namespace", "pod", "recipe"}
"""Labels that the PodMonitor adds to the series of trainer pods."""
FOR_COUNTERS = {"rate", "irate", "increase"}
FOR_GAUGES = {"delta", "deriv", "changes", "avg_over_time", "max_over_time", "min_over_time"}
SELECTOR = re.compile(r"\b(megatron_\w+)(?:\{([^}]*)\})?(\[[^\]]+\])?")


@dataclass(frozen=True)
class Series:
    """What is exported under a name."""

    labels: frozenset[str]
    counts: bool
    """Whether it only grows: a counter, or a series of a histogram."""


def exported() -> dict[str, Series]:
    """Series of the operator and of a trainer pod; test_surface.py compares the list with the registry."""
    found = {}
    for line in METRICS.read_text().splitlines():
        source, name, *kind = line.split()
        name, _, labels = name.rstrip("}").partition("{")
        if source == "trainer":
            found[name] = Series(frozenset({"node_rank", *OF_TARGET}), counts=False)
            continue
        own = frozenset(filter(None, labels.split(",")))
        if kind == ["gauge"]:
            found[name] = Series(own, counts=False)
        elif kind == ["counter"]:
            found[f"{name}_total"] = Series(own, counts=True)
        else:
            found[f"{name}_bucket"] = Series(own | {"le"}, counts=True)
            found |= {f"{name}_{part}": Series(own, counts=True) for part in ("sum", "count")}
    return found


def queries(dashboard: dict[str, Any]) -> Iterator[tuple[str, str, str]]:
    """Title, query and legend of every panel, annotation and variable."""
    for panel in dashboard["panels"]:
        for target in panel.get("targets", []):
            yield panel["title"], target["expr"], target["legendFormat"]
    for annotation in dashboard["annotations"]["list"]:
        yield annotation["name"], annotation["expr"], annotation["titleFormat"] + annotation["textFormat"]


@pytest.fixture(scope="module")
def dashboard() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(DASHBOARD.read_text())
    return found


def test_the_config_map_is_created_only_on_request(render: Any) -> None:
    names = [item["metadata"]["name"] for item in render({}) if item["kind"] == "ConfigMap"]
    assert "megatron-operator-dashboard" not in names


def test_the_config_map_has_the_file_where_the_sidecar_finds_it(render: Any) -> None:
    options = {"enabled": True, "namespace": "grafana", "annotations": {"grafana_folder": "Training"}}
    objects = render({"metrics": {"grafanaDashboard": options}})
    [found] = [item for item in objects if item["metadata"]["name"] == "megatron-operator-dashboard"]
    assert found["metadata"]["namespace"] == "grafana"
    assert found["metadata"]["labels"]["grafana_dashboard"] == "1"
    assert found["metadata"]["annotations"] == {"grafana_folder": "Training"}
    assert json.loads(found["data"]["megatron-operator.json"]) == json.loads(DASHBOARD.read_text())


@pytest.fixture
def scripts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes the generators importable."""
    monkeypatch.syspath_prepend(str(ROOT / "scripts"))


@pytest.mark.usefixtures("scripts")
def test_the_generated_files_are_current(dashboard: dict[str, Any]) -> None:
    generator = importlib.import_module("dashboard")
    assert dashboard == generator.dashboard(), "run make monitoring"
    reference = importlib.import_module("metrics_page")
    text = reference.PAGE.read_text()
    assert text == reference.page(text), "run make monitoring"


def test_the_metrics_reference_has_every_exported_metric() -> None:
    page = (ROOT / "docs" / "monitoring.md").read_text()
    listed = set(re.findall(r"^\| `(megatron_\w+)`", page, re.MULTILINE))
    of_histograms = re.compile(r"(.+)_(?:bucket|sum|count)")
    expected = {match[1] if (match := of_histograms.fullmatch(name)) else name for name in exported()}
    assert listed == expected


def test_panels_have_places_of_their_own(dashboard: dict[str, Any]) -> None:
    taken: set[tuple[int, int]] = set()
    for panel in dashboard["panels"]:
        at = panel["gridPos"]
        cells = {(at["x"] + x, at["y"] + y) for x in range(at["w"]) for y in range(at["h"])}
        assert not cells & taken, panel["title"]
        assert at["x"] + at["w"] <= 24
        taken |= cells
    assert len({panel["id"] for panel in dashboard["panels"]}) == len(dashboard["panels"])


def test_queries_name_series_and_labels_that_are_exported(dashboard: dict[str, Any]) -> None:
    known = exported()
    for title, query, legend in queries(dashboard):
        used = SELECTOR.findall(query)
        assert used, title
        for name, matchers, _ in used:
            assert name in known, f"{title}: {name}"
            selected = set(re.findall(r"(\w+)\s*(?:=~|!~|!=|=)", matchers))
            assert selected <= known[name].labels, f"{title}: labels of {name}"
        made = set(re.findall(r'label_replace\(.*?, "(\w+)", "\$1"', query))
        available = frozenset[str]().union(*(known[name].labels for name, _, _ in used)) | made
        kept = {label.strip() for group in re.findall(r"by \(([^)]*)\)", query) for label in group.split(",")}
        assert kept <= available, f"{title}: grouped by"
        assert set(re.findall(r"\{\{(\w+)\}\}", legend)) <= kept, f"{title}: legend"


def test_variables_are_read_from_labels_that_are_exported(dashboard: dict[str, Any]) -> None:
    _, *variables = dashboard["templating"]["list"]
    for variable in variables:
        match = re.fullmatch(r"label_values\((\w+)(?:\{.*\})?, (\w+)\)", variable["query"]["query"])
        assert match is not None
        assert match[2] in exported()[match[1]].labels
    assert [each["name"] for each in variables] == ["namespace", "run"]


def test_functions_fit_the_type_of_their_metric(dashboard: dict[str, Any]) -> None:
    known = exported()
    for title, query, _ in queries(dashboard):
        for match in SELECTOR.finditer(query):
            before = re.search(r"(\w+)\($", query[: match.start()])
            function = "" if before is None else before[1]
            if match[3] is None:
                assert not known[match[1]].counts, f"{title}: a counter without a rate"
            else:
                fitting = FOR_COUNTERS if known[match[1]].counts else FOR_GAUGES
                assert function in fitting, f"{title}: {function} of {match[1]}"
        for inner in re.findall(r"histogram_quantile\([\d.]+, (.*)\)", query):
            assert re.match(r"sum by \(le\) \(rate\(megatron_\w+_bucket\[", inner), title
