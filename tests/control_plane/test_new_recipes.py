"""A new recipe starts from what the watch delivered; what has happened to it since is not lost."""

from collections.abc import Iterator

import pytest

from testkit.waiting import wait_until
from tests.control_plane.world import World

CLAIM = "run-checkpoints"


@pytest.fixture
def starting(world: World) -> Iterator[World]:
    """A recipe whose claim exists, and whose operator has not created its token and job yet."""
    world.gateway.held_path = "/secrets"
    world.apply("run")
    assert world.gateway.holding.wait(60)
    yield world
    world.gateway.held_path = None


def made_job(world: World) -> bool:
    """Whether the API server has taken a job since the recipe was applied."""
    plural = world.backend.manifests.PLURAL
    return any(path.endswith(f"/{plural}") and status == 201 for _, path, status in world.gateway.answers)


def claim_exists(world: World) -> bool:
    return world.api.find("PersistentVolumeClaim", world.namespace, CLAIM) is not None


def test_a_new_recipe_has_its_job_before_it_is_read(world: World) -> None:
    # What exists when an operator starts is read.
    world.apply("first")
    world.wait_for("first", pods=2)
    world.gateway.reset()
    plural, before = world.backend.manifests.PLURAL, list[list[str]]()

    def note() -> None:
        if not before and any(path.endswith(f"/{plural}") for _, path in world.gateway.writes):
            # The first recipe may be read meanwhile. Lists have no name; tests/unit/controller has those.
            before.append([path for path in world.gateway.reads if path.endswith(("/run", f"/{CLAIM}"))])

    world.gateway.after_write = note
    world.apply("run")
    world.wait_for("run", pods=2)
    assert before, "the operator has created the job"
    # Trainer takes a JobSet of a TrainJob's name for its own: the operator looks whether there is one.
    read = {"trainjobs", "trainingruntimes", "jobsets"} if world.backend.name == "trainjob" else set()
    assert {path.split("/")[-2] for path in before[0]} == read, "nor is its claim"


def test_a_recipe_that_is_deleted_while_it_starts_leaves_no_job_and_its_claim(starting: World) -> None:
    starting.api.delete("MegatronRecipe", starting.namespace, "run")
    starting.gateway.held_path = None
    wait_until("the job to be created", lambda: made_job(starting))
    wait_until("the job to be deleted", lambda: not starting.job_exists("run"))
    claim = starting.api.get("PersistentVolumeClaim", starting.namespace, CLAIM)["metadata"]
    assert "deletionTimestamp" not in claim
    assert "ownerReferences" not in claim


def test_a_recipe_that_is_edited_while_it_starts_runs_as_edited(starting: World) -> None:
    starting.edit("run", accelerator={"count": 2})
    starting.gateway.held_path = None
    state = starting.wait_for("run", phase="Starting", pods=1, status={"observedGeneration": 2})
    assert state.conditions["Running"]["reason"] != "NameTaken"
    assert claim_exists(starting)


def test_a_recipe_that_is_replaced_while_it_starts_takes_over_the_claim(starting: World) -> None:
    claim = starting.api.get("PersistentVolumeClaim", starting.namespace, CLAIM)["metadata"]
    starting.api.delete("MegatronRecipe", starting.namespace, "run")
    uid = starting.apply("run")["metadata"]["uid"]
    starting.gateway.held_path = None
    starting.wait_for("run", phase="Starting", pods=2)
    job = starting.api.get(starting.job_kind, starting.namespace, "run")["metadata"]
    assert [owner["uid"] for owner in job["ownerReferences"]] == [uid]
    kept = starting.api.get("PersistentVolumeClaim", starting.namespace, CLAIM)["metadata"]
    assert kept["uid"] == claim["uid"]
    assert "ownerReferences" not in kept
