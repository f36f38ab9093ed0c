"""Claims of runs after the platform has other defaults, on a real API server."""

from testkit.api_server import Object
from tests.control_plane.conftest import PlatformWith
from tests.control_plane.world import World


def claim_of(world: World, name: str) -> Object:
    """The claim with the run's checkpoints."""
    return world.api.get("PersistentVolumeClaim", world.namespace, f"{name}-checkpoints")


def test_a_run_resumes_on_its_claim_after_the_platform_has_another_class_and_a_smaller_size(
    world: World, platform_with: PlatformWith
) -> None:
    world.apply("run")
    before = world.train("run", 60, checkpoint=50)
    claim = claim_of(world, "run")
    with platform_with({"checkpoint": {"size": "512Mi", "storageClassName": "of-new-runs"}}):
        world.edit("run", suspend=True)
        world.wait_for("run", phase="Suspended", job=False, pods=0)
        world.edit("run", suspend=False)
        world.wait_for("run", pods=2, without=[*before.pod_uids, before.job_uid], observed=True)
        after = claim_of(world, "run")
    assert after["metadata"]["uid"] == claim["metadata"]["uid"]
    assert after["spec"] == claim["spec"]
