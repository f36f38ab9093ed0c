"""Curves of a run with real ranks: over restarts, and beside a tracker that cannot be reached."""

import json
import re
import signal
import socket
import threading
from collections.abc import Iterator
from contextlib import closing
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from testkit.ports import free_port
from tests.trainer.curves import read_curves
from tests.trainer.gang import SAVE_INTERVAL, TRAIN_ITERS, Gang, assert_same_training, until

ALL = list(range(1, TRAIN_ITERS + 1))


def track(run: Gang, **trackers: object) -> None:
    run.environment["MEGATRON_TRACKING"] = json.dumps(trackers)


def rounded(points: list[tuple[int, float]]) -> list[tuple[int, float]]:
    """Points in the precision of TensorBoard's files."""
    return [(step, pytest.approx(value, rel=1e-6)) for step, value in points]


def test_curves_have_each_iteration_once_after_a_killed_rank_and_a_replaced_pod(
    pod: Gang, undisturbed: Gang
) -> None:
    track(pod, tensorboard=True)
    pod.flags[pod.flags.index("--eval-iters") + 1] = "1"
    pod.flags[pod.flags.index("--eval-interval") + 1] = "4"
    pod.start()
    pod.await_checkpoint(SAVE_INTERVAL)
    pod.await_iteration(SAVE_INTERVAL + 2)
    pod.kill_rank(0)
    pod.await_checkpoint(2 * SAVE_INTERVAL)
    pod.await_iteration(2 * SAVE_INTERVAL + 2, generation=2)
    pod.replace(0)
    assert pod.wait() == [0], pod.log()[-3000:]

    assert_same_training(pod, undisturbed)
    scalars = [json.loads(line) for line in (pod.save / "scalars.jsonl").read_text().splitlines()]
    assert {each["generation"] for each in scalars} == {1, 2, 3}
    losses = [(iteration, each[-1]) for iteration, each in sorted(pod.losses().items())]
    board = read_curves("tensorboard", pod.save / "tensorboard")
    assert board["lm loss"] == rounded(losses)
    assert [step for step, _ in board["grad-norm"]] == ALL
    assert {"learning-rate", "batch-size", "iteration-time", "throughput", "consumed-samples"} <= board.keys()
    lines = [json.loads(line) for line in (pod.save / "validation.jsonl").read_text().splitlines()]
    validations: dict[int, float] = {}
    for each in lines:
        # After the last iteration Megatron evaluates once more.
        validations.setdefault(each["iteration"], each["lmLoss"])
    assert board["lm loss validation"] == rounded(sorted(validations.items()))


def test_a_tracker_that_cannot_be_reached_changes_nothing(pod: Gang, undisturbed: Gang) -> None:
    url = f"http://127.0.0.1:{free_port()}"
    track(pod, tensorboard=True, mlflow={"trackingUri": url, "experiment": "tests"})
    pod.flags += ["--timing-log-level", "1", "--log-timers-to-tensorboard", "--log-interval", "1"]
    pod.run_to_end()
    assert_same_training(pod, undisturbed)
    log = pod.log()
    assert f"mlflow: {url} cannot be reached: [Errno 111] Connection refused; the training goes on" in log
    assert "mlflow: the end of the curves is not recorded" in log
    board = read_curves("tensorboard", pod.save / "tensorboard")
    assert [step for step, _ in board["lm loss"]] == ALL
    assert [step for step, _ in board["optimizer-time"]] == ALL


@pytest.fixture
def silent_server() -> Iterator[str]:
    """The URL of a server that accepts connections and never answers."""
    with closing(socket.create_server(("127.0.0.1", 0))) as listening:
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"


def test_sigterm_while_trackers_end_leaves_a_finished_run_finished(pod: Gang, silent_server: str) -> None:
    track(pod, mlflow={"trackingUri": silent_server, "experiment": "tests"})
    pod.start()
    pod.await_iteration(1)
    until("the end of the run", lambda: pod.progress(0)["phase"] == "finished" or None)
    pod.pods[0].send_signal(signal.SIGTERM)
    assert pod.wait() == [0], pod.log()[-3000:]
    assert pod.termination(0)["reason"] == "Completed"
    # It waits for 30 s without the signal.
    (seconds,) = re.findall(r"mlflow: not all is recorded (\d+) s after the end of the run", pod.log())
    assert int(seconds) < 25


@pytest.fixture
def recorder() -> Iterator[tuple[str, list[tuple[str, dict[str, Any]]]]]:
    """The URL of a server that takes every request of the MLflow tracker, and the requests."""
    requests: list[tuple[str, dict[str, Any]]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            requests.append((self.path.rpartition("/mlflow/")[2], json.loads(body or b"{}")))
            answer = {"experiment": {"experiment_id": "1"}, "run": {"info": {"run_id": "r"}}}
            self.send_response(200)
            self.end_headers()
            self.wfile.write(json.dumps(answer).encode())

        do_POST = do_GET

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}", requests
    server.shutdown()
    server.server_close()


def test_a_pod_that_lost_its_lease_ends_no_run_of_a_tracker(
    pod: Gang, recorder: tuple[str, list[tuple[str, dict[str, Any]]]]
) -> None:
    url, requests = recorder
    track(pod, mlflow={"trackingUri": url, "experiment": "tests"})
    pod.start()
    until("values of the run", lambda: any(body.get("metrics") for _, body in requests) or pod.pods[0].poll())
    (pod.save / "owner.json").write_text('{"incarnation": "another", "host": "other", "runId": "test"}')
    assert pod.wait() == [140], pod.log()[-3000:]
    paths = [path for path, _ in requests]
    assert "runs/create" in paths
    # Neither KILLED nor an end time: the other pod continues this run.
    assert "runs/update" not in paths
