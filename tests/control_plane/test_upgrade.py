"""Runs live on while the operator is upgraded from the last release, and while it is rolled back to it.

Operator, chart and CRD of the release come from the history of the repository, and run with the packages of
this checkout's .venv. A clone without that commit skips these tests: `git fetch --unshallow`.
"""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from localcluster import Cluster
from megatron_operator.api.labels import API_VERSION

from testkit.api_server import Api, Object
from testkit.chart_installation import CHART, chart_objects, install_chart
from testkit.kubectl import ROOT
from testkit.last_release import VERSION
from testkit.operator_process import OPERATOR_NAMESPACE, OperatorProcess, write_kubeconfig
from testkit.run_state import RunState
from testkit.waiting import wait_until
from tests.control_plane.conftest import PLATFORM, STORAGE_CLASS
from tests.control_plane.gateway import Gateway
from tests.control_plane.pod_per_job import COMPLETED, QUEUE
from tests.control_plane.test_diagnosis import create_claim
from tests.control_plane.world import World

VALUES: Object = {"platform": PLATFORM}
pytestmark = pytest.mark.job_backends("pytorchjob", reason=f"release {VERSION} creates PyTorchJobs alone")


class Versions:
    """The release's operator and this one, with their charts; one of them runs."""

    def __init__(
        self, cluster: Cluster, api: Api, current: OperatorProcess, gateway: Gateway, release: Path
    ) -> None:
        self._cluster = cluster
        self._api = api
        self._folder = release.parent
        self._chart = release / "charts" / "megatron-operator"
        self._server = gateway.url
        self._kubeconfig = release.parent / "kubeconfig"
        self.released = current.from_source(release, self._kubeconfig)
        self._current = current

    def upgrade(self) -> None:
        """What `helm upgrade` does."""
        self.released.stop()
        self.begin_upgrade()

    def begin_upgrade(self) -> None:
        """What `helm upgrade` does until the old pod ends: both run, and the release elects no leader."""
        install_chart(self._cluster, self._api, OPERATOR_NAMESPACE, VALUES, self._folder, CHART)
        self._current.ensure()

    def wait_until_the_release_is_denied(self) -> None:
        """Until the older operator, which runs, has tried to act on a recipe and may not."""
        wait_until("the release to have no rights", lambda: "403" in self.released.log())
        assert self.released.running()

    def roll_back(self) -> None:
        """What `helm rollback` does: it also deletes what the older release has not.

        Service accounts stay, so that the tokens of other tests stay valid; they have no rights.
        """
        self._current.stop()
        self._install_release()
        self.released.ensure()

    def roll_back_with_this_crd(self) -> None:
        """The same, and then `kubectl apply` of the CRD with v1beta1."""
        self._current.stop()
        self._install_release()
        self._api.apply(yaml.safe_load((ROOT / "crds" / "megatronrecipes.yaml").read_text()))
        self.released.ensure()

    def _install_release(self) -> None:
        newer, older = (
            chart_objects(self._cluster, OPERATOR_NAMESPACE, VALUES, self._folder, chart)
            for chart in (CHART, self._chart)
        )
        kept = {(each["kind"], each["metadata"]["name"]) for each in older}
        for each in newer:
            metadata = each["metadata"]
            if each["kind"] != "ServiceAccount" and (each["kind"], metadata["name"]) not in kept:
                self._api.delete(each["kind"], metadata.get("namespace"), metadata["name"])
        token = install_chart(self._cluster, self._api, OPERATOR_NAMESPACE, VALUES, self._folder, self._chart)
        write_kubeconfig(self._kubeconfig, self._server, token)


@pytest.fixture(scope="module")
def versions(
    cluster: Cluster, api: Api, last_release: Path, operator_process: OperatorProcess, gateway: Gateway
) -> Iterator[Versions]:
    """Both versions; this one runs before the tests and after them."""
    versions = Versions(cluster, api, operator_process, gateway, last_release)
    yield versions
    versions.upgrade()


@pytest.fixture
def with_release(versions: Versions, world: World) -> World:
    """A namespace in which nothing exists yet; the release's operator runs."""
    versions.roll_back()
    return world


