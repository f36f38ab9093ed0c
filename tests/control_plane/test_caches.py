"""A run that trains is followed by what the watches deliver."""

import itertools

from testkit.waiting import wait_until
from tests.control_plane.world import World


def reads(world: World) -> list[str]:
    """Paths of all reads in the world's namespace since the gateway was reset."""
    return [path for path in world.gateway.reads if f"/namespaces/{world.namespace}/" in path]


def written_without_a_read(world: World, iteration: int) -> bool:
    """Whether the status has the run's next iteration, and nothing was read for it."""
    world.gateway.reset()
    # The first iteration after a start is written at once.
    world.report("run", iteration=iteration, resumedFrom=iteration - 1)
    world.wait_for("run", phase="Training", status={"progress": {"iteration": iteration}})
    return not reads(world)


def test_progress_of_a_run_that_trains_is_written_without_a_read(world: World) -> None:
    world.apply("run")
    world.train("run", 10)
    iterations = itertools.count(11)
    # The last pods' events may still be reconciled.
    wait_until("a write without a read", lambda: written_without_a_read(world, next(iterations)))
    following = [written_without_a_read(world, next(iterations)) for _ in range(5)]
    assert all(following)


def test_what_is_counted_is_read_from_the_api_server(world: World) -> None:
    world.apply("run")
    world.train("run", 10)
    iterations = itertools.count(11)
    wait_until("a write without a read", lambda: written_without_a_read(world, next(iterations)))
    world.gateway.reset()
    world.report("run", phase="rendezvous", iteration=next(iterations))
    world.terminate("run-worker-0", 138)
    world.wait_for("run", pods=2, status={"recovery": {"restarts": 1}})
    found = {path.rsplit("/", 2)[-2] for path in reads(world)} | {
        path.rsplit("/", 1)[-1] for path in reads(world)
    }
    assert {"megatronrecipes", world.backend.manifests.PLURAL, "pods"} <= found
