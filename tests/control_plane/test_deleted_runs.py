"""GPU hours of deleted runs, in the operator's ConfigMaps: each run is counted once."""

from typing import Any

from megatron_operator.lifecycle.usage_records import CONFIG_MAPS, NamespaceUse, Records, total

from testkit.operator_process import OPERATOR_NAMESPACE
from testkit.waiting import wait_until
from tests.control_plane.test_operator_restart import killed_after_every_write
from tests.control_plane.world import World


def records(world: World) -> list[Records]:
    """Those of the operator's ConfigMaps."""
    found = [world.api.find("ConfigMap", OPERATOR_NAMESPACE, name) for name in CONFIG_MAPS]
    return [Records.read(each.get("data")) for each in found if each]


def sums(world: World) -> NamespaceUse:
    """What the operator has counted for the deleted runs of the test's namespace."""
    parts = [Records(namespaces=each.namespaces) for each in records(world)]
    return total(parts, []).get(world.namespace, NamespaceUse())


def recorded(world: World) -> set[str]:
    """Names of the test's runs that have a record."""
    uses = [use for each in records(world) for use in each.runs.values()]
    return {use.name for use in uses if use.namespace == world.namespace}


def train(world: World, *names: str) -> None:
    for name in names:
        world.apply(name)
        world.train(name, 10, checkpoint=5)


def delete(world: World, *names: str) -> None:
    for name in names:
        world.api.delete("MegatronRecipe", world.namespace, name)


def wait_until_counted(world: World, runs: int) -> dict[str, Any]:
    """Wait until the sums have so many runs and no record is left. Returns their accelerator seconds."""

    def counted() -> bool:
        return sums(world).runs == runs and not recorded(world)

    wait_until(lambda: f"{runs} runs in {sums(world)}, records of {recorded(world)}", counted)
    return sums(world).accelerator_seconds


def test_deleted_runs_are_counted_and_the_deletion_waits_for_nothing(world: World) -> None:
    train(world, "one", "two")
    recipe = world.api.get("MegatronRecipe", world.namespace, "one")
    assert not recipe["metadata"].get("finalizers")
    delete(world, "one", "two")
    assert wait_until_counted(world, 2)["train"] > 0
    train(world, "one")
    delete(world, "one")
    wait_until_counted(world, 3)


def test_a_run_is_counted_once_when_the_operator_is_killed_after_each_write(world: World) -> None:
    """Also between the final record and the sums, and between the sums and their answer."""
    train(world, "run")
    world.operator.stop()
    assert recorded(world) == {"run"}
    held = [use for each in records(world) for use in each.runs.values() if use.namespace == world.namespace]
    world.operator.start()
    world.wait_for("run", phase="Training")
    with killed_after_every_write(world) as kills:
        delete(world, "run")
        seconds = wait_until_counted(world, 1)
    assert kills[0] >= 1
    assert sum(seconds.values()) >= sum(held[0].accelerator_seconds.values()) > 0
    # The operator that stays, and the one after it, find nothing that is left to count.
    world.operator.stop()
    world.operator.start()
    train(world, "later")
    delete(world, "later")
    wait_until_counted(world, 2)


def test_a_run_that_is_deleted_while_no_operator_runs_is_counted_by_the_next_one(world: World) -> None:
    train(world, "run")
    world.operator.stop()
    before = [
        use for each in records(world) for use in each.runs.values() if use.namespace == world.namespace
    ]
    delete(world, "run")
    assert not world.api.find("MegatronRecipe", world.namespace, "run"), "the deletion waits for no operator"
    world.operator.start()
    assert wait_until_counted(world, 1) == before[0].accelerator_seconds
