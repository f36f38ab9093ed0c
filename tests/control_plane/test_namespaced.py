"""An operator with Roles in some namespaces serves these and asks for nothing else."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from testkit.api_server import Object
from tests.control_plane.conftest import PLATFORM
from tests.control_plane.eventually import eventually
from tests.control_plane.operator_process import OperatorProcess, write_kubeconfig
from tests.control_plane.world import World

RELEASE_NAMESPACE = "megatron-namespaced"


@pytest.fixture
def namespaced(
    world: World, install: Callable[[str, Object], str], tmp_path: Path
) -> Iterator[OperatorProcess]:
    """The only operator that runs, with rights in the world's namespace alone."""
    world.operator.stop()
    values = {
        "platform": PLATFORM,
        "watchNamespaces": [world.namespace],
        "crd": {"install": False},
        "aggregateRoles": False,
    }
    kubeconfig = tmp_path / "kubeconfig"
    write_kubeconfig(kubeconfig, world.gateway.url, install(RELEASE_NAMESPACE, values))
    options = [f"--namespace={RELEASE_NAMESPACE}", f"--watch-namespaces={world.namespace}"]
    process = OperatorProcess(kubeconfig, tmp_path / "operator.log", world.trainers.url, options)
    process.start()
    yield process
    process.stop()
    world.api.delete("Namespace", None, RELEASE_NAMESPACE)
    eventually(lambda: world.api.find("Namespace", None, RELEASE_NAMESPACE) is None, "its namespace is gone")
    world.operator.ensure()


def test_roles_in_one_namespace_are_enough(world: World, namespaced: OperatorProcess) -> None:
    world.apply("run")
    world.train("run", 10, checkpoint=5)
    world.end("run-worker-0", 138)
    world.await_reason("run", "Recovering", "PodsReplaced")
    world.edit("run", suspend=True)
    world.await_phase("run", "Suspended")
    assert "orbidden" not in namespaced.log()


def test_a_dead_node_is_believed_by_what_kubernetes_wrote_on_the_pod(
    world: World, namespaced: OperatorProcess, lose: Callable[[str], None]
) -> None:
    """Without the right to read nodes: the pod says that it was evicted, and its grace period is over."""
    world.apply("run")
    world.train("run", 60, checkpoint=50)
    worker = world.api.get("Pod", world.namespace, "run-worker-0")
    lose(worker["spec"]["nodeName"])

    def replaced() -> bool:
        pod = world.api.find("Pod", world.namespace, "run-worker-0")
        return pod is not None and pod["metadata"]["uid"] != worker["metadata"]["uid"]

    # 20 s until the node is silent, the pod's grace of 60 s, and 120 s more.
    eventually(replaced, lambda: f"the worker is replaced: {world.brief('run')}", 320)
    assert "orbidden" not in namespaced.log()
    world.await_pods("run")
    assert world.train("run", 51, generation=2, resumedFrom=50)["recovery"]["restartsByKind"]["node"] == 1
