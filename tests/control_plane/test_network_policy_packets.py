"""What the NetworkPolicies of a run and of the operator let through: TCP between pods that have networks."""

import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from localcluster import Cluster
from localcluster.policednode import ADDRESS, PodNetwork, PolicedNode
from localcluster.policednode import NAME as NODE
from megatron_contract.environment import PROGRESS_PORT
from megatron_operator.manifests.metadata import ROLE_PREPARE, ROLE_TRAINER, Owner

from testkit.api_server import Api, Object
from testkit.operator_process import OPERATOR_NAMESPACE
from testkit.waiting import wait_until
from tests.control_plane.conftest import PLATFORM
from tests.control_plane.world import World

GANG_PORT = 29500
"""A port that ranks open to each other."""
PORTS = (GANG_PORT, PROGRESS_PORT)
SERVE = """
import socket, sys, threading
listeners = [socket.create_server(("", int(port))) for port in sys.argv[1:]]
for each in listeners:
    threading.Thread(target=lambda each=each: [each.accept() for _ in iter(int, 1)], daemon=True).start()
print("serving", flush=True)
sys.stdin.read()
"""
CONNECT = """
import socket, sys
for port in sys.argv[2:]:
    try:
        socket.create_connection((sys.argv[1], int(port)), 5).close()
        print(True)
    except OSError:
        print(False)
"""


@pytest.fixture
def node(cluster: Cluster, api: Api, tmp_path: Path) -> Iterator[PolicedNode]:
    """A node on which policies are enforced."""
    if problem := PolicedNode.problem():
        pytest.skip(problem)
    node = PolicedNode(cluster.paths, cluster.binaries, cluster.console)
    body = node.manifest()
    api.apply(body)
    api.patch("Node", None, NODE, {"status": body["status"]}, "status")
    with node:
        node.start(tmp_path)
        yield node
    for pod in api.list("Pod", fieldSelector=f"spec.nodeName={NODE}"):
        metadata = pod["metadata"]
        api.delete("Pod", metadata["namespace"], metadata["name"], gracePeriodSeconds=0)
    api.delete("Node", None, NODE)


@pytest.fixture
def namespaces(world: World) -> Iterator[tuple[str, str, str]]:
    """Names for the namespace of runs, for another one, and for that of the metrics scraper."""
    names = (f"{world.namespace}-runs", f"{world.namespace}-others", f"{world.namespace}-metrics")
    yield names
    for name in names:
        world.api.delete("Namespace", None, name)


@pytest.fixture
def policy(
    world: World, namespaces: tuple[str, str, str], install: Callable[[str, Object], str], installed: str
) -> Iterator[Object]:
    """The policy of the recipe `run`, as the operator created it."""
    assert installed
    options = {"networkPolicies": {"enabled": True, "metricsFrom": [namespaces[2]]}}
    install(OPERATOR_NAMESPACE, {"platform": PLATFORM | options})
    world.apply("run")
    world.wait_for_only("NetworkPolicy", "run-pods")
    yield world.api.get("NetworkPolicy", world.namespace, "run-pods")
    install(OPERATOR_NAMESPACE, {"platform": PLATFORM})


def add_pod(api: Api, node: PolicedNode, namespace: str, name: str, labels: Object) -> PodNetwork:
    """A pod that runs on the node and has the address of a new network namespace."""
    api.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}})
    wait_until("the service account", lambda: api.find("ServiceAccount", namespace, "default"))
    network = node.add_pod()
    api.apply(
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": name, "namespace": namespace, "labels": labels},
            "spec": {
                "nodeName": NODE,
                "automountServiceAccountToken": False,
                "containers": [{"name": "pytorch", "image": "registry.example/none"}],
            },
        }
    )
    addresses = {"podIP": network.address, "podIPs": [{"ip": network.address}], "hostIP": ADDRESS}
    status = {"phase": "Running"} | addresses
    api.patch("Pod", namespace, name, {"status": status}, "status")
    return network


def connects(source: PodNetwork, target: PodNetwork, ports: tuple[int, ...] = PORTS) -> tuple[bool, ...]:
    """Whether TCP connections succeed, for each of these ports."""
    words = [sys.executable, "-c", CONNECT, target.address, *map(str, ports)]
    done = subprocess.run(source.command(*words), capture_output=True, text=True, check=True)
    return tuple(line == "True" for line in done.stdout.split())


