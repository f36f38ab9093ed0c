"""The operator's pods know the collector of traces, and may reach it."""

from typing import Any

import pytest

ENDPOINT = "http://collector.observability:4318"
ENABLED: dict[str, Any] = {
    "tracing": {"endpoint": ENDPOINT, "envSecret": "collector-token"},
    "networkPolicy": {"enabled": True},
}


def one(objects: list[dict[str, Any]], kind: str) -> dict[str, Any]:
    [found] = [
        each for each in objects if (each["kind"], each["metadata"]["name"]) == (kind, "megatron-operator")
    ]
    return found


def container(objects: list[dict[str, Any]]) -> dict[str, Any]:
    [found] = one(objects, "Deployment")["spec"]["template"]["spec"]["containers"]
    return dict(found)


def egress_ports(objects: list[dict[str, Any]]) -> list[int]:
    rules = one(objects, "NetworkPolicy")["spec"]["egress"]
    return [port["port"] for rule in rules for port in rule["ports"]]


def test_the_operator_gets_the_endpoint_and_the_secret(render: Any) -> None:
    found = container(render(ENABLED))
    assert {"name": "OTEL_EXPORTER_OTLP_ENDPOINT", "value": ENDPOINT} in found["env"]
    assert found["envFrom"] == [{"secretRef": {"name": "collector-token"}}]


def test_by_default_no_collector_is_known_and_no_port_is_open_for_it(render: Any) -> None:
    objects = render({"networkPolicy": {"enabled": True}})
    assert not [each for each in container(objects)["env"] if each["name"].startswith("OTEL")]
    assert egress_ports(objects) == [53, 53, 443, 6443, 8432]


@pytest.mark.parametrize(
    ("endpoint", "port"),
    [(ENDPOINT, 4318), ("https://10.1.2.3:443/otlp", 443), ("http://a-1.b:80", 80)],
)
def test_the_network_policy_allows_the_port_of_the_collector(render: Any, endpoint: str, port: int) -> None:
    objects = render(ENABLED | {"tracing": {"endpoint": endpoint}})
    assert egress_ports(objects)[5:] == [port]


def test_the_ports_of_the_collectors_pods_are_allowed_instead_if_given(render: Any) -> None:
    objects = render(ENABLED | {"tracing": {"endpoint": "http://collector:80", "ports": [4318, 4317]}})
    assert egress_ports(objects)[5:] == [4318, 4317]


@pytest.mark.parametrize(
    "endpoint",
    ["http://collector:65536", "collector:4318", "http://collector", "http://user:word@collector:1"],
)
def test_an_endpoint_without_scheme_or_port_is_refused(render: Any, endpoint: str) -> None:
    with pytest.raises(ValueError, match="tracing"):
        render({"tracing": {"endpoint": endpoint}})
