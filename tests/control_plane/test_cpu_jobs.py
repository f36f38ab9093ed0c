"""Jobs without accelerators on tainted nodes, with the real scheduler and a platform that is changed live."""

from collections.abc import Callable

from testkit.operator_process import OPERATOR_NAMESPACE
from testkit.waiting import wait_until
from tests.control_plane.conftest import PLATFORM, Install, PlatformWith
from tests.control_plane.nodes import Pool
from tests.control_plane.test_data_checks import apply
from tests.control_plane.test_diagnosis import message_of
from tests.control_plane.test_maintenance import taint
from tests.control_plane.world import World

SPOT = "cloud.google.com/gke-spot"


def test_a_job_that_no_node_takes_names_the_taint_and_runs_once_the_platform_tolerates_it(
    world: World, pool: Callable[[int], Pool], platform_with: PlatformWith, install: Install
) -> None:
    nodes = pool(1)
    [node] = nodes.nodes
    taint(world, node, SPOT)
    selector = {"nodeSelector": nodes.selector}
    with platform_with({"cpuJobs": selector}):
        apply(world, "run")
        message = message_of(world, "run", "Prepared", "Unschedulable")
        assert "untolerated taint" in message
        assert (
            f"; nodes with taints {SPOT}:NoSchedule take it once platform.cpuJobs.tolerations has these"
            in message
        )
        assert message.endswith(f"; platform.cpuJobs.nodeSelector requires pool={nodes.selector['pool']}")
        first = world.api.get("Job", world.namespace, "run-check")["metadata"]["uid"]
        tolerations = [{"key": SPOT, "operator": "Exists", "effect": "NoSchedule"}]
        install(
            OPERATOR_NAMESPACE, {"platform": PLATFORM | {"cpuJobs": selector | {"tolerations": tolerations}}}
        )
        world.wait_for("run", pods=2, conditions={"Prepared": "Checked"})
        job = world.api.get("Job", world.namespace, "run-check")
        assert job["metadata"]["uid"] != first
        labels = "megatron.training/role=check"
        pods = wait_until(
            "the pod that checked", lambda: world.api.list("Pod", world.namespace, labelSelector=labels)
        )
        assert {pod["spec"]["nodeName"] for pod in pods} == {node}
