"""What the operator renders for simulated GPUs, run on this machine: the command, arguments and environment
of the trainer's container, on devices with ids of a device plugin."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml

from testkit.ports import free_port
from tests.gpu.simulated import install
from tests.gpu.simulated.control import CudaError, Devices
from tests.gpu.simulated.recipe import adapt
from tests.trainer.gang import until

ROOT = Path(__file__).parents[2]
VALUES = (
    ROOT / "charts/megatron-operator/values-local-simulated.yaml",
    ROOT / "tests/gpu/simulated/values.yaml",
)
GIVEN = (3, 6)
"""Devices of the node that the pod's two ranks have."""
SAVE_INTERVAL = 5


def container(folder: Path) -> dict[str, Any]:
    """The trainer's container as the operator creates it for the recipe and the profile."""
    platforms = [yaml.safe_load(file.read_text())["platform"] for file in VALUES]
    platforms[0]["accelerators"] |= platforms[1]["accelerators"]
    (folder / "platform.yaml").write_text(yaml.safe_dump(platforms[0]))
    recipe = yaml.safe_load((ROOT / "examples/tiny-gpt.yaml").read_text())
    adapt(recipe["spec"])
    recipe["spec"]["training"]["trainIters"] = 100_000
    recipe["spec"]["checkpoint"]["saveInterval"] = SAVE_INTERVAL
    (folder / "recipe.yaml").write_text(yaml.safe_dump(recipe))
    command = [str(Path(sys.executable).with_name("megatron")), "render", "-o", "json"]
    command += ["-f", str(folder / "recipe.yaml"), "--platform", str(folder / "platform.yaml")]
    rendered = subprocess.run(command, capture_output=True, text=True, check=True)
    (job,) = (each for each in json.loads(rendered.stdout)["items"] if each["kind"] == "PyTorchJob")
    (found,) = job["spec"]["pytorchReplicaSpecs"]["Master"]["template"]["spec"]["containers"]
    return dict(found)


class Pod:
    """The container's processes, with folders of this machine in place of its mounts."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.node = folder / "node"
        self.devices: Devices = install.install(self.node)
        described = container(folder)
        (folder / "gang").mkdir()
        (folder / "gang" / "token").write_text("0" * 64)
        environment = {each["name"]: self._here(each["value"]) for each in described["env"]}
        environment |= {
            "SIMULATED_GPUS": ",".join(f"simulated-{row}" for row in GIVEN),
            "MEGATRON_PROGRESS_PORT": str(free_port()),
            "MEGATRON_TERMINATION_LOG": str(folder / "termination"),
            "MASTER_ADDR": "localhost",
            "MASTER_PORT": str(free_port()),
            "PET_NNODES": "1",
            "PET_NODE_RANK": "0",
            "PET_NPROC_PER_NODE": str(len(GIVEN)),
            "TMPDIR": str(folder),
            "PYTHONWARNINGS": "ignore",
        }
        program = Path(sys.executable).with_name(described["command"][0])
        with (folder / "log").open("wb") as log:
            self.process = subprocess.Popen(
                [program, *map(self._here, described["args"])],
                env=os.environ | environment,
                stdout=log,
                stderr=subprocess.STDOUT,
            )

    def _here(self, text: str) -> str:
        mounts = {
            "/usr/local/simulated-cuda": self.node,
            "/run/megatron/gang": self.folder / "gang",
            "/checkpoints": self.folder / "c",
        }
        for path, here in mounts.items():
            if text.startswith(path):
                return text.replace(path, str(here), 1)
        return text

    @property
    def save(self) -> Path:
        return self.folder / "c" / "tiny-gpt"

    def log(self) -> str:
        return (self.folder / "log").read_text(errors="replace")

    def await_save_of(self, generation: int) -> None:
        """Wait until a generation, or a later one, has trained beyond a checkpoint that it has saved."""

        def reached() -> bool | None:
            assert self.process.poll() is None, self.log()[-3000:]
            file = self.save / "progress.jsonl"
            records = [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []
            last = max((each["generation"] for each in records), default=0)
            done = [each["iteration"] for each in records if each["generation"] == last]
            if last < generation or self.has_state("error"):
                return None
            return (done[0] < self.newest() < done[-1]) or None

        until(f"a checkpoint of generation {generation}", reached)

    def has_state(self, name: str) -> bool:
        """Whether a device still has a fault that it has not met."""
        return any(self.devices.get(row, name) for row in GIVEN)

    def newest(self) -> int:
        """Iteration of the newest complete checkpoint; 0 for none."""
        return max((int(file.parent.name[5:]) for file in self.save.glob("iter_*/metadata.json")), default=0)

    def incident(self, number: int) -> dict[str, Any]:
        incidents = json.loads((self.save / "incidents.json").read_text())["incidents"]
        return dict(incidents[number - 1])


@pytest.fixture
def pod(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pod]:
    pod = Pod(tmp_path_factory.mktemp("p"))
    yield pod
    pod.process.kill()
    pod.process.wait()


def test_a_rendered_pod_trains_restarts_after_errors_of_software_and_ends_at_one_of_hardware(
    pod: Pod,
) -> None:
    pod.await_save_of(generation=1)
    assert "ranks start cold" not in pod.log()
    assert "initialized tensor model parallel with size 2" in pod.log()
    (fork_server,) = psutil.Process(pod.process.pid).children()
    fork_server.children()[1].kill()
    pod.await_save_of(generation=2)
    assert pod.incident(1)["cause"].endswith("was killed by SIGKILL")
    assert pod.incident(1)["resumedFrom"] >= SAVE_INTERVAL

    # The second rank may meet its error in the next generation.
    for row in GIVEN:
        pod.devices.set(row, error=CudaError.ILLEGAL_ADDRESS)
    pod.await_save_of(generation=3)
    assert pod.incident(2)["kind"] == "rank"
    assert "an illegal memory access was encountered" in pod.incident(2)["cause"]

    newest = pod.newest()
    pod.devices.set(GIVEN[1], error=CudaError.ECC_UNCORRECTABLE)
    assert pod.process.wait(timeout=300) == 138, pod.log()[-3000:]
    message = json.loads((pod.folder / "termination").read_text())
    assert (message["reason"], message["evidence"], message["rank"]) == ("WorkerDied", "DeviceMemory", 1)
    assert pod.newest() >= newest
    assert not [path.name for path in pod.save.glob("iter_*") if not path.name[5:].isdigit()]
