"""The Python SDK against the real API server and the operator."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from localcluster import Cluster
from megatron_operator.sdk import (
    ApplyConflictError,
    Connection,
    Recipe,
    Run,
    RunFailedError,
    RunNotFoundError,
)

from testkit.waiting import LONG_DEADLINE
from tests.control_plane.world import World

UNSPLIT = {"tensorModelParallelSize": 1, "pipelineModelParallelSize": 1, "contextParallelSize": 1}


@pytest.fixture
def connection(cluster: Cluster, world: World) -> Iterator[Connection]:
    with Connection(kubeconfig=cluster.kubeconfig, namespace=world.namespace) as connection:
        yield connection


def recipe(name: str, **sections: object) -> Recipe:
    accelerator = {"count": 4, "perNode": 2}
    given = {"data": {"mockData": True}, "parallelism": {"tensorModelParallelSize": 2}} | sections
    return Recipe("tiny-gpt", name=name, accelerator=accelerator, **given)


def test_a_run_is_applied_followed_suspended_resumed_and_deleted(
    world: World, connection: Connection
) -> None:
    run = Run.apply(recipe("run"), connection).wait(condition="Planned", timeout=LONG_DEADLINE)
    assert run.status.plan is not None
    assert run.status.plan.world_size == 4
    with ThreadPoolExecutor() as background:
        training = background.submit(run.wait, phase="Training", timeout=LONG_DEADLINE)
        world.train("run", 10, checkpoint=5, lmLoss=2.5)
        training.result()
    first = next(run.stream())
    assert (first.phase, first.iteration, first.lm_loss) == ("Training", 10, 2.5)
    assert run.suspend().wait(phase="Suspended", timeout=LONG_DEADLINE).phase == "Suspended"
    world.wait_for("run", phase="Suspended", pods=0, job=False)
    assert (
        run.resume().wait(phase="Starting", timeout=LONG_DEADLINE).recipe.to_dict()["spec"]["suspend"]
        is False
    )
    assert [each.name for each in Run.list(connection)] == ["run"]
    assert "Planned" in [entry.reason for entry in run.history().timeline]
    run.delete()
    world.wait_for_only("MegatronRecipe")


def test_apply_removes_what_it_set_before_and_leaves_what_others_set(
    world: World, connection: Connection
) -> None:
    Run.apply(recipe("run", suspend=True, training={"seed": 1, "lr": 1e-4}), connection)
    world.edit("run", recovery={"maxRestarts": 3})
    spec = Run.apply(recipe("run", suspend=True, training={"lr": 2e-4}), connection).resource["spec"]
    assert spec["training"] == {"lr": 2e-4}
    assert spec["recovery"]["maxRestarts"] == 3
    changed = recipe("run", suspend=True, recovery={"maxRestarts": 5})
    with pytest.raises(ApplyConflictError, match=r"\.spec\.recovery\.maxRestarts.*force=True"):
        Run.apply(changed, connection)
    assert Run.apply(changed, connection, force=True).resource["spec"]["recovery"]["maxRestarts"] == 5


def test_a_run_does_not_change_the_one_that_was_re_created_under_its_name(
    world: World, connection: Connection
) -> None:
    run = Run.apply(recipe("run", suspend=True), connection)
    run.delete()
    world.wait_for_only("MegatronRecipe")
    again = Run.apply(recipe("run", suspend=True), connection)
    with pytest.raises(RunNotFoundError):
        run.wait(timeout=LONG_DEADLINE)
    with pytest.raises(RunNotFoundError):
        run.resume()
    assert again.refresh().resource["spec"]["suspend"] is True
    assert again.resume().resource["spec"]["suspend"] is False


def test_a_refused_run_is_raised_with_the_operators_message(connection: Connection) -> None:
    run = Run.apply(recipe("run", parallelism=UNSPLIT, training={"globalBatchSize": 7}), connection)
    with pytest.raises(RunFailedError, match=r"^\S+/run: Refused: spec\.training\.globalBatchSize: "):
        run.wait(timeout=LONG_DEADLINE)
