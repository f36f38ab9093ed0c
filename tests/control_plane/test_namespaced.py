"""An operator with Roles in some namespaces serves only these and needs no other rights."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from testkit.api_server import Object
from testkit.operator_process import OperatorProcess, write_kubeconfig
from testkit.waiting import LONG_DEADLINE, wait_until
from tests.control_plane.conftest import PLATFORM
from tests.control_plane.run_backend import CHOSEN
from tests.control_plane.world import World

RELEASE_NAMESPACE = "megatron-namespaced"
ELECTION = ("--leader-elect", "--leader-elect-resource-name=megatron-operator-leader")
OPTIONS = (*ELECTION, *CHOSEN.operator_options)


@pytest.fixture
def namespaced(
    world: World, install: Callable[[str, Object], str], tmp_path: Path
) -> Iterator[OperatorProcess]:
    """The only running operator, with rights in the world's namespace only."""
    world.operator.stop()
    values = {
        "platform": PLATFORM,
        "watchNamespaces": [world.namespace],
        "crd": {"install": False},
        "aggregateRoles": False,
    }
    kubeconfig = tmp_path / "kubeconfig"
    write_kubeconfig(kubeconfig, world.gateway.url, install(RELEASE_NAMESPACE, values))
    options = [f"--namespace={RELEASE_NAMESPACE}", f"--watch-namespaces={world.namespace}", *OPTIONS]
    process = OperatorProcess(kubeconfig, tmp_path / "operator.log", world.trainers.url, options)
    process.start()
    yield process
    process.stop()
    world.api.delete("Namespace", None, RELEASE_NAMESPACE)
    wait_until("its namespace to be gone", lambda: not world.api.find("Namespace", None, RELEASE_NAMESPACE))
    world.operator.ensure()


def test_roles_in_one_namespace_suffice(world: World, namespaced: OperatorProcess) -> None:
    world.apply("run")
    world.train("run", 10, checkpoint=5)
    world.terminate("run-worker-0", 138)
    world.wait_for("run", conditions={"Recovering": "PodsReplaced"})
    world.edit("run", suspend=True)
    world.wait_for("run", phase="Suspended", observed=True)
    assert "orbidden" not in namespaced.log()


def test_a_lost_node_is_recognised_by_its_pods_alone(
    world: World, namespaced: OperatorProcess, lose: Callable[[str], None]
) -> None:
    """Without the right to read nodes: the pod is marked as evicted, and its grace period is over."""
    world.apply("run")
    state = world.train("run", 60, checkpoint=50)
    lose(state.node_of("worker-0"))
    # 20 s until the node is found unreachable, the pod's grace period of 60 s, and 120 s more.
    world.wait_for("run", pods=2, without=[state.uid_of("worker-0")], seconds=LONG_DEADLINE)
    assert "orbidden" not in namespaced.log()
    state = world.train("run", 51, generation=2, resumedFrom=50, recovery={"restartsByKind": {"node": 1}})
    assert state.recovery["restarts"] == 1


@pytest.fixture
def second(
    world: World, install: Callable[[str, Object], str], tmp_path: Path
) -> Iterator[tuple[str, OperatorProcess]]:
    """Another release, with another namespace to serve."""
    release, served = "megatron-second", f"{world.namespace}-second"
    world.api.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": served}})
    values = {
        "platform": PLATFORM,
        "watchNamespaces": [served],
        "crd": {"install": False},
        "webhook": {"enabled": False},
    }
    kubeconfig = tmp_path / "kubeconfig-second"
    write_kubeconfig(kubeconfig, world.gateway.url, install(release, values))
    options = [f"--namespace={release}", f"--watch-namespaces={served}", *OPTIONS]
    process = OperatorProcess(kubeconfig, tmp_path / "second.log", world.trainers.url, options)
    process.start()
    yield served, process
    process.stop()
    for recipe in world.api.list("MegatronRecipe", served):
        world.api.delete("MegatronRecipe", served, recipe["metadata"]["name"])
    for each in (served, release):
        world.api.delete("Namespace", None, each)


def test_two_releases_in_one_cluster_serve_their_own_recipes(
    world: World, namespaced: OperatorProcess, second: tuple[str, OperatorProcess]
) -> None:
    served, other = second
    elsewhere = World(world.api, served, other, world.gateway, world.trainers)
    world.apply("run")
    elsewhere.apply("run")
    world.wait_for("run", pods=2)
    elsewhere.wait_for("run", pods=2)
    for process, own, foreign in (
        (namespaced, world.namespace, served),
        (other, served, world.namespace),
    ):
        # The operator logs what it has written, and the training-operator may be faster.
        wait_until("its line", lambda line=f"{own}/run: ", process=process: line in process.log())
        log = process.log()
        assert f"{foreign}/run: " not in log
        assert "is the leader, term 1" in log, "each release has a Lease of its own"
        assert "orbidden" not in log
