"""Stands in for trainer containers. KWOK's pods run nothing, so tests set their reports and their status."""

import json
import re
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final

from testkit.api_server import Api, Object

_POD_OF_JOB: Final = re.compile(r"(?P<place>.+-(?:master|worker)-[0-9]+)-[0-9]+-[a-z0-9]{5}")


def place_of(pod: str) -> str:
    """The place in the gang of the pod with this name: `run-worker-0`, also for `run-worker-0-0-x7k2p`."""
    found = _POD_OF_JOB.fullmatch(pod)
    return found["place"] if found else pod


class FakeProgressServer:
    """Serves /progress of all pods: the report of a test for a pod's place, or 503 where there is none."""

    def __init__(self) -> None:
        self.reports: dict[tuple[str, str], dict[str, Any]] = {}
        reports = self.reports

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                namespace, pod = self.path.strip("/").split("/")[:2]
                report = reports.get((namespace, place_of(pod)))
                self.send_response(200 if report else 503)
                self.end_headers()
                self.wfile.write(json.dumps(report or {}).encode())

            def log_message(self, format: str, *args: Any) -> None:
                """Log nothing."""

        ThreadingHTTPServer.request_queue_size = 256
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        self.url = f"http://127.0.0.1:{self._server.server_port}/{{namespace}}/{{pod}}/progress"

    def stop(self) -> None:
        """Stop serving."""
        self._server.shutdown()
        self._server.server_close()

    def set_report(self, namespace: str, place: str, **report: Any) -> None:
        """Set the report of a place, `run-worker-0`; fields not given are those of a run in training."""
        self.reports[namespace, place] = {
            "schema": 1,
            "phase": "training",
            "generation": 1,
            "rankRestarts": 0,
            "trainIters": 200,
            "stepSeconds": 0.1,
            **report,
        }


def terminate_container(
    api: Api,
    namespace: str,
    pod: str,
    code: int,
    message: str = "",
    reason: str = "Error",
    time: str = "2026-01-01T00:00:00Z",
) -> None:
    """Report the pod's container as terminated, as a kubelet does."""
    state = {"exitCode": code, "reason": reason, "message": message, "startedAt": time, "finishedAt": time}
    phase = "Succeeded" if code == 0 else "Failed"
    _set_container_state(api, namespace, pod, phase, {"terminated": state})


def set_container_waiting(api: Api, namespace: str, pod: str, reason: str, message: str) -> None:
    """Report the pod's container as waiting, as a kubelet does."""
    _set_container_state(api, namespace, pod, "Pending", {"waiting": {"reason": reason, "message": message}})


def _set_container_state(api: Api, namespace: str, pod: str, phase: str, state: Object) -> None:
    container = api.get("Pod", namespace, pod)["spec"]["containers"][0]
    status = {
        "name": container["name"],
        "image": container["image"],
        "imageID": "",
        "ready": False,
        "restartCount": 0,
        "state": state,
    }
    api.patch("Pod", namespace, pod, {"status": {"phase": phase, "containerStatuses": [status]}}, "status")
