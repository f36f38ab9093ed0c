"""The processes of trackers, on files of scalars: real MLflow server, real wandb, TensorBoard's reader."""

import json
import os
import platform
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from testkit.ports import free_port
from tests.trainer.curves import Curves, read_curves
from tests.trainer.gang import until

RUN_ID = "8c1f-uid"
# Iterations of the first generation; the second repeats some of them.
FIRST, SECOND = range(1, 6), range(4, 9)
ALL = [(iteration, iteration / 2) for iteration in range(1, 9)]


class Run:
    """A save directory, its file of scalars, and the process of one tracker."""

    def __init__(self, folder: Path, name: str, tracking: dict[str, object]) -> None:
        self.save, self.name = folder, name
        self._environment = os.environ | {
            "MEGATRON_TRACKING": json.dumps(tracking),
            "MEGATRON_RUN_ID": RUN_ID,
            "MLFLOW_TRACKING_USERNAME": "user",
            "MLFLOW_TRACKING_PASSWORD": "password",
        }
        self._process: subprocess.Popen[bytes] | None = None

    def append(self, iterations: range, generation: int) -> None:
        with (self.save / "scalars.jsonl").open("a") as file:
            for iteration in iterations:
                values = {"lm loss": iteration / 2, "a:b": float("nan") if iteration == 2 else 1.0}
                line = {"iteration": iteration, "values": values, "generation": generation, "time": iteration}
                file.write(json.dumps(line) + "\n")

    def start(self) -> None:
        command = [*(sys.executable, "-m", "megatron_trainer.tracking.command", self.name, str(self.save))]
        command += ["--hidden-size", "64", "--bf16"]
        with (self.save / "log").open("ab") as log:
            self._process = subprocess.Popen(
                command, env=self._environment, stdin=subprocess.PIPE, stderr=log
            )

    def await_position(self, iteration: int) -> None:
        file = self.save / "tracking" / f"{self.name}.json"

        def recorded() -> bool | None:
            assert self._process is not None
            assert self._process.poll() is None, (self.save / "log").read_text()
            return (file.exists() and json.loads(file.read_text())["highest"]["lm loss"] == iteration) or None

        until(f"iteration {iteration}", recorded)

    def kill(self) -> None:
        assert self._process is not None
        self._process.kill()
        self._process.communicate()

    def finish(self, ending: bytes = b"finished\n") -> int:
        """End the run; without a word, as when the launcher dies. Returns the exit code."""
        assert self._process is not None
        assert self._process.stdin is not None
        self._process.stdin.write(ending)
        self._process.stdin.flush()
        if not ending:
            self._process.stdin.close()
        return self._process.wait()

    def record_two_generations(self) -> None:
        """Record the first, kill the process, and record the second with another one."""
        self.append(FIRST, 1)
        self.start()
        self.await_position(FIRST[-1])
        self.kill()
        self.append(SECOND, 2)
        self.start()
        assert self.finish() == 0, (self.save / "log").read_text()


