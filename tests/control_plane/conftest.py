"""A real control plane with nodes that KWOK plays, and the operator as a process with its own rights."""

import itertools
import os
import subprocess
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import yaml
from localcluster import Cluster
from localcluster.errors import ClusterError

from testkit.api_server import Api, Object
from testkit.errors import ApiError
from tests.control_plane.eventually import eventually
from tests.control_plane.gateway import Gateway
from tests.control_plane.operator_process import OPERATOR_NAMESPACE, OperatorProcess, write_kubeconfig
from tests.control_plane.trainers import ProgressStandIn
from tests.control_plane.world import World

ROOT = Path(__file__).parents[2]
CHART = ROOT / "charts" / "megatron-operator"
NODES = 32
VOLUMES = 130
STORAGE_CLASS = "control-plane-tests"
PLATFORM = {
    "image": "registry.example/megatron-trainer:1.0",
    "accelerators": {
        "simulated": {
            "hardware": "cpu",
            "platform": "cpu",
            "nodeLabels": {"megatron.training/simulated-gpu": "true"},
            "topology": ["topology.kubernetes.io/rack"],
            "nodeLostAfter": 1,
            "resources": {"cpu": "8", "memory": "64Gi"},
            "shmSize": "1Gi",
        }
    },
    "checkpoint": {"size": "1Gi", "storageClassName": STORAGE_CLASS},
    "dataStorageClassName": STORAGE_CLASS,
    "namespaces": {"forbidden-to-all": {"maxAccelerators": 1}},
}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = str(Path(__file__).parent)
    for item in items:
        if str(item.path).startswith(here):
            item.add_marker(pytest.mark.control_plane)


@pytest.fixture(scope="session")
def plane() -> Iterator[Cluster]:
    """The control plane, as it is if it runs, else started for these tests."""
    cluster = Cluster("control-plane")
    try:
        there = bool(cluster.status()) and all(cluster.status().values())
        if not there:
            cluster.up()
        if not cluster.layout.binary("helm").exists():
            cluster.binaries.build(("helm",), cluster.report)
    except ClusterError as error:
        pytest.fail(f"the control plane does not start: {error}")
    yield cluster
    if not there:
        cluster.down()


@pytest.fixture(scope="session")
def api(plane: Cluster) -> Iterator[Api]:
    """With nodes and volumes to run on."""
    api = Api(plane.kubeconfig)
    for index in range(NODES):
        api.apply(_node(index))
    for index in range(VOLUMES):
        api.apply(_volume(index))
    yield api
    for index in range(NODES):
        api.delete("Node", None, f"fake-{index}")
    for index in range(VOLUMES):
        api.delete("PersistentVolume", None, f"control-plane-tests-{index}")


def _node(index: int) -> Object:
    return fake_node(f"fake-{index}", rack=f"rack-{index // 8}")


def fake_node(name: str, rack: str, cpu: str = "64", **labels: str) -> Object:
    """A node whose kubelet KWOK plays."""
    resources = {"cpu": cpu, "memory": "512Gi", "pods": "110", "nvidia.com/gpu": "8"}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {
            "name": name,
            "annotations": {"kwok.x-k8s.io/node": "fake"},
            "labels": {
                "kubernetes.io/hostname": name,
                "megatron.training/simulated-gpu": "true",
                "topology.kubernetes.io/rack": rack,
                **labels,
            },
        },
        "status": {"allocatable": resources, "capacity": resources},
    }


NODE_LEASES = "kube-node-lease"
ON_A_DEAD_NODE = "on-a-dead-node"
"""Annotation of pods that KWOK, which ends pods of any node, must not end."""


def end_pods(api: Api, *, of_dead_nodes: bool) -> None:
    """Whether KWOK ends pods that are marked as being on a dead node too."""
    selector = [{"key": ".metadata.deletionTimestamp", "operator": "Exists"}]
    if not of_dead_nodes:
        marked = f'.metadata.annotations["{ON_A_DEAD_NODE}"]'
        selector.append({"key": marked, "operator": "DoesNotExist"})
    api.patch("Stage", None, "pod-delete", {"spec": {"selector": {"matchExpressions": selector}}})


def node_away(api: Api, name: str) -> None:
    """Nobody plays the node's kubelet any more: it is found silent, and its pods stay as they are."""
    for pod in api.list("Pod", fieldSelector=f"spec.nodeName={name}"):
        metadata = pod["metadata"]
        mark = {"metadata": {"annotations": {ON_A_DEAD_NODE: "true"}}}
        api.patch("Pod", metadata["namespace"], metadata["name"], mark)
    api.patch("Node", None, name, {"metadata": {"annotations": {"kwok.x-k8s.io/node": None}}})
    # KWOK leaves a lease alone that somebody else holds.
    now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    held = {"holderIdentity": "nobody", "leaseDurationSeconds": 3600, "renewTime": now}
    api.patch("Lease", NODE_LEASES, name, {"spec": held})


def node_back(api: Api, name: str) -> None:
    """The node as it was at first."""
    api.delete("Node", None, name)
    api.delete("Lease", NODE_LEASES, name)
    eventually(lambda: api.find("Node", None, name) is None, f"{name} is gone")
    api.apply(_node(int(name.removeprefix("fake-"))))
    eventually(lambda: api.find("Lease", NODE_LEASES, name) is not None, f"{name} has a heartbeat again")


