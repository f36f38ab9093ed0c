"""Recipes of both API versions are the same objects, and what a run has lives on when its version changes."""

import copy

import pytest
from megatron_operator.api.labels import API_VERSION, GROUP, PLURAL, STORED_API_VERSION

from testkit.api_server import Object
from testkit.errors import ApiError
from tests.control_plane.world import World


def read(world: World, version: str) -> Object:
    """The recipe `run` as a client of this API version reads it."""
    return dict(world.api.request("GET", f"/apis/{version}/namespaces/{world.namespace}/{PLURAL}/run"))


def write(world: World, recipe: Object, version: str) -> Object:
    """Write a recipe as a client of this API version does."""
    written = copy.deepcopy(recipe) | {"apiVersion": version}
    written["metadata"].pop("managedFields", None)
    return world.api.apply(written)


def test_a_recipe_is_read_and_edited_in_either_version(world: World) -> None:
    world.apply("run", recovery={"rendezvousTimeout": "10m", "hangTimeout": "1h30m"})
    state = world.train("run", 60, checkpoint=50)
    assert state.environment["MEGATRON_RENDEZVOUS_TIMEOUT"] == "600"
    assert state.environment["MEGATRON_HANG_TIMEOUT"] == "5400"
    old, new = read(world, STORED_API_VERSION), read(world, API_VERSION)
    for each in (old, new):
        each["metadata"].pop("managedFields")
        each.pop("apiVersion")
    assert old == new
    # The same spec in the other version is no edit, and a run that trains goes on.
    recipe: Object = {"kind": "MegatronRecipe", "metadata": {"name": "run", "namespace": world.namespace}}
    write(world, recipe | {"spec": new["spec"]}, API_VERSION)
    again = world.train("run", 70, checkpoint=60)
    assert read(world, API_VERSION)["metadata"]["generation"] == new["metadata"]["generation"]
    assert (again.job_uid, again.pod_uids) == (state.job_uid, state.pod_uids)


@pytest.mark.parametrize(
    "written", ["10", "10 minutes", 0, "0m"], ids=["no-unit", "words", "zero", "no-minutes"]
)
def test_what_is_no_duration_is_refused_by_the_api_server(world: World, written: str | int) -> None:
    with pytest.raises(ApiError, match=r"spec\.recovery\.rendezvousTimeout"):
        world.apply("run", recovery={"rendezvousTimeout": written})


def test_objects_are_stored_in_the_version_that_older_releases_serve(world: World) -> None:
    crd = world.api.get("CustomResourceDefinition", None, f"{PLURAL}.{GROUP}")
    assert [f"{GROUP}/{version}" for version in crd["status"]["storedVersions"]] == [STORED_API_VERSION]
