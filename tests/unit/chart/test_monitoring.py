"""The objects for the Prometheus Operator, and the alerts by the real promtool."""

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from megatron_contract.environment import PROGRESS_PORT_NAME
from megatron_operator.api.labels import LABEL_RECIPE, LABEL_ROLE
from megatron_operator.manifests.metadata import ROLE_TRAINER

ROOT = Path(__file__).parents[3]
ALERTS = ROOT / "charts" / "megatron-operator" / "files" / "alerts.yaml"
PAGE = ROOT / "docs" / "monitoring.md"
CASES = Path(__file__).with_name("alerts_test.yaml")
OF_OTHERS = {"kubelet_volume_stats_available_bytes", "kubelet_volume_stats_capacity_bytes"}
ENABLED = {
    "enabled": True,
    "prometheusOperator": {"monitors": True, "rules": True, "labels": {"release": "a"}},
}


def of_kind(objects: list[dict[str, Any]], kind: str) -> dict[str, Any]:
    [found] = [item for item in objects if item["kind"] == kind]
    assert found["metadata"]["labels"]["release"] == "a"
    spec: dict[str, Any] = found["spec"]
    return spec


def rules() -> list[dict[str, Any]]:
    """The alerts and recording rules of the file."""
    return [rule for group in yaml.safe_load(ALERTS.read_text())["groups"] for rule in group["rules"]]


def without_space(query: str) -> str:
    return re.sub(r"\s", "", query)


def known_series() -> set[str]:
    """Names that a scrape of the operator and of a trainer pod has."""
    suffixes = {"counter": ["_total"], "histogram": ["_bucket", "_sum", "_count"], "gauge": [""]}
    found = set()
    for line in (ROOT / "tests" / "unit" / "surface" / "metrics.txt").read_text().splitlines():
        source, name, *kind = line.split()
        endings = suffixes[kind[0]] if source == "operator" else [""]
        found |= {name.split("{")[0] + ending for ending in endings}
    return found


def test_without_the_options_no_object_of_the_prometheus_operator_is_created(render: Any) -> None:
    assert not [item for item in render({}) if item["apiVersion"].startswith("monitoring.coreos.com")]


def test_monitors_select_the_operators_service_and_trainer_pods_by_port(render: Any) -> None:
    objects = render({"metrics": ENABLED})
    service_monitor, pod_monitor = of_kind(objects, "ServiceMonitor"), of_kind(objects, "PodMonitor")
    [service] = [item for item in objects if item["kind"] == "Service"]
    assert service_monitor["selector"]["matchLabels"].items() <= service["metadata"]["labels"].items()
    [endpoint] = service_monitor["endpoints"]
    assert endpoint["port"] in [port["name"] for port in service["spec"]["ports"]]
    assert endpoint["honorLabels"], "else Prometheus replaces the run's namespace by the operator's"

    assert pod_monitor["selector"]["matchLabels"] == {LABEL_ROLE: ROLE_TRAINER}
    assert pod_monitor["namespaceSelector"] == {"any": True}
    [endpoint] = pod_monitor["podMetricsEndpoints"]
    assert endpoint["port"] == PROGRESS_PORT_NAME
    [relabeling] = endpoint["relabelings"]
    label = "__meta_kubernetes_pod_label_" + re.sub(r"[./]", "_", LABEL_RECIPE)
    assert relabeling == {"sourceLabels": [label], "targetLabel": "recipe"}


def test_a_namespaced_release_monitors_its_namespaces_alone(render: Any) -> None:
    objects = render({"metrics": ENABLED, "watchNamespaces": ["research"]})
    assert of_kind(objects, "PodMonitor")["namespaceSelector"] == {"matchNames": ["research"]}


@pytest.mark.parametrize("option", ["monitors", "rules"])
def test_objects_that_need_metrics_are_refused_without_them(option: str, render: Any) -> None:
    """Without metrics MegatronOperatorDown, the absence of a series, fires and never ends."""
    with pytest.raises(ValueError, match="enabled"):
        render({"metrics": {"prometheusOperator": {option: True}}})


def test_the_rule_object_has_the_alerts_of_the_file(render: Any) -> None:
    assert of_kind(render({"metrics": ENABLED}), "PrometheusRule") == yaml.safe_load(ALERTS.read_text())


@pytest.mark.parametrize(
    ("monitors", "policies", "warned"),
    [
        (True, {"enabled": True}, True),
        (True, {"enabled": True, "metricsFrom": ["monitoring"]}, False),
        (True, {"enabled": False}, False),
        (True, None, False),
        (False, {"enabled": True}, False),
    ],
)
def test_the_notes_warn_where_prometheus_is_kept_from_trainer_pods(
    monitors: bool, policies: dict[str, Any] | None, warned: bool, notes: Any
) -> None:
    platform = {} if policies is None else {"networkPolicies": policies}
    metrics = {"enabled": True, "prometheusOperator": {"monitors": monitors}}
    text = notes({"metrics": metrics, "platform": platform})
    assert ("`platform.networkPolicies.metricsFrom` is empty" in text) == warned


def test_alerts_read_series_that_exist() -> None:
    recorded = {rule["record"] for rule in rules() if "record" in rule}
    used = {
        name for rule in rules() for name in re.findall(r"\b(?:megatron|kubelet)[_:][\w:]+", rule["expr"])
    }
    assert used <= known_series() | recorded | OF_OTHERS


def test_every_alert_has_a_case() -> None:
    cases = yaml.safe_load(CASES.read_text())["tests"]
    fired = {
        test["alertname"]
        for case in cases
        for test in case.get("alert_rule_test", [])
        if test.get("exp_alerts")
    }
    assert fired == {rule["alert"] for rule in rules() if "alert" in rule}


def test_the_page_has_every_alert_and_every_recording_rule() -> None:
    page = PAGE.read_text()
    assert re.findall(r"^\| `(Megatron\w+)` \|", page, re.M) == [
        rule["alert"] for rule in rules() if "alert" in rule
    ]
    assert re.findall(r"^\| `(megatron:[\w:]+)` \|", page, re.M) == [
        rule["record"] for rule in rules() if "record" in rule
    ]


def test_every_recording_rule_is_read_by_an_alert_or_another_rule() -> None:
    read = " ".join(rule["expr"] for rule in rules())
    assert [rule["record"] for rule in rules() if rule.get("record", read) not in read] == []


def test_the_queries_of_the_page_have_cases() -> None:
    cases = yaml.safe_load(CASES.read_text())["tests"]
    held = {without_space(test["expr"]) for case in cases for test in case.get("promql_expr_test", [])}
    shown = re.findall(r"^\| [^|]+ \| `(sum by [^`]+)`", PAGE.read_text(), re.M)
    assert len(shown) == 3
    assert {without_space(query) for query in shown} == held


def test_alerts_fire_in_the_cases_and_only_there() -> None:
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("no promtool on PATH: it is in Debian's package prometheus")
    done = subprocess.run(
        [promtool, "test", "rules", str(CASES)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
