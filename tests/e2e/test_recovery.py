"""A run that loses a pod ends as if nothing had happened."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from demo.kubectl import Cluster
from demo.run import Run, Step

EXAMPLE = Path(__file__).parents[2] / "examples" / "tiny-gpt.yaml"
ITERATIONS = 80
MINUTES = 60.0


def recipe(cluster: Cluster, name: str) -> Run:
    """The demo's run under another name, short enough for a test."""
    run = Run(cluster, EXAMPLE, name)
    run.manifest["spec"]["training"]["trainIters"] = ITERATIONS
    return run


def finish(run: Run) -> list[Step]:
    status = run.wait(lambda status: status.phase in ("Succeeded", "Failed"), 10 * MINUTES)
    assert status.phase == "Succeeded", status.message
    return run.history()


@pytest.fixture(scope="module")
def undisturbed(cluster: Cluster) -> Iterator[dict[int, float]]:
    """Loss of every iteration of a run that nothing happened to."""
    run = recipe(cluster, "undisturbed")
    run.apply()
    steps = finish(run)
    assert [s.iteration for s in steps] == list(range(1, ITERATIONS + 1))
    yield {s.iteration: s.loss for s in steps}
    run.delete()


@pytest.mark.parametrize("victim", ["worker-0", "master-0"])
def test_every_loss_after_the_loss_of_a_pod_equals_the_undisturbed_runs(
    cluster: Cluster, undisturbed: dict[int, float], victim: str
) -> None:
    run = recipe(cluster, f"loses-{victim}")
    run.apply()
    run.wait(lambda status: (status.checkpoint or 0) > 0 and (status.iteration or 0) >= 30, 10 * MINUTES)
    run.kill_pod(f"{run.name}-{victim}")
    steps = finish(run)
    status = run.status()
    assert len({s.generation for s in steps}) > 1, "the run was never disturbed"
    assert {s.iteration for s in steps} == set(undisturbed)
    assert {(s.iteration, s.loss) for s in steps} == set(undisturbed.items())
    assert status.restarts >= 1
    run.delete()
    assert run.pods() == []
