"""Runs on TrainJob, with the controllers of Kubeflow Trainer and JobSet: `make test-trainjob` builds them."""

from collections.abc import Callable, Iterator

import pytest
from localcluster import Cluster
from megatron_operator.manifests import trainjob

from testkit.api_server import Api, Object
from testkit.errors import ApiError
from testkit.fake_trainers import FakeProgressServer
from testkit.operator_process import OPERATOR_NAMESPACE, OperatorProcess
from testkit.waiting import wait_until
from tests.control_plane.conftest import PLATFORM
from tests.control_plane.gateway import Gateway
from tests.control_plane.pod_per_job import (
    COMPLETED,
    PodPerJobWorld,
    RunsWithPodPerJob,
    backend_setter,
    operator_of,
)
from tests.control_plane.run_backend import RUN_BACKENDS
from tests.control_plane.world import World
from tests.unit.manifests.conftest import Run
from tests.unit.manifests.test_golden import RECIPES

pytestmark = pytest.mark.job_backends(
    "pytorchjob", reason="starts its own controllers beside the training-operator: make test-trainjob"
)

ALL_KINDS = {"jobSets": True, "trainJobs": True}


class TrainJobWorld(PodPerJobWorld):
    """A world with training jobs of kind TrainJob."""

    backend = RUN_BACKENDS["trainjob"]

    def jobset(self, name: str) -> Object:
        """The JobSet that Trainer has made for a TrainJob."""
        return self.api.get("JobSet", self.namespace, name)


class JobSetWorld(PodPerJobWorld):
    """The same runs while their training jobs are JobSets of the operator's own."""

    backend = RUN_BACKENDS["jobset"]


@pytest.fixture(scope="module")
def operator_process(
    cluster: Cluster, install: Callable[[str, Object], str], operator_process: OperatorProcess
) -> Iterator[OperatorProcess]:
    """An operator that handles all kinds, on a platform with `jobBackend: trainjob`; all controllers run.

    Its rights are those of a release with that backend alone, unless a test chooses another one.
    """
    with (
        cluster.train_jobs(),
        operator_of(RUN_BACKENDS["trainjob"], install, operator_process) as process,
    ):
        yield process


@pytest.fixture
def choose(world: World, install: Callable[[str, Object], str]) -> Callable[[str], None]:
    """Sets the platform's `jobBackend`, and keeps the rights on TrainJobs."""
    return backend_setter("trainJobs", world, install)


@pytest.fixture
def runs(api: Api, gateway: Gateway, trainers: FakeProgressServer, world: World) -> TrainJobWorld:
    """The test's namespace, with training jobs of kind TrainJob."""
    return TrainJobWorld(api, world.namespace, world.operator, gateway, trainers)


class TestRunsOnTrainJob(RunsWithPodPerJob):
    """All that the backends with one Job for each pod have in common."""


def test_trainer_passes_the_pods_on_as_the_operator_describes_them(runs: TrainJobWorld) -> None:
    runs.apply("run")
    runs.wait_for("run", pods=2)
    made, runtime = runs.jobset("run"), runs.api.get("TrainingRuntime", runs.namespace, "run")
    [owner] = made["metadata"]["ownerReferences"]
    assert (owner["kind"], owner["uid"]) == ("TrainJob", runs.job("run")["metadata"]["uid"])
    described = runtime["spec"]["template"]["spec"]["replicatedJobs"]
    groups = {each["name"]: each for each in made["spec"]["replicatedJobs"]}
    assert {name: each["replicas"] for name, each in groups.items()} == {"master": 1, "worker": 1}
    for each in described:
        spec = groups[each["name"]]["template"]["spec"]["template"]["spec"]
        [container] = each["template"]["spec"]["template"]["spec"]["containers"]
        [passed_on] = spec["containers"]
        for field in ("args", "env", "image", "resources", "volumeMounts"):
            assert passed_on[field] == container[field], field
    assert runs.job("run")["spec"]["trainer"] == {"numNodes": 2, "numProcPerNode": 2}


@pytest.mark.parametrize("recipe", RECIPES)
def test_trainer_knows_every_field_of_the_runtimes(runs: TrainJobWorld, recipe: str) -> None:
    run = Run(recipe)
    run.resolved = run.resolved.model_copy(update={"job_backend": "trainjob"})
    [runtime] = [each for each in run.build().all() if each["kind"] == "TrainingRuntime"]
    runtime["metadata"]["namespace"] = runs.namespace
    answer = runs.api.apply(runtime, dryRun="All", fieldValidation="Strict")
    assert trainjob.templates(answer)[0]["spec"].keys() >= trainjob.templates(runtime)[0]["spec"].keys()


def test_a_job_that_replaces_a_complete_one_is_not_taken_for_complete(runs: TrainJobWorld) -> None:
    """Trainer copies the state of a JobSet of the name, which must be gone before."""
    runs.apply("run")
    before = runs.train("run", 60, checkpoint=50)
    for place in ("worker-0", "master-0"):
        runs.terminate(f"run-{place}", 0, COMPLETED, "Completed")
    runs.wait_for("run", phase="Succeeded")
    runs.edit("run", training={"trainIters": 400})
    state = runs.wait_for("run", pods=2, job=True, without=[*before.pod_uids, before.job_uid])
    assert runs.jobset("run")["metadata"]["ownerReferences"][0]["uid"] == state.job_uid
    runs.train("run", 220, checkpoint=200, generation=1, resumedFrom=200)


