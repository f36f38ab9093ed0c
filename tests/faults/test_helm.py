"""`helm upgrade` from the last release, `helm rollback` to it, and `helm test`, while a run trains.

Chart, CRD and operator of the release are its own; the operator's image is built from the history of the
repository. The run's pods have the trainer's image of this checkout: that of the release would take minutes
more, and an upgrade replaces no trainer pod. The release takes the place of the chart that other tests use,
which is installed again at the end: two installations cannot share the CRD.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from localcluster import Cluster
from localcluster.images import operator_of
from megatron_operator.api.labels import STORED_API_VERSION
from megatron_operator.manifests.image_pinning import trainer_image

from testkit.installation import OPERATOR_NAMESPACE, install_operator, uninstall_operator
from testkit.kubectl import Kubectl
from testkit.last_release import VERSION
from testkit.waiting import wait_until
from testkit.watched_run import WatchedRun
from tests.faults.conftest import BACKEND

NAME = "megatron-operator"
CRD = "CustomResourceDefinition"
ITERATIONS = 100_000
"""More than are done."""
OF_SERVER = ("resourceVersion", "generation", "managedFields", "creationTimestamp")
"""Metadata of each write or creation."""

Objects = dict[tuple[str, str], dict[str, Any]]
"""By kind and name."""


class Helm:
    """The chart's release on the cluster: installed, upgraded, rolled back."""

    def __init__(self, kubectl: Kubectl) -> None:
        self._kubectl = kubectl
        self._system = Kubectl(kubectl.kubeconfig, OPERATOR_NAMESPACE)

    def install(self, source: Path, image: str) -> None:
        """Install the chart of another source tree."""
        chart = source / "charts" / NAME
        values = ("-f", f"{chart}/values-local-simulated.yaml", "--set", f"image={image}")
        self._helm("install", NAME, str(chart), *values, "--wait", "--timeout", "3m")

    def upgrade(self) -> None:
        """To the chart of this checkout."""
        install_operator(self._kubectl, backend=BACKEND)

    def roll_back(self, revision: int) -> None:
        self._helm("rollback", NAME, str(revision), "--wait", "--timeout", "3m")

    def test(self) -> str:
        """What `helm test` prints. Raises CommandFailedError when it fails."""
        return self._helm("test", NAME, "--logs", "--timeout", "3m")

    def delete_test_pod(self) -> None:
        """Nothing else deletes it before the next `helm test`."""
        self._system.run("delete", "pod", f"{NAME}-test", "--ignore-not-found")

    def history(self) -> list[tuple[int, str, str]]:
        """Number, state and description of each revision."""
        found = json.loads(self._helm("history", NAME, "-o", "json"))
        return [(each["revision"], each["status"], each["description"]) for each in found]

    def objects(self) -> Objects:
        """The objects of the current revision as the cluster has them. Raises CommandFailedError."""
        manifest = self._helm("get", "manifest", NAME)
        found = json.loads(self._system.run("get", "-o", "json", "-f", "-", stdin=manifest))["items"]
        return {(each["kind"], each["metadata"]["name"]): without_traces(each) for each in found}

    def exists(self, kind: str, name: str) -> bool:
        return self._system.get(kind, name) is not None

    def leader(self) -> str:
        """The pod that holds the Lease."""
        lease = self._system.get("lease", f"{NAME}-leader")
        assert lease is not None
        return str(lease["spec"]["holderIdentity"])

    def _helm(self, *arguments: str) -> str:
        return self._system.helm(*arguments, "--namespace", OPERATOR_NAMESPACE)


def without_traces(item: dict[str, Any]) -> dict[str, Any]:
    """An object without its state and without what depends on the number of writes."""
    metadata = {key: value for key, value in item["metadata"].items() if key not in OF_SERVER}
    annotations = dict(metadata.get("annotations", {}))
    annotations.pop("deployment.kubernetes.io/revision", None)
    return {key: value for key, value in item.items() if key != "status"} | {
        "metadata": metadata | {"annotations": annotations}
    }


def contents(objects: Objects) -> Objects:
    """The objects without their UIDs, which differ after they were created again."""
    return {
        key: each | {"metadata": {k: v for k, v in each["metadata"].items() if k != "uid"}}
        for key, each in objects.items()
    }