@contextmanager
def serving(pod: PodNetwork, *ports: int) -> Iterator[None]:
    """Listen on these ports of a pod for the duration of the block."""
    server = subprocess.Popen(
        pod.command(sys.executable, "-c", SERVE, *map(str, ports)),
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        assert server.stdout is not None
        assert server.stdout.readline() == "serving\n"
        yield
    finally:
        server.kill()
        server.wait()


def test_only_the_run_the_operator_and_scrapers_reach_the_pods_of_a_run(
    world: World, namespaces: tuple[str, str, str], node: PolicedNode, policy: Object
) -> None:
    here, elsewhere, monitoring = namespaces
    api, run = world.api, policy["spec"]["podSelector"]["matchLabels"]
    master = add_pod(api, node, here, "master", run)
    [label] = run
    sources = {
        "own worker": add_pod(api, node, here, "worker", run),
        "operator": add_pod(
            api, node, OPERATOR_NAMESPACE, "operator", {"app.kubernetes.io/name": "megatron-operator"}
        ),
        "another pod of the operator's namespace": add_pod(api, node, OPERATOR_NAMESPACE, "other", {}),
        "scraper": add_pod(api, node, monitoring, "prometheus", {}),
        "another run": add_pod(api, node, here, "other-run", {label: "other"}),
        "stranger": add_pod(api, node, here, "stranger", {}),
        "same labels in another namespace": add_pod(api, node, elsewhere, "worker", run),
    }
    with serving(master, *PORTS):
        before = {name: connects(source, master) for name, source in sources.items()}
        assert set(before.values()) == {(True, True)}, "without a policy all reach it"

        # In a namespace without the operator's own pods, which would count these as the run's.
        kept = {"name": "run-pods", "namespace": here}
        api.create({key: policy[key] for key in ("apiVersion", "kind", "spec")} | {"metadata": kept})
        wait_until(
            "the policy to be enforced", lambda: connects(sources["stranger"], master) == (False, False)
        )
        assert {name: connects(source, master) for name, source in sources.items()} == {
            "own worker": (True, True),
            "operator": (False, True),
            "another pod of the operator's namespace": (False, False),
            "scraper": (False, True),
            "another run": (False, False),
            "stranger": (False, False),
            "same labels in another namespace": (False, False),
        }
        api.delete("NetworkPolicy", here, "run-pods")
        wait_until("the policy to end", lambda: connects(sources["stranger"], master) == (True, True))


def test_the_policy_of_the_operator_admits_scrapers_and_lets_it_reach_pods_of_runs(
    world: World,
    namespaces: tuple[str, str, str],
    node: PolicedNode,
    install: Callable[[str, Object], str],
    installed: str,
) -> None:
    assert installed
    here, _, monitoring = namespaces
    api, metrics = world.api, 9090
    trainer = add_pod(api, node, here, "trainer", Owner("run", here, "").labels(ROLE_TRAINER))
    preparation = add_pod(api, node, here, "prepare", Owner("run", here, "").labels(ROLE_PREPARE))
    stranger = add_pod(api, node, here, "stranger", {})
    scraper = add_pod(api, node, monitoring, "prometheus", {})
    options = {"networkPolicy": {"enabled": True, "metricsFrom": [monitoring]}, "metrics": {"enabled": True}}
    try:
        install(OPERATOR_NAMESPACE, {"platform": PLATFORM} | options)
        policy = api.get("NetworkPolicy", OPERATOR_NAMESPACE, "megatron-operator")
        labels = policy["spec"]["podSelector"]["matchLabels"]
        operator = add_pod(api, node, OPERATOR_NAMESPACE, "operator", labels)
        with (
            serving(operator, metrics, GANG_PORT),
            serving(trainer, *PORTS),
            serving(preparation, *PORTS),
            serving(stranger, *PORTS),
        ):
            wait_until(
                "the policy to be enforced",
                lambda: not any(connects(stranger, operator, (metrics, GANG_PORT))),
            )
            assert connects(scraper, operator, (metrics, GANG_PORT)) == (True, False)
            assert connects(operator, trainer) == (False, True), "it reads the progress, and nothing else"
            assert connects(operator, preparation) == (False, True), "nor is it blind before a run trains"
            assert connects(operator, stranger) == (False, False)
    finally:
        api.delete("NetworkPolicy", OPERATOR_NAMESPACE, "megatron-operator")
        install(OPERATOR_NAMESPACE, {"platform": PLATFORM})
