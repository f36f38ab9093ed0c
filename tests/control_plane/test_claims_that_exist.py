"""Claims of runs after the platform has other defaults, or the recipe is edited, on a real API server."""

from testkit.api_server import Object
from testkit.waiting import wait_until
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


def test_an_edit_of_retain_on_delete_changes_the_owner_of_the_claim(world: World) -> None:
    """The API server requires `delete` for a change of owner references."""
    world.apply("run")
    world.wait_for("run", pods=2)
    uid = claim_of(world, "run")["metadata"]["uid"]
    for retained in (False, True):
        world.edit("run", checkpoint={"retainOnDelete": retained})
        wait_until(
            f"the claim to be {'nobody' if retained else 'the recipe'}'s",
            lambda retained=retained: ("ownerReferences" in claim_of(world, "run")["metadata"]) != retained,
        )
    assert claim_of(world, "run")["metadata"]["uid"] == uid
