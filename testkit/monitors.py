"""The targets of the chart's monitors, for a Prometheus: the relabelling of the Prometheus Operator.

Debian's Prometheus is built without discovery of Kubernetes. `serve_targets` lists pods and endpoints for it
over HTTP, with the labels that Prometheus' own discovery gives them. Restricted to the fields that the
monitors have: another one raises ValueError, so that it is not ignored.
"""

import contextlib
import json
import re
import threading
from collections.abc import Iterable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from testkit.api_server import Api

Object = dict[str, Any]
_META = "__meta_kubernetes_"
_ENDPOINTS = {"PodMonitor": "podMetricsEndpoints", "ServiceMonitor": "endpoints"}
_PORT = {"PodMonitor": "pod_container_port_name", "ServiceMonitor": "endpointslice_port_name"}
_SELECTED = {"PodMonitor": "pod", "ServiceMonitor": "service"}


def scrape_configs(monitors: Iterable[Object], discovery: str) -> list[Object]:
    """`scrape_configs` for monitors, with the URL of `serve_targets`. Raises ValueError, KeyError."""
    return [
        _scrape(monitor, endpoint, discovery)
        for monitor in monitors
        for endpoint in monitor["spec"][_ENDPOINTS[monitor["kind"]]]
    ]


def _scrape(monitor: Object, endpoint: Object, discovery: str) -> Object:
    kind, spec, metadata = monitor["kind"], monitor["spec"], monitor["metadata"]
    _require_known(spec, {"selector", "namespaceSelector", _ENDPOINTS[kind]})
    _require_known(spec["selector"], {"matchLabels"})
    _require_known(endpoint, {"port", "interval", "honorLabels", "relabelings"})
    namespaces = spec.get("namespaceSelector", {"matchNames": [metadata["namespace"]]})
    _require_known(namespaces, {"any", "matchNames"})
    kept = {_label(_SELECTED[kind], name): value for name, value in spec["selector"]["matchLabels"].items()}
    kept[_PORT[kind]] = endpoint["port"]
    if not namespaces.get("any"):
        kept["namespace"] = "|".join(namespaces["matchNames"])
    targets = {"namespace": "namespace", "pod_name": "pod", "pod_container_name": "container"}
    if kind == "ServiceMonitor":
        targets["service_name"] = "service"
    return {
        "job_name": f"{kind}/{metadata['namespace']}/{metadata['name']}",
        "http_sd_configs": [{"url": f"{discovery}/{kind}", "refresh_interval": "5s"}],
        "honor_labels": endpoint.get("honorLabels", False),
        "scrape_interval": endpoint["interval"],
        "scrape_timeout": endpoint["interval"],
        "relabel_configs": [
            {"action": "drop", "source_labels": [f"{_META}pod_phase"], "regex": "Failed|Succeeded"},
            *({"action": "keep", "source_labels": [f"{_META}{n}"], "regex": v} for n, v in kept.items()),
            *({"source_labels": [f"{_META}{n}"], "target_label": target} for n, target in targets.items()),
            *map(_relabeling, endpoint.get("relabelings", [])),
        ],
    }


def _require_known(found: Object, known: set[str]) -> None:
    if unknown := found.keys() - known:
        raise ValueError(f"{sorted(unknown)} of a monitor are not translated; known: {sorted(known)}")


def _label(of: str, name: str) -> str:
    return f"{of}_label_{re.sub(r'[^A-Za-z0-9_]', '_', name)}"


def _relabeling(given: Object) -> Object:
    _require_known(given, {"sourceLabels", "targetLabel"})
    return {"source_labels": given["sourceLabels"], "target_label": given["targetLabel"]}


@contextlib.contextmanager
def serve_targets(api: Api) -> Iterator[str]:
    """The URL of a server with the targets of PodMonitors and ServiceMonitors, read at each request."""
    found = {"/PodMonitor": _pods, "/ServiceMonitor": _endpoints}

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = json.dumps(list(found[self.path](api))).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None: ...

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


def _target(address: str, port: int, labels: dict[str, str]) -> Object:
    return {
        "targets": [f"{address}:{port}"],
        "labels": {f"{_META}{name}": value for name, value in labels.items()},
    }


def _labels_of(kind: str, item: Object) -> dict[str, str]:
    metadata = item["metadata"]
    own = {_label(kind, name): value for name, value in metadata.get("labels", {}).items()}
    return {"namespace": metadata["namespace"], f"{kind}_name": metadata["name"], **own}


def _pods(api: Api) -> Iterator[Object]:
    for pod in api.list("Pod", None):
        if not (address := pod["status"].get("podIP")):
            continue
        labels = _labels_of("pod", pod) | {"pod_phase": pod["status"]["phase"]}
        for container in pod["spec"]["containers"]:
            for port in container.get("ports", []):
                of_port = {
                    "pod_container_name": container["name"],
                    "pod_container_port_name": port.get("name", ""),
                }
                yield _target(address, port["containerPort"], labels | of_port)


def _endpoints(api: Api) -> Iterator[Object]:
    services = {(s["metadata"]["namespace"], s["metadata"]["name"]): s for s in api.list("Service", None)}
    for each in api.list("EndpointSlice", None):
        metadata = each["metadata"]
        of = (metadata["namespace"], metadata.get("labels", {}).get("kubernetes.io/service-name"))
        if of not in services:
            continue
        labels = _labels_of("service", services[of])
        for endpoint in each.get("endpoints") or []:
            pod = {"pod_name": (endpoint.get("targetRef") or {}).get("name", "")}
            for port in each.get("ports") or []:
                named = {"endpointslice_port_name": port.get("name", "")}
                yield _target(endpoint["addresses"][0], port["port"], labels | pod | named)