def uid_of_crd(objects: Objects) -> str:
    return next(str(each["metadata"]["uid"]) for (kind, _), each in objects.items() if kind == CRD)


def job_of(run: WatchedRun) -> dict[str, Any]:
    return run.api.get("PyTorchJob", run.kubectl.namespace, run.name)


def identity(run: WatchedRun) -> dict[str, Any]:
    """What changes when the job is changed, or it, a pod, a container or a rank is started again.

    Of the job's spec all but the trainer's image, which the operator pins to the digest that the pods run.
    """
    job = job_of(run)
    nodes = range(run.nodes)
    return {
        "job": job["metadata"]["uid"],
        "spec": json.dumps(job["spec"]).replace(str(trainer_image(job)), "IMAGE"),
        "pods": sorted(pod["metadata"]["uid"] for pod in run.pods()),
        "containers": [run.container(node).id for node in nodes],
        "ranks": [run.ranks(node) for node in nodes],
    }


def pinned_generation(run: WatchedRun) -> int | None:
    """The job's generation once its image has a digest, which 0.2.0 does not give it."""
    job = job_of(run)
    return int(job["metadata"]["generation"]) if "@sha256:" in str(trainer_image(job)) else None


def wait_until_reported(run: WatchedRun) -> None:
    """Wait until the operator that runs now has reported a checkpoint that the run makes from now on."""
    done = run.records()[-1].iteration

    def reported() -> bool:
        return (run.require_alive().checkpoint or 0) > done

    wait_until(f"a checkpoint after iteration {done} in the status of {run.name}", reported)


def assert_that_helm_test_names_the_leader(helm: Helm) -> None:
    printed = helm.test()
    # Read afterwards: until one of the new pods leads, the Lease has the holder of the former installation.
    assert f"{helm.leader()} leads, and recipes can be read" in printed


@pytest.fixture(scope="module")
def release_image(cluster: Cluster, last_release: Path) -> str:
    """The operator's image of the last release, on both nodes."""
    image = operator_of(last_release, VERSION)
    cluster.images([image])
    return image.reference


@pytest.fixture
def helm(kubectl: Kubectl) -> Iterator[Helm]:
    """The chart of this checkout is installed, before and after the test."""
    if BACKEND != "pytorchjob":
        pytest.skip(f"release {VERSION} creates PyTorchJobs only")
    helm = Helm(kubectl)
    yield helm
    helm.upgrade()
    helm.delete_test_pod()


@pytest.fixture
def run(kubectl: Kubectl) -> Iterator[WatchedRun]:
    """A run that the last release accepts, not yet applied."""
    run = WatchedRun(kubectl, "upgraded", ITERATIONS)
    run.manifest["apiVersion"] = STORED_API_VERSION
    yield run
    run.delete()


def test_a_run_trains_on_while_helm_upgrades_rolls_back_and_upgrades_again(
    helm: Helm, run: WatchedRun, kubectl: Kubectl, last_release: Path, release_image: str
) -> None:
    installed = helm.objects()
    uninstall_operator(kubectl)
    helm.install(last_release, release_image)
    released = helm.objects()
    run.apply()
    wait_until(f"{run.name} to train", run.is_training)
    wait_until_reported(run)
    started = identity(run)

    helm.upgrade()
    assert_that_helm_test_names_the_leader(helm)
    wait_until_reported(run)
    assert identity(run) == started
    generation = wait_until("the image of the job to be pinned", lambda: pinned_generation(run))
    upgraded = helm.objects()
    assert contents(upgraded) == contents(installed)

    helm.roll_back(1)
    wait_until_reported(run)
    assert identity(run) == started
    assert helm.objects() == released
    assert [key for key in upgraded.keys() - released.keys() if helm.exists(*key)] == []

    helm.upgrade()
    assert_that_helm_test_names_the_leader(helm)
    wait_until_reported(run)
    assert identity(run) == started
    final = helm.objects()
    assert contents(final) == contents(installed)
    assert uid_of_crd(final) == uid_of_crd(installed)

    assert pinned_generation(run) == generation
    done = [record.iteration for record in run.records()]
    assert done == list(range(1, len(done) + 1)), "each iteration was done once"
    assert helm.history() == [
        (1, "superseded", "Install complete"),
        (2, "superseded", "Upgrade complete"),
        (3, "superseded", "Rollback to 1"),
        (4, "deployed", "Upgrade complete"),
    ]