class MlflowServer:
    """`mlflow server` on loopback with a database."""

    def __init__(self, folder: Path) -> None:
        self.url = f"http://127.0.0.1:{(port := free_port())}"
        self._log = folder / "mlflow.log"
        environment = os.environ | {
            "PYTHONPATH": str(Path(sys.prefix) / "tracking-tests"),
            "MLFLOW_DISABLE_TELEMETRY": "true",
        }
        command = [sys.executable, "-m", "mlflow", "server", "--host", "127.0.0.1", "--port", str(port)]
        command += ["--backend-store-uri", f"sqlite:///{folder}/store.db", "--workers", "1"]
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(command, env=environment, stdout=log, stderr=log, cwd=folder)

    def await_start(self) -> None:
        def responds() -> bool | None:
            assert self._process.poll() is None, self._log.read_text()
            with suppress(OSError), urllib.request.urlopen(f"{self.url}/health", timeout=5):
                return True
            return None

        until("the MLflow server", responds)

    def call(self, path: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
        data = None if body is None else json.dumps(body).encode()
        url = f"{self.url}/api/2.0/mlflow/{path}"
        request = urllib.request.Request(url, data, {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=60) as answer:
            return json.load(answer)  # type: ignore[no-any-return]

    def runs(self, experiment: str) -> list[dict[str, Any]]:
        found = self.call(f"experiments/get-by-name?experiment_name={experiment}")["experiment"]
        search = {"experiment_ids": [found["experiment_id"]]}
        return self.call("runs/search", search).get("runs", [])  # type: ignore[no-any-return]

    def curve(self, run: dict[str, Any], name: str) -> list[tuple[int, float]]:
        query = f"run_id={run['info']['run_id']}&metric_key={name.replace(' ', '%20')}"
        points = self.call(f"metrics/get-history?{query}")["metrics"]
        return [(int(each["step"]), each["value"]) for each in points]

    def stop(self) -> None:
        self._process.terminate()
        self._process.wait()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MlflowServer]:
    started = MlflowServer(tmp_path_factory.mktemp("mlflow"))
    started.await_start()
    yield started
    started.stop()


def test_one_mlflow_run_has_each_iteration_once(tmp_path: Path, server: MlflowServer) -> None:
    mlflow = {"trackingUri": server.url, "experiment": "tests", "name": "small"}
    Run(tmp_path, "mlflow", {"mlflow": mlflow}).record_two_generations()
    (run,) = server.runs("tests")
    assert (run["info"]["run_name"], run["info"]["status"]) == ("small", "FINISHED")
    assert {"key": "megatron.training/run", "value": RUN_ID} in run["data"]["tags"]
    assert server.curve(run, "lm loss") == ALL
    assert [step for step, _ in server.curve(run, "a_b")] == [1, 3, 4, 5, 6, 7, 8]
    parameters = {each["key"]: each["value"] for each in run["data"]["params"]}
    assert parameters == {"hidden-size": "64", "bf16": "true"}


def test_a_run_that_mlflow_does_not_have_gets_the_whole_curve(tmp_path: Path, server: MlflowServer) -> None:
    def record(experiment: str) -> Run:
        run = Run(tmp_path, "mlflow", {"mlflow": {"trackingUri": server.url, "experiment": experiment}})
        run.start()
        assert run.finish() == 0, (tmp_path / "log").read_text()
        return run

    Run(tmp_path, "mlflow", {}).append(range(1, 9), 1)
    record("mistaken")
    record("corrected").append(range(9, 11), 1)
    for experiment in ("corrected", "mistaken"):
        record(experiment)
        (run,) = server.runs(experiment)
        assert server.curve(run, "lm loss") == [(each, each / 2) for each in range(1, 11)]


def offline_curves(save: Path) -> list[Curves]:
    """The curves of each start, all of the same run."""
    # wandb appends a number to the folder of a second start in the same second.
    files = sorted((save / "wandb").glob(f"offline-run-*-{RUN_ID}*/run-{RUN_ID}.wandb"))
    return [read_curves("wandb", file) for file in files]


def test_offline_files_of_wandb_continue_after_a_stop(tmp_path: Path) -> None:
    run = Run(tmp_path, "wandb", {"wandb": {"project": "p", "offline": True}})
    run.append(FIRST, 1)
    run.start()
    assert run.finish(b"stopped\n") == 0
    run.append(SECOND, 2)
    run.start()
    assert run.finish() == 0
    first, second = offline_curves(tmp_path)
    assert [*first["lm loss"], *second["lm loss"]] == ALL
    # In another project it is another run.
    run = Run(tmp_path, "wandb", {"wandb": {"project": "q", "offline": True}})
    run.start()
    assert run.finish() == 0
    assert offline_curves(tmp_path)[2]["lm loss"] == ALL


def test_wandb_records_nothing_about_the_node(tmp_path: Path) -> None:
    run = Run(tmp_path, "wandb", {"wandb": {"project": "p", "offline": True}})
    run.append(FIRST, 1)
    run.start()
    assert run.finish() == 0
    (folder,) = (tmp_path / "wandb").glob("offline-run-*")
    assert [path.name for path in (folder / "files").rglob("*") if path.is_file()] == []
    recorded = (folder / f"run-{RUN_ID}.wandb").read_bytes()
    assert b"hidden-size" in recorded
    for unwanted in (sys.executable, sys.prefix, platform.release(), "password"):
        assert unwanted.encode() not in recorded, unwanted
    # A short name may be part of a random identifier: it counts as a string of protobuf or JSON.
    host = socket.gethostname().encode()
    assert bytes([len(host)]) + host not in recorded
    assert b'"' + host + b'"' not in recorded


def test_a_killed_wandb_process_loses_no_iteration(tmp_path: Path) -> None:
    run = Run(tmp_path, "wandb", {"wandb": {"project": "p", "offline": True}})
    run.append(FIRST, 1)
    run.start()
    until("wandb to start", lambda: next((tmp_path / "wandb").glob("offline-run-*/*.wandb"), None))
    run.kill()
    run.append(SECOND, 2)
    run.start()
    assert run.finish() == 0
    points = {point for curves in offline_curves(tmp_path) for point in curves.get("lm loss", [])}
    assert sorted(points) == ALL


def test_a_repeated_iteration_replaces_the_first_in_tensorboard(tmp_path: Path) -> None:
    run = Run(tmp_path, "tensorboard", {"tensorboard": True})
    run.record_two_generations()
    board = read_curves("tensorboard", tmp_path / "tensorboard")
    assert board["lm loss"] == ALL
    # Also where nothing was read between the generations.
    run.append(range(7, 9), 3)
    run.append(range(5, 9), 4)
    run.start()
    assert run.finish() == 0
    assert read_curves("tensorboard", tmp_path / "tensorboard")["lm loss"] == ALL
    # And where the position was lost.
    (tmp_path / "tracking" / "tensorboard.json").unlink()
    run.start()
    assert run.finish() == 0
    assert read_curves("tensorboard", tmp_path / "tensorboard")["lm loss"] == ALL


def test_a_tracker_ends_with_its_launcher(tmp_path: Path) -> None:
    run = Run(tmp_path, "tensorboard", {"tensorboard": True})
    run.append(FIRST, 1)
    run.start()
    run.await_position(FIRST[-1])
    assert run.finish(b"") == 1


def test_values_that_mlflow_refuses_do_not_keep_others_back(tmp_path: Path, server: MlflowServer) -> None:
    run = Run(tmp_path, "mlflow", {"mlflow": {"trackingUri": server.url, "experiment": "refused"}})
    line = {"iteration": 1, "values": {"../x": 1.0}, "generation": 1, "time": 1.0}
    (tmp_path / "scalars.jsonl").write_text(json.dumps(line) + "\n")
    run.start()
    until("the refusal", lambda: "these values are left out" in (tmp_path / "log").read_text() or None)
    run.append(FIRST, 1)
    assert run.finish() == 0
    (found,) = server.runs("refused")
    assert server.curve(found, "lm loss") == ALL[:5]
