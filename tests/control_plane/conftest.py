"""A real control plane with nodes that KWOK simulates; the operator runs as a process with its own rights.

Runs have the kind of job that run_backend chooses. A test that is about others has the marker `job_backends`.
"""

import itertools
import os
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path

import pytest
from localcluster import Cluster
from localcluster.errors import ClusterError

from testkit.api_server import Api, Object
from testkit.chart_installation import install_chart
from testkit.fake_nodes import lose_node, terminate_pods
from testkit.fake_trainers import FakeProgressServer
from testkit.fake_volumes import FakeProvisioner
from testkit.faults.backends import controllers_running
from testkit.operator_process import OPERATOR_NAMESPACE, OperatorProcess, write_kubeconfig
from tests.control_plane.gateway import Gateway
from tests.control_plane.nodes import Pool, complete_jobs, restore_node, shared_node
from tests.control_plane.run_backend import CHOSEN
from tests.control_plane.world import World

NODES = 32
STORAGE_CLASS = "control-plane-tests"
PLATFORM: Object = CHOSEN.platform | {
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


_not_on_backend = pytest.StashKey[dict[str, int]]()
"""Tests that are not about the chosen backend: their number by reason."""


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    here = str(Path(__file__).parent)
    reasons: list[str] = []
    deselected: list[pytest.Item] = []
    for item in items:
        if not str(item.path).startswith(here):
            continue
        item.add_marker(pytest.mark.control_plane)
        others = [each for each in item.iter_markers("job_backends") if CHOSEN.name not in each.args]
        if others:
            deselected.append(item)
            reasons.append(others[0].kwargs["reason"])
    config.stash[_not_on_backend] = dict(Counter(reasons))
    if deselected:
        config.hook.pytest_deselected(items=deselected)
        items[:] = [item for item in items if item not in deselected]


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Name the reasons of tests that are deselected because of their marker."""
    for reason, count in config.stash.get(_not_on_backend, {}).items():
        terminalreporter.write_line(f"not on {CHOSEN.name}: {count} tests: {reason}")


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    """The control plane with the controllers of the backend; started for these tests unless it is running."""
    cluster = Cluster("control-plane")
    with ExitStack() as controllers:
        try:
            running = bool(cluster.status()) and all(cluster.status().values())
            if not running:
                cluster.up()
            if not cluster.paths.binary("helm").exists():
                cluster.binaries.build(("helm",), cluster.console)
            controllers.enter_context(controllers_running(cluster, CHOSEN.name))
        except ClusterError as error:
            pytest.fail(f"the control plane does not start: {error}")
        yield cluster
    if not running:
        cluster.down()


@pytest.fixture(scope="session")
def api(cluster: Cluster) -> Iterator[Api]:
    """The API server, with nodes to run on and a provisioner of volumes; tests end the pods of runs."""
    api = Api(cluster.kubeconfig)
    for index in range(NODES):
        api.apply(shared_node(index))
    provisioner = FakeProvisioner(Api(cluster.kubeconfig), STORAGE_CLASS)
    provisioner.start()
    complete_jobs(api, of_jobsets=False)
    yield api
    complete_jobs(api, of_jobsets=True)
    provisioner.stop()
    for index in range(NODES):
        api.delete("Node", None, f"fake-{index}")


Install = Callable[[str, Object], str]
PlatformWith = Callable[[Object], AbstractContextManager[None]]


@pytest.fixture(scope="session")
def install(cluster: Cluster, api: Api, tmp_path_factory: pytest.TempPathFactory) -> Install:
    """Applies the chart without its Deployment; returns a token of the operator's service account."""

    def with_values(namespace: str, values: Object) -> str:
        return install_chart(cluster, api, namespace, values, tmp_path_factory.mktemp("chart"))

    return with_values


@pytest.fixture(scope="session")
def installed(install: Install) -> str:
    """The token of the cluster-wide operator's installation."""
    return install(OPERATOR_NAMESPACE, {"platform": PLATFORM})


@pytest.fixture(scope="session")
def gateway(api: Api) -> Iterator[Gateway]:
    """The proxy between the operator and the API server."""
    gateway = Gateway(api.server, api.ca_file)
    gateway.start()
    yield gateway
    gateway.stop()


@pytest.fixture(scope="session")
def trainers() -> Iterator[FakeProgressServer]:
    """The progress reports of all pods."""
    server = FakeProgressServer()
    yield server
    server.stop()


@pytest.fixture(scope="session")
def operator_process(
    installed: str, gateway: Gateway, trainers: FakeProgressServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[OperatorProcess]:
    """The cluster-wide operator; stopped until a test uses `operator`."""
    folder = Path(os.environ.get("CONTROL_PLANE_LOGS", tmp_path_factory.mktemp("operator")))
    kubeconfig = folder / "kubeconfig"
    write_kubeconfig(kubeconfig, gateway.url, installed)
    options = [f"--namespace={OPERATOR_NAMESPACE}", "--node-discovery", *CHOSEN.operator_options]
    process = OperatorProcess(kubeconfig, folder / "operator.log", trainers.url, options)
    yield process
    process.stop()


@pytest.fixture
def operator(operator_process: OperatorProcess, gateway: Gateway) -> OperatorProcess:
    """The operator, running and without interference by the gateway."""
    gateway.reset()
    operator_process.ensure()
    return operator_process


@pytest.fixture
def lose(api: Api) -> Iterator[Callable[[str], None]]:
    """Makes nodes unreachable, and restores them at the end."""
    lost: list[str] = []

    def lose_one(name: str) -> None:
        lose_node(api, name)
        lost.append(name)

    terminate_pods(api, of_lost_nodes=False)
    yield lose_one
    terminate_pods(api, of_lost_nodes=True)
    for name in lost:
        restore_node(api, name)


_numbers = itertools.count()


@pytest.fixture
def pool(api: Api) -> Iterator[Callable[[int], Pool]]:
    """Creates nodes for one test."""
    pools: list[Pool] = []

    def make(size: int) -> Pool:
        pools.append(Pool(api, f"pool-{os.getpid()}-{next(_numbers)}", size))
        return pools[-1]

    yield make
    for each in pools:
        each.delete()


@pytest.fixture
def world(
    api: Api, operator: OperatorProcess, gateway: Gateway, trainers: FakeProgressServer
) -> Iterator[World]:
    """A new namespace for each test."""
    namespace = f"cp-{os.getpid()}-{next(_numbers)}"
    api.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}})
    yield World(api, namespace, operator, gateway, trainers)
    gateway.reset()
    for recipe in api.list("MegatronRecipe", namespace):
        api.delete("MegatronRecipe", namespace, recipe["metadata"]["name"])
    api.delete("Namespace", None, namespace)


@pytest.fixture
def platform_with(install: Install, world: World) -> PlatformWith:
    """Installs the platform with further options for the duration of a block."""

    def install_with(options: Object) -> None:
        # A recipe that is planned before the operator has read the new file would get the former job.
        world.operator.stop()
        install(OPERATOR_NAMESPACE, {"platform": PLATFORM | options})
        world.operator.ensure()

    @contextmanager
    def installed(options: Object) -> Iterator[None]:
        install_with(options)
        try:
            yield
        finally:
            # Before what the pods need can no longer be created.
            for recipe in world.api.list("MegatronRecipe", world.namespace):
                world.api.delete("MegatronRecipe", world.namespace, recipe["metadata"]["name"])
            world.wait_for_only("Pod")
            install_with({})

    return installed