def identity(state: RunState) -> tuple[set[str], str | None, int]:
    """What changes when a pod or a job is created again or a job is changed."""
    assert state.job is not None
    return state.pod_uids, state.job_uid, state.job["metadata"]["generation"]


def lose_worker(world: World, generation: int, iteration: int, restarts: int) -> RunState:
    """Kill the worker's pod, and let the run continue from its checkpoint, 10 iterations before.

    `restarts` are those of the run that the status then has.
    """
    before = world.wait_for("run", pods=2)
    world.terminate("run-worker-0", 138, json.dumps({"message": "rank 3 was killed"}))
    world.wait_for("run", pods=2, without=[before.uid_of("worker-0")])
    return world.train(
        "run",
        iteration,
        checkpoint=iteration - 10,
        recovery={"restarts": restarts},
        generation=generation,
        resumedFrom=iteration - 11,
    )


def test_a_run_and_its_history_live_on_through_an_upgrade_and_a_rollback(
    with_release: World, versions: Versions
) -> None:
    world = with_release
    world.apply("run")
    assert "ledger" not in world.train("run", 60, checkpoint=50).status, "the release has no ledger"
    started = identity(lose_worker(world, 2, 70, restarts=1))
    versions.upgrade()
    state = world.train("run", 80, checkpoint=70, generation=2, resumedFrom=59)
    assert identity(state) == started
    assert state.recovery["restarts"] == 1
    assert state.recovery["lastCause"] == "worker-0: rank 3 was killed (exit code 138)"
    assert "ledger" in state.status
    after_loss = lose_worker(world, 3, 90, restarts=2)
    versions.roll_back()
    state = world.train("run", 100, checkpoint=90, generation=3, resumedFrom=79)
    assert identity(state) == identity(after_loss)
    assert state.recovery["restarts"] == 2
    assert lose_worker(world, 4, 110, restarts=3).job_uid == started[1]


def test_a_run_that_this_version_started_lives_on_with_the_release(
    with_release: World, versions: Versions
) -> None:
    world = with_release
    versions.upgrade()
    world.apply("run")
    started = identity(world.train("run", 60, checkpoint=50))
    versions.roll_back()
    state = world.train("run", 70, checkpoint=60)
    assert identity(state) == started
    assert "ledger" not in state.status, "the release's CRD has none"
    versions.upgrade()
    state = world.train("run", 80, checkpoint=70)
    assert identity(state) == started
    assert "ledger" in state.status


def test_a_run_on_prepared_datasets_is_not_stopped_for_a_check_that_the_release_did_not_have(
    with_release: World, versions: Versions
) -> None:
    world = with_release
    create_claim(world, "corpus")
    data = {
        "volume": {"claimName": "corpus"},
        "tokenizer": {"tokenizerType": "NullTokenizer"},
        "blend": [{"path": "web_text_document"}],
    }
    # On platform cpu the release trained in BF16 by default, and this version does not.
    changes = {"data": data, "model": {"vocabSize": 4096}, "training": {"bf16": False}}
    world.apply("run", **changes)
    started = identity(world.train("run", 60, checkpoint=50))
    versions.upgrade()
    assert identity(world.train("run", 70, checkpoint=60)) == started
    world.edit("run", suspend=True)
    world.wait_for("run", phase="Suspended", pods=0)
    world.edit("run", suspend=False)
    state = world.wait_for("run", pods=2, conditions={"Prepared": "NothingToPrepare"})
    assert state.job_uid != started[1]
    assert not world.api.list("Job", world.namespace), "none checks what the run has read already"
    world.apply("new", **changes)
    world.wait_for("new", pods=2, conditions={"Prepared": "Checked"})


