"""What a Prometheus scrapes for a monitor of the chart."""

from typing import Any

import pytest

from testkit.monitors import scrape_configs

DISCOVERY = "http://127.0.0.1:1"


def pod_monitor(**endpoint: Any) -> dict[str, Any]:
    return {
        "kind": "PodMonitor",
        "metadata": {"namespace": "system", "name": "trainers"},
        "spec": {
            "namespaceSelector": {"matchNames": ["research"]},
            "selector": {"matchLabels": {"megatron.training/role": "trainer"}},
            "podMetricsEndpoints": [{"port": "progress", "interval": "5s", **endpoint}],
        },
    }


def test_a_monitor_selects_pods_by_namespace_label_and_port() -> None:
    [found] = scrape_configs([pod_monitor()], DISCOVERY)
    assert found["http_sd_configs"][0]["url"] == f"{DISCOVERY}/PodMonitor"
    kept = {e["source_labels"][0]: e["regex"] for e in found["relabel_configs"] if e.get("action") == "keep"}
    assert kept == {
        "__meta_kubernetes_pod_label_megatron_training_role": "trainer",
        "__meta_kubernetes_pod_container_port_name": "progress",
        "__meta_kubernetes_namespace": "research",
    }
    assert (found["scrape_interval"], found["honor_labels"]) == ("5s", False)


def test_a_field_that_is_not_translated_is_refused() -> None:
    with pytest.raises(ValueError, match=r"\['metricRelabelings'\] of a monitor are not translated"):
        scrape_configs([pod_monitor(metricRelabelings=[])], DISCOVERY)
