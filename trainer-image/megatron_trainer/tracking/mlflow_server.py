"""A run on an MLflow server, over its REST API 2.0: no package of MLflow is needed.

The run is found by a tag with the id of the training run, so a restarted pod continues it.
"""

import base64
import json
import os
import re
import time
import urllib.error
import urllib.request
from http.client import HTTPException
from typing import Any, Final
from urllib.parse import quote

from megatron_contract.tracking import MlflowRun

from megatron_trainer.tracking.scalar_log import Position, Scalars
from megatron_trainer.tracking.tracker import TrackerError

RUN_TAG: Final = "megatron.training/run"
TIMEOUT_SECONDS: Final = 20
_MOST_METRICS: Final = 1000
"""Of one request, a limit of the API."""
_MOST_PARAMETERS: Final = 100
_STATUS: Final = {"finished": "FINISHED", "failed": "FAILED", "stopped": "KILLED"}


class MlflowServer:
    """The run of `run_id`. Credentials are MLflow's own variables: a token, or a user name and a password."""

    rewrites = False
    settle_seconds = 0.0
    run = ""
    """The server's id of the run."""

    def __init__(self, run: MlflowRun, run_id: str, parameters: dict[str, str]) -> None:
        self._run = run
        self._run_id = run_id
        self._parameters = parameters

    def open(self, position: Position) -> int | None:
        """Find the run of an earlier start, or create it. Raises TrackerError."""
        try:
            return self._open(position)
        except (KeyError, IndexError, TypeError, AttributeError) as error:
            raise TrackerError(f"{self._run.tracking_uri} answers unlike MLflow: {error!r}") from error

    def _open(self, position: Position) -> int | None:
        experiment = self._experiment()
        found = self._call(
            "POST",
            "runs/search",
            {
                "experiment_ids": [experiment],
                "filter": f"tags.`{RUN_TAG}` = '{self._run_id}'",
                "max_results": 1,
            },
        )
        if runs := found.get("runs"):
            self.run = runs[0]["info"]["run_id"]
            self._call("POST", "runs/update", {"run_id": self.run, "status": "RUNNING"})
            if position.run == self.run:
                return None
            # The newest value of each curve. The last iteration may lack some, so it is sent again.
            steps = [int(each.get("step", 0)) for each in runs[0].get("data", {}).get("metrics", [])]
            return max(steps, default=0) - 1
        tags = {RUN_TAG: self._run_id, "mlflow.runName": self._run.name or self._run_id}
        created = self._call(
            "POST",
            "runs/create",
            {
                "experiment_id": experiment,
                "run_name": self._run.name or self._run_id,
                "start_time": int(time.time() * 1000),
                "tags": [{"key": key, "value": value} for key, value in tags.items()],
            },
        )
        self.run = created["run"]["info"]["run_id"]
        parameters = [{"key": _name(key), "value": value[:500]} for key, value in self._parameters.items()]
        for start in range(0, len(parameters), _MOST_PARAMETERS):
            part = parameters[start : start + _MOST_PARAMETERS]
            self._call("POST", "runs/log-batch", {"run_id": self.run, "params": part})
        return -1

    def rewind(self, iteration: int) -> None:
        """Never called: the API cannot remove values."""
        raise NotImplementedError(iteration)

    def write(self, scalars: list[Scalars]) -> None:
        """Send values, at the times of the file: a database stores one that is sent twice once."""
        metrics = [
            {
                "key": _name(name),
                "value": value,
                "timestamp": int(each.time * 1000),
                "step": each.iteration,
            }
            for each in scalars
            for name, value in each.values.items()
        ]
        for start in range(0, len(metrics), _MOST_METRICS):
            part = metrics[start : start + _MOST_METRICS]
            self._call("POST", "runs/log-batch", {"run_id": self.run, "metrics": part})

    def close(self, ending: str) -> None:
        """Set the status of the run."""
        end = {"run_id": self.run, "status": _STATUS[ending], "end_time": int(time.time() * 1000)}
        self._call("POST", "runs/update", end)

    def _experiment(self) -> str:
        name = self._run.experiment
        try:
            found = self._call("GET", f"experiments/get-by-name?experiment_name={quote(name, safe='')}")
            return str(found["experiment"]["experiment_id"])
        except TrackerError as error:
            if error.status != 404:
                raise
            return str(self._call("POST", "experiments/create", {"name": name})["experiment_id"])

    def _call(self, method: str, path: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
        url = f"{self._run.tracking_uri.rstrip('/')}/api/2.0/mlflow/{path}"
        data = None if body is None else json.dumps(body).encode()
        try:
            return self._send(urllib.request.Request(url, data, _headers(), method=method))
        except (OSError, HTTPException, ValueError, OverflowError) as error:
            # The last one: a port above 65535.
            reason = getattr(error, "reason", None) or str(error) or type(error).__name__
            raise TrackerError(f"{self._run.tracking_uri} cannot be reached: {reason}") from error

    def _send(self, request: urllib.request.Request) -> dict[str, Any]:
        try:
            with _OPENER.open(request, timeout=TIMEOUT_SECONDS) as answer:
                found: dict[str, Any] = json.load(answer)
                return found
        except urllib.error.HTTPError as error:
            url = request.full_url.partition("?")[0]
            if target := error.headers.get("Location"):
                text = f"{url} redirects to {target.partition('?')[0]}; correct trackingUri"
            else:
                body = " ".join(error.read(2000).decode(errors="replace").split())[:300]
                text = f"{request.method} {url}: {error.code} {body}"
            raise TrackerError(text, error.code) from error


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """Another host must not get the credentials, and a POST would become a GET."""

    def redirect_request(self, *_: object) -> None:
        """Have the answer raised as HTTPError."""


_OPENER: Final = urllib.request.build_opener(_NoRedirects)


def _headers() -> dict[str, str]:
    headers = {"Content-Type": "application/json"}
    if token := os.environ.get("MLFLOW_TRACKING_TOKEN"):
        headers["Authorization"] = f"Bearer {token}"
    elif user := os.environ.get("MLFLOW_TRACKING_USERNAME"):
        password = os.environ.get("MLFLOW_TRACKING_PASSWORD", "")
        words = base64.b64encode(f"{user}:{password}".encode()).decode()
        headers["Authorization"] = f"Basic {words}"
    return headers


def _name(text: str) -> str:
    """A name with the characters that MLflow allows."""
    return re.sub(r"[^A-Za-z0-9_\-. /]", "_", text)[:250]
