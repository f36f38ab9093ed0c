"""Stand-in for what trainer containers do: KWOK's pods run nothing, so tests speak for them."""

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from testkit.api_server import Api, Object
from tests.control_plane.eventually import eventually


class ProgressStandIn:
    """Answers for /progress of any pod what the test wrote down; 503 for pods that nobody spoke for."""

    def __init__(self) -> None:
        self.reports: dict[tuple[str, str], dict[str, Any]] = {}
        reports = self.reports

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                namespace, pod = self.path.strip("/").split("/")[:2]
                report = reports.get((namespace, pod))
                self.send_response(200 if report else 503)
                self.end_headers()
                self.wfile.write(json.dumps(report or {}).encode())

            def log_message(self, format: str, *args: Any) -> None:
                """Say nothing."""

        ThreadingHTTPServer.request_queue_size = 256
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        self.url = f"http://127.0.0.1:{self._server.server_port}/{{namespace}}/{{pod}}/progress"

    def stop(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    def say(self, namespace: str, pod: str, **report: Any) -> None:
        """The pod's answer from now on; what is not said is as of a run in training."""
        self.reports[namespace, pod] = {
            "schema": 1,
            "phase": "training",
            "generation": 1,
            "rankRestarts": 0,
            "trainIters": 200,
            "stepSeconds": 0.1,
            **report,
        }


def end_container(
    api: Api, namespace: str, pod: str, code: int, message: str = "", reason: str = "Error"
) -> None:
    """Let the pod's container end, as a kubelet would report it."""
    now = "2026-01-01T00:00:00Z"
    body = api.get("Pod", namespace, pod)
    container = body["spec"]["containers"][0]
    ended = {"exitCode": code, "reason": reason, "message": message, "startedAt": now, "finishedAt": now}
    status = {
        "name": container["name"],
        "image": container["image"],
        "imageID": "",
        "ready": False,
        "restartCount": 0,
        "state": {"terminated": ended},
    }
    phase = "Succeeded" if code == 0 else "Failed"
    api.patch("Pod", namespace, pod, {"status": {"phase": phase, "containerStatuses": [status]}}, "status")


def hold_container(api: Api, namespace: str, pod: str, reason: str, message: str) -> None:
    """Let the pod's container wait, as a kubelet would report it."""
    body = api.get("Pod", namespace, pod)
    container = body["spec"]["containers"][0]
    status: Object = {
        "name": container["name"],
        "image": container["image"],
        "imageID": "",
        "ready": False,
        "restartCount": 0,
        "state": {"waiting": {"reason": reason, "message": message}},
    }
    api.patch(
        "Pod", namespace, pod, {"status": {"phase": "Pending", "containerStatuses": [status]}}, "status"
    )


def running_pods(api: Api, namespace: str, names: set[str]) -> dict[str, Object]:
    """The pods of these names, once all run."""

    def look() -> dict[str, Object] | None:
        pods = {pod["metadata"]["name"]: pod for pod in api.list("Pod", namespace)}
        if names <= pods.keys() and all(pods[name]["status"].get("phase") == "Running" for name in names):
            return {name: pods[name] for name in names}
        return None

    return eventually(look, f"pods {sorted(names)} run") or {}