class Pool:
    """Nodes of one test alone, each with room for one pod of two simulated GPUs."""

    def __init__(self, api: Api, name: str, size: int) -> None:
        self.api = api
        self.selector = {"pool": name}
        self.nodes = [f"{name}-{index}" for index in range(size)]
        for node in self.nodes:
            api.apply(fake_node(node, rack=name, cpu="3", pool=name))

    def close(self, node: str) -> None:
        """Nothing more is placed there."""
        self.api.patch("Node", None, node, {"spec": {"unschedulable": True}})

    def open(self, node: str) -> None:
        self.api.patch("Node", None, node, {"spec": {"unschedulable": None}})

    def away(self, node: str) -> None:
        node_away(self.api, node)

    def delete(self) -> None:
        for node in self.nodes:
            self.api.delete("Node", None, node)


def _volume(index: int) -> Object:
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": {"name": f"control-plane-tests-{index}"},
        "spec": {
            "capacity": {"storage": "1Gi"},
            "accessModes": ["ReadWriteMany", "ReadWriteOnce"],
            "storageClassName": STORAGE_CLASS,
            "hostPath": {"path": "/nonexistent"},
            "persistentVolumeReclaimPolicy": "Retain",
        },
    }


Install = Callable[[str, Object], str]


@pytest.fixture(scope="session")
def install(plane: Cluster, api: Api, tmp_path_factory: pytest.TempPathFactory) -> Install:
    """Makes all that the chart makes except the pod; returns a token of the operator's service account."""

    def with_values(namespace: str, values: Object) -> str:
        path = tmp_path_factory.mktemp("chart") / "values.yaml"
        path.write_text(yaml.safe_dump(values))
        rendered = subprocess.run(
            [
                plane.layout.binary("helm"), "template", "megatron-operator", CHART, "--namespace",
                namespace, "--kube-version", "1.36.3", "--values", path,
            ],
            check=True, capture_output=True, text=True,
        ).stdout  # fmt: skip
        api.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}})
        objects = [item for item in yaml.safe_load_all(rendered) if item and item["kind"] != "Deployment"]
        for item in sorted(objects, key=lambda item: item["kind"] != "CustomResourceDefinition"):
            api.apply(item)
        eventually(lambda: _serves_recipes(api, namespace), "the API server keeps recipes")
        account = api.path("ServiceAccount", namespace, "megatron-operator") + "/token"
        request = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}}
        return str(api.request("POST", account, request)["status"]["token"])

    return with_values


def _serves_recipes(api: Api, namespace: str) -> bool:
    """Just after a CustomResourceDefinition is made, its objects are not found, or not kept yet."""
    try:
        api.list("MegatronRecipe", namespace)
    except ApiError as error:
        if error.status not in (404, 429):
            raise
        return False
    return True


@pytest.fixture(scope="session")
def installed(install: Install) -> str:
    """The cluster-wide operator's installation; its token."""
    return install(OPERATOR_NAMESPACE, {"platform": PLATFORM})


@pytest.fixture(scope="session")
def gateway(api: Api) -> Iterator[Gateway]:
    gateway = Gateway(api.server, api.ca_file)
    gateway.url = gateway.start()
    yield gateway
    gateway.stop()


@pytest.fixture(scope="session")
def trainers() -> Iterator[ProgressStandIn]:
    stand_in = ProgressStandIn()
    yield stand_in
    stand_in.stop()


@pytest.fixture(scope="session")
def operator_process(
    installed: str, gateway: Gateway, trainers: ProgressStandIn, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[OperatorProcess]:
    folder = Path(os.environ.get("CONTROL_PLANE_LOGS", tmp_path_factory.mktemp("operator")))
    kubeconfig = folder / "kubeconfig"
    write_kubeconfig(kubeconfig, gateway.url, installed)
    options = [f"--namespace={OPERATOR_NAMESPACE}", "--node-discovery"]
    process = OperatorProcess(kubeconfig, folder / "operator.log", trainers.url, options)
    yield process
    process.stop()


@pytest.fixture
def operator(operator_process: OperatorProcess, gateway: Gateway) -> OperatorProcess:
    """Running, and nobody cuts in."""
    gateway.reset()
    operator_process.ensure()
    return operator_process


@pytest.fixture
def lose(api: Api) -> Iterator[Callable[[str], None]]:
    """Takes nodes away, and puts them back at the end."""
    lost: list[str] = []

    def away(name: str) -> None:
        node_away(api, name)
        lost.append(name)

    end_pods(api, of_dead_nodes=False)
    yield away
    end_pods(api, of_dead_nodes=True)
    for name in lost:
        node_back(api, name)


_numbers = itertools.count()


@pytest.fixture
def pool(api: Api) -> Iterator[Callable[[int], Pool]]:
    """Makes nodes of the test's own."""
    pools: list[Pool] = []

    def make(size: int) -> Pool:
        pools.append(Pool(api, f"pool-{os.getpid()}-{next(_numbers)}", size))
        return pools[-1]

    yield make
    for each in pools:
        each.delete()


@pytest.fixture
def world(
    api: Api, operator: OperatorProcess, gateway: Gateway, trainers: ProgressStandIn
) -> Iterator[World]:
    """A namespace of its own for each test."""
    namespace = f"cp-{os.getpid()}-{next(_numbers)}"
    api.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}})
    yield World(api, namespace, operator, gateway, trainers)
    gateway.reset()
    for recipe in api.list("MegatronRecipe", namespace):
        api.delete("MegatronRecipe", namespace, recipe["metadata"]["name"])
    api.delete("Namespace", None, namespace)
    _free_volumes(api, namespace)


def _free_volumes(api: Api, namespace: str) -> None:
    """Volumes are kept by their policy; the next test binds them again."""
    volumes: list[Any] = api.list("PersistentVolume")
    for volume in volumes:
        claim = volume["spec"].get("claimRef") or {}
        if claim.get("namespace") == namespace:
            api.patch("PersistentVolume", None, volume["metadata"]["name"], {"spec": {"claimRef": None}})