def test_a_job_that_somebody_deletes_is_created_again(runs: TrainJobWorld) -> None:
    runs.apply("run")
    before = runs.train("run", 60, checkpoint=50)
    runs.api.delete("TrainJob", runs.namespace, "run")
    state = runs.wait_for("run", pods=2, job=True, without=[*before.pod_uids, before.job_uid])
    assert runs.jobset("run")["metadata"]["ownerReferences"][0]["uid"] == state.job_uid


def test_a_jobset_that_somebody_deletes_is_created_again_by_trainer(runs: TrainJobWorld) -> None:
    runs.apply("run")
    before = runs.train("run", 60, checkpoint=50)
    runs.api.delete("JobSet", runs.namespace, "run")
    state = runs.wait_for("run", pods=2, without=before.pod_uids)
    assert state.job_uid == before.job_uid


def test_a_run_moves_between_a_trainjob_and_a_jobset_of_the_same_name(
    runs: TrainJobWorld, install: Callable[[str, Object], str]
) -> None:
    def choose(backend: str, **values: object) -> None:
        runs.operator.stop()
        operator.stop()
        install(OPERATOR_NAMESPACE, {"platform": PLATFORM | {"jobBackend": backend}} | values)
        operator.ensure()

    def move(to: PodPerJobWorld, before: list[str | None]) -> list[str | None]:
        runs.edit("run", suspend=True)
        runs.wait_for("run", phase="Suspended", job=False, pods=0)
        choose(to.backend.name, **ALL_KINDS)
        runs.edit("run", suspend=False)
        state = to.wait_for("run", pods=2, job=True, without=before)
        assert state.status["job"]["kind"] == to.job_kind
        return [*state.pod_uids, state.job_uid]

    operator = runs.operator.with_options(*RUN_BACKENDS["jobset"].operator_options)
    on_jobset = JobSetWorld(runs.api, runs.namespace, operator, runs.gateway, runs.trainers)
    runs.apply("run")
    state = runs.train("run", 60, checkpoint=50)
    try:
        before = move(on_jobset, [*state.pod_uids, state.job_uid])
        assert not runs.job_exists("run")
        move(runs, before)
    finally:
        operator.stop()
        choose_back = {"platform": PLATFORM | {"jobBackend": "trainjob"}}
        install(OPERATOR_NAMESPACE, choose_back)
        runs.operator.ensure()


def test_a_cluster_without_trainer_is_reported(runs: TrainJobWorld) -> None:
    runs.gateway.hidden = "/apis/trainer.kubeflow.org"
    runs.apply("run")
    state = runs.wait_for("run", phase="Pending", conditions={"Running": "TrainJobMissing"})
    assert state.conditions["Running"]["message"] == (
        "this cluster does not know TrainJob (trainer.kubeflow.org/v1alpha1); install Kubeflow Trainer v2 "
        "(kubeflow.org/trainer)"
    )
    runs.gateway.hidden = None
    runs.wait_for("run", pods=2)


@pytest.mark.parametrize("kind", ["TrainJob", "TrainingRuntime", "JobSet"])
def test_an_object_of_somebody_else_is_left_alone(runs: TrainJobWorld, kind: str) -> None:
    made = create_foreign(runs, kind)
    runs.apply("taken")
    state = runs.wait_for("taken", phase="Pending", conditions={"Running": "NameTaken"})
    message = state.conditions["Running"]["message"]
    assert message.startswith(f"{kind} taken exists and is not this recipe's")
    runs.api.delete("MegatronRecipe", runs.namespace, "taken")
    runs.wait_for_only("MegatronRecipe")
    left = runs.api.get(kind, runs.namespace, "taken")
    assert (left["metadata"]["uid"], left["spec"]) == (made["metadata"]["uid"], made["spec"])


def create_foreign(runs: TrainJobWorld, kind: str) -> Object:
    """An object of the kind, named `taken`, that belongs to no recipe and creates no pod."""
    container = {"name": "work", "image": "work"}
    template = {"spec": {"restartPolicy": "Never", "containers": [container]}}
    jobs = {"replicatedJobs": [{"name": "work", "template": {"spec": {"template": template}}}]}
    trainer = "trainer.kubeflow.org/v1alpha1"

    def create(kind: str, name: str, version: str, **spec: object) -> Object:
        metadata = {"name": name, "namespace": runs.namespace}
        return runs.api.create({"apiVersion": version, "kind": kind, "metadata": metadata, "spec": spec})

    def refer_to(runtime: str) -> Object | None:
        try:
            reference = {"kind": "TrainingRuntime", "name": runtime}
            return create("TrainJob", "taken", trainer, suspend=True, runtimeRef=reference)
        except ApiError as error:
            if "must be created before" not in str(error):
                raise
            return None

    if kind == "JobSet":
        return create(kind, "taken", "jobset.x-k8s.io/v1alpha2", suspend=True, **jobs)
    runtime = create(
        "TrainingRuntime", "taken" if kind == "TrainingRuntime" else "other", trainer, template={"spec": jobs}
    )
    if kind == "TrainingRuntime":
        return runtime
    return wait_until("Trainer to see the runtime", lambda: refer_to("other"))
