"""Runs on JobSet, with its real controller: `make test-jobset` builds it first, which takes minutes."""

from collections.abc import Callable, Iterator

import pytest
from localcluster import Cluster

from testkit.api_server import Api, Object
from testkit.fake_trainers import FakeProgressServer
from testkit.operator_process import OperatorProcess
from tests.control_plane.gateway import Gateway
from tests.control_plane.pod_per_job import (
    PodPerJobWorld,
    RunsWithPodPerJob,
    backend_setter,
    operator_of,
)
from tests.control_plane.run_backend import RUN_BACKENDS
from tests.control_plane.world import World

pytestmark = pytest.mark.job_backends(
    "pytorchjob", reason="starts its own controllers beside the training-operator: make test-jobset"
)


class JobSetWorld(PodPerJobWorld):
    """A world with training jobs of kind JobSet."""

    backend = RUN_BACKENDS["jobset"]


@pytest.fixture(scope="module")
def operator_process(
    cluster: Cluster, install: Callable[[str, Object], str], operator_process: OperatorProcess
) -> Iterator[OperatorProcess]:
    """An operator that handles JobSets, on a platform with `jobBackend: jobset`; JobSet's controller runs."""
    with (
        cluster.jobsets(),
        operator_of(RUN_BACKENDS["jobset"], install, operator_process) as process,
    ):
        yield process


@pytest.fixture
def choose(world: World, install: Callable[[str, Object], str]) -> Callable[[str], None]:
    """Sets the platform's `jobBackend`, and keeps the rights on JobSets."""
    return backend_setter("jobSets", world, install)


@pytest.fixture
def runs(api: Api, gateway: Gateway, trainers: FakeProgressServer, world: World) -> JobSetWorld:
    """The test's namespace, with training jobs of kind JobSet."""
    return JobSetWorld(api, world.namespace, world.operator, gateway, trainers)


class TestRunsOnJobSet(RunsWithPodPerJob):
    """All that the backends with one Job for each pod have in common."""


def test_a_cluster_without_jobset_is_reported(runs: JobSetWorld) -> None:
    runs.gateway.hidden = "/apis/jobset.x-k8s.io"
    runs.apply("run")
    state = runs.wait_for("run", phase="Pending", conditions={"Running": "JobSetMissing"})
    assert state.conditions["Running"]["message"] == (
        "this cluster does not know JobSet (jobset.x-k8s.io/v1alpha2); install JobSet (jobset.sigs.k8s.io)"
    )
    runs.gateway.hidden = None
    runs.wait_for("run", pods=2)


def test_a_job_set_of_somebody_else_is_left_alone(runs: JobSetWorld) -> None:
    container = {"name": "work", "image": "work"}
    template = {"spec": {"restartPolicy": "Never", "containers": [container]}}
    made = runs.api.create(
        {
            "apiVersion": "jobset.x-k8s.io/v1alpha2",
            "kind": "JobSet",
            "metadata": {"name": "taken", "namespace": runs.namespace},
            "spec": {
                "suspend": True,
                "replicatedJobs": [{"name": "work", "template": {"spec": {"template": template}}}],
            },
        }
    )
    runs.apply("taken")
    state = runs.wait_for("taken", phase="Pending", conditions={"Running": "NameTaken"})
    message = state.conditions["Running"]["message"]
    assert message.startswith("JobSet taken exists and is not this recipe's")
    runs.api.delete("MegatronRecipe", runs.namespace, "taken")
    runs.wait_for_only("MegatronRecipe")
    assert runs.job("taken")["metadata"]["uid"] == made["metadata"]["uid"]