def test_a_run_is_not_refused_for_defaults_that_the_release_wrote_into_its_recipe(
    with_release: World, versions: Versions
) -> None:
    world = with_release
    create_claim(world, "corpus")
    data = {
        "volume": {"claimName": "corpus"},
        "tokenizer": {"tokenizerType": "HuggingFaceTokenizer", "tokenizerModel": "/data/tokenizer"},
        "prepare": {"source": "/data/text"},
    }
    # On platform cpu the release trained in BF16 by default, and this version does not.
    world.apply("run", data=data, training={"bf16": False})
    started = identity(world.train("run", 60, checkpoint=50))
    stored = world.api.get("MegatronRecipe", world.namespace, "run")["spec"]["data"]["prepare"]
    assert (stored["include"], stored["tokenizerVocabSize"]) == ("**/*.txt", 32000)
    versions.upgrade()
    state = world.train("run", 70, checkpoint=60, conditions={"Planned": "Planned"})
    assert identity(state) == started
    sources = [{"path": "/data/text/**/*.txt"}]
    world.edit("run", data={"sources": sources, "prepare": {"source": None}})
    world.wait_for("run", conditions={"Planned": "Planned"}, observed=True)


def test_an_upgrade_and_a_rollback_start_nothing_that_waits_or_has_ended(
    with_release: World, versions: Versions
) -> None:
    world = with_release
    world.apply("done")
    world.train("done", 200, checkpoint=200)
    for place in ("done-worker-0", "done-master-0"):
        world.terminate(place, 0, COMPLETED, "Completed")
    job = world.wait_for("done", phase="Succeeded").job_uid
    world.apply("suspended", suspend=True)
    world.wait_for("suspended", phase="Suspended")
    world.apply("queued", **QUEUE)
    world.wait_for("queued", conditions={"Running": "Queued"}, job=True)
    world.apply("refused", accelerator={"type": "tpu", "count": 4})
    world.wait_for("refused", phase="Refused")
    steps = ((versions.upgrade, "Queued"), (versions.roll_back, "Pending"))
    for number, (step, waits) in enumerate(steps):
        step()
        # A new recipe is reconciled after all existing ones.
        world.apply(f"marker-{number}", accelerator={"type": "tpu", "count": 4})
        world.wait_for(f"marker-{number}", phase="Refused")
        assert world.wait_for("done", phase="Succeeded").job_uid == job
        world.wait_for("suspended", phase="Suspended", job=False, pods=0)
        world.wait_for("queued", phase=waits, conditions={"Running": "Queued"}, pods=0)
        world.wait_for("refused", phase="Refused", job=False, pods=0)


def test_two_versions_that_run_at_once_recover_a_run_once(with_release: World, versions: Versions) -> None:
    """The release cannot read a status with fields that it does not know, and would replace it."""
    world = with_release
    world.apply("run")
    started = identity(world.train("run", 60, checkpoint=50))
    versions.begin_upgrade()
    after_loss = lose_worker(world, 2, 70, restarts=1)
    assert after_loss.job_uid == started[1]
    versions.wait_until_the_release_is_denied()
    versions.upgrade()
    state = world.train("run", 80, checkpoint=70, generation=2, resumedFrom=59)
    assert identity(state) == identity(after_loss)
    assert state.recovery["restarts"] == 1


def test_a_recipe_of_the_newer_version_trains_on_with_the_release_and_the_newer_crd(
    with_release: World, versions: Versions
) -> None:
    """Without v1beta1 in the CRD the API server refuses to apply a status to what was written in it.

    With this CRD the release sees a status that it does not know, and creates the job once more.
    """
    world = with_release
    versions.upgrade()
    claim = {"accessModes": ["ReadWriteMany"], "resources": {"requests": {"storage": "1Gi"}}}
    world.api.apply(
        {
            "apiVersion": "v1",
            "kind": "PersistentVolumeClaim",
            "metadata": {"name": "corpus", "namespace": world.namespace},
            "spec": claim | {"storageClassName": STORAGE_CLASS},
        }
    )
    # The API server adds defaults to each entry of a list.
    data = {
        "volume": {"claimName": "corpus"},
        "tokenizer": {"tokenizerType": "HuggingFaceTokenizer", "tokenizerModel": "/data/tokenizer"},
        "blend": [{"path": "web_text_document"}, {"path": "code_text_document", "weight": 2}],
    }
    world.apply("run", api_version=API_VERSION, data=data)
    world.train("run", 60, checkpoint=50)
    versions.roll_back_with_this_crd()
    world.train("run", 70, checkpoint=60)
    lose_worker(world, 2, 80, restarts=1)
