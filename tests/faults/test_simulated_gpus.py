"""Pods of the local cluster whose platform is gpu: they train on the simulated CUDA driver of their node."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from localcluster import Cluster

from testkit.installation import install_operator
from testkit.kubectl import Kubectl
from testkit.waiting import LONG_DEADLINE, wait_until
from testkit.watched_run import WatchedRun
from tests.gpu.simulated import install
from tests.gpu.simulated.control import CudaError, Devices
from tests.gpu.simulated.recipe import adapt

VALUES = "tests/gpu/simulated/values.yaml"
ITERATIONS = 1_000_000
"""More than are done: an iteration without kernels takes milliseconds."""


@pytest.fixture(scope="module")
def devices(kubectl: Kubectl, cluster: Cluster) -> Iterator[dict[str, Devices]]:
    """The simulated devices of each node, healthy; the platform has their profile."""
    install_operator(kubectl, VALUES)
    nodes = [
        each["metadata"]["name"] for each in kubectl.select("nodes", "megatron.training/simulated-gpu=true")
    ]
    yield {node: install.install(cluster.node_folder(node) / install.NAME) for node in nodes}
    install_operator(kubectl)


@pytest.fixture
def run(kubectl: Kubectl, request: pytest.FixtureRequest) -> Iterator[WatchedRun]:
    """A run of one pod with two ranks, TP 2, not yet applied. Its name, and so its volume, is its own."""
    run = WatchedRun(kubectl, request.param, ITERATIONS)
    adapt(run.manifest["spec"])
    run.manifest["spec"]["recovery"] = {}
    run.nodes = 1
    yield run
    run.delete()


def recovered(run: WatchedRun, after: int) -> dict[str, Any]:
    """The incident that follows number `after`, once the run has recovered from it."""

    def found() -> dict[str, Any] | None:
        run.require_alive()
        incidents = run.recovered_incidents(after)
        return incidents[0] if incidents else None

    return wait_until(f"incident {after + 1} to be recovered", found, LONG_DEADLINE)


def given_devices(run: WatchedRun, node_rank: int = 0) -> list[int]:
    """Numbers of the devices that the device plugin has given to a pod."""
    environment = Path(f"/proc/{run.container(node_rank).first.pid}/environ").read_text().split("\0")
    (ids,) = [each.partition("=")[2] for each in environment if each.startswith("SIMULATED_GPUS=")]
    return [int(each.rpartition("-")[2]) for each in ids.split(",")]


def node_of(run: WatchedRun, node_rank: int = 0) -> str:
    pod = run.pod(node_rank)
    assert pod is not None
    return str(pod["spec"]["nodeName"])


@pytest.mark.parametrize("run", ["simulated-gpus-one-pod"], indirect=True)
def test_a_pod_restarts_after_errors_of_software_and_leaves_its_node_after_one_of_hardware(
    run: WatchedRun, devices: dict[str, Devices]
) -> None:
    run.apply()
    before = run.settled()
    run.ranks(0)[1].kill()
    killed = recovered(run, before.incidents)
    assert killed["kind"] == "rank"

    before, node, rows = run.settled(), node_of(run), given_devices(run)
    assert len(rows) == 2
    for row in rows:
        devices[node].set(row, error=CudaError.ILLEGAL_ADDRESS)
    illegal = recovered(run, before.incidents)
    assert "an illegal memory access was encountered" in illegal["cause"]
    assert illegal["kind"] == "rank"
    assert node_of(run) == node
    assert not run.recovery().get("nodeEvidence")

    before = run.settled()
    devices[node].set(rows[1], error=CudaError.ECC_UNCORRECTABLE)
    recovered(run, before.incidents)
    assert run.recovery()["nodeEvidence"][node]["evidence"] == "DeviceMemory"
    assert run.recovery()["nodesAvoided"] == [node]
    assert node_of(run) != node
    resumed_from = before.resumed_from(run.records())
    assert resumed_from is not None
    assert resumed_from >= before.saved[-1]


@pytest.mark.parametrize("run", ["simulated-gpus-two-pods"], indirect=True)
def test_pods_on_two_nodes_recover_from_a_wedged_kernel_and_resume_at_another_layout(
    run: WatchedRun, devices: dict[str, Devices]
) -> None:
    run.nodes = 2
    run.change(
        {
            "accelerator": {"count": 4},
            "parallelism": {"pipelineModelParallelSize": 2},
            "recovery": {"hangTimeout": "20s", "elastic": {"minCount": 2}},
        }
    )
    run.apply()
    before, node = run.settled(), node_of(run, 1)
    assert node_of(run) != node
    devices[node].set(given_devices(run, 1)[1], wedged=1)
    hang = recovered(run, before.incidents)
    assert hang["kind"] == "hang"
    # Nobody is named where the whole group has entered the collective that the device does not complete.
    assert hang.get("rank") in (None, 3), hang
    assert not run.recovery().get("nodesAvoided")

    before = run.settled()
    run.change({"parallelism": {"pipelineModelParallelSize": 1}})
    run.apply()
    wait_until("the run to resume", lambda: before.resumed_from(run.records()) is not None, LONG_DEADLINE)
    assert (before.resumed_from(run.records()) or 0) >= before.saved[-1]
    assert run.plan()["dataParallelSize"] == 2
