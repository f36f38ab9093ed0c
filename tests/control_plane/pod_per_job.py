"""What the tests of JobSet and of TrainJob share: both give each pod a Job of its own.

A module that uses it has the fixtures `runs` and `choose`, which changes the platform's `jobBackend`.
"""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from testkit.api_server import Object
from testkit.operator_process import OPERATOR_NAMESPACE, OperatorProcess
from testkit.run_state import RunState
from testkit.waiting import LONG_DEADLINE
from tests.control_plane.conftest import PLATFORM
from tests.control_plane.nodes import Pool
from tests.control_plane.run_backend import RunBackend
from tests.control_plane.test_diagnosis import create_quota
from tests.control_plane.test_operator_restart import killed_after_every_write
from tests.control_plane.world import World

QUEUE = {"scheduling": {"queue": "research"}}
COMPLETED = json.dumps({"reason": "Completed", "message": "all iterations are complete", "iteration": 200})


class PodPerJobWorld(World):
    """A world whose jobs are JobSets, or make JobSets."""

    def job(self, name: str) -> Object:
        """The training job."""
        return self.api.get(self.job_kind, self.namespace, name)

    def suspend_as_queue(self, name: str, suspend: bool) -> None:
        """What Kueue does when it takes a run's quota away or grants it."""
        self.api.patch(self.job_kind, self.namespace, name, {"spec": {"suspend": suspend}})


@contextmanager
def operator_of(
    backend: RunBackend, install: Callable[[str, Object], str], process: OperatorProcess
) -> Iterator[OperatorProcess]:
    """The operator, stopped, with this `jobBackend` and the rights of a release with that backend alone."""
    process.stop()
    install(OPERATOR_NAMESPACE, {"platform": PLATFORM | backend.platform})
    chosen = process.with_options(*backend.operator_options)
    yield chosen
    chosen.stop()
    install(OPERATOR_NAMESPACE, {"platform": PLATFORM})


def backend_setter(value: str, world: World, install: Callable[[str, Object], str]) -> Callable[[str], None]:
    """Sets the platform's `jobBackend`, and keeps the rights that `value` of the chart gives."""

    def set_backend(backend: str) -> None:
        # An operator that has read the former platform would create another job of the former kind.
        world.operator.stop()
        install(OPERATOR_NAMESPACE, {"platform": PLATFORM | {"jobBackend": backend}, value: True})
        world.operator.ensure()

    return set_backend


class RunsWithPodPerJob:
    """Behaviour of runs on such a backend."""

    def test_a_run_starts_trains_and_succeeds(self, runs: PodPerJobWorld) -> None:
        runs.apply("run")
        state = runs.train("run", 60, checkpoint=50)
        assert state.status["job"]["kind"] == runs.job_kind
        gang = {each["name"]: each for each in state.pods["worker-0"]["spec"]["containers"][0]["env"]}
        assert gang["MASTER_ADDR"]["value"] == "run-master-0-0.run"
        master = state.pods["master-0"]["spec"]
        assert f"{master['hostname']}.{master['subdomain']}" == gang["MASTER_ADDR"]["value"]
        assert runs.api.get("Service", runs.namespace, "run")["spec"]["clusterIP"] == "None"
        ranks = {name: pod["metadata"]["labels"] for name, pod in state.pods.items()}
        index = "jobset.sigs.k8s.io/job-global-index"
        assert {name: labels[index] for name, labels in ranks.items()} == {"master-0": "0", "worker-0": "1"}
        for place in ("worker-0", "master-0"):
            runs.terminate(f"run-{place}", 0, COMPLETED, "Completed")
        state = runs.wait_for("run", phase="Succeeded", conditions={"Succeeded": "Succeeded"})
        assert state.recovery["restarts"] == 0

    def test_a_pod_that_fails_is_replaced_alone_and_counted(self, runs: PodPerJobWorld) -> None:
        runs.apply("run")
        before = runs.train("run", 60, checkpoint=50)
        runs.report("run", phase="rendezvous", iteration=60, checkpointIteration=50)
        words = json.dumps({"reason": "WorkerDied", "message": "rank 3 was killed"})
        runs.terminate("run-worker-0", 138, words)
        state = runs.wait_for("run", pods=2, without=[before.uid_of("worker-0")])
        assert state.uid_of("master-0") == before.uid_of("master-0"), "only the pod that died is replaced"
        recovery = runs.train("run", 51, checkpoint=50, generation=2, resumedFrom=50).recovery
        assert (recovery["restarts"], recovery["restartsSinceCheckpoint"]) == (1, 1)
        assert recovery["lastCause"] == "worker-0: rank 3 was killed (exit code 138)"
        made = runs.api.get("JobSet", runs.namespace, "run")
        assert made["status"].get("restarts", 0) == 0, "JobSet's own failure policy is not used"

    def test_an_exit_code_that_is_not_retried_fails_the_run(self, runs: PodPerJobWorld) -> None:
        runs.apply("run")
        runs.train("run", 60, checkpoint=50)
        runs.terminate("run-worker-0", 1, json.dumps({"message": "bad flag"}))
        state = runs.wait_for("run", phase="Failed", conditions={"Failed": "JobFailed"})
        assert state.conditions["Failed"]["message"] == "worker-0: bad flag (exit code 1)"

    def test_a_master_that_exits_early_with_code_0_is_no_success(self, runs: PodPerJobWorld) -> None:
        """The controller takes the run for complete; the operator re-creates the job."""
        runs.apply("run")
        before = runs.train("run", 60, checkpoint=50)
        runs.terminate("run-master-0", 0)
        runs.wait_for("run", pods=2, without=[*before.pod_uids, before.job_uid])
        recovery = runs.train(
            "run",
            61,
            checkpoint=50,
            generation=2,
            resumedFrom=50,
            recovery={"restartsSinceCheckpoint": 1},
            conditions={"Succeeded": None},
        ).recovery
        assert recovery["lastCause"] == "master-0: ended with exit code 0 before the last iteration"

    def test_a_worker_that_exits_early_with_code_0_is_replaced(self, runs: PodPerJobWorld) -> None:
        runs.apply("run")
        before = runs.train("run", 60, checkpoint=50)
        runs.terminate("run-worker-0", 0)
        state = runs.wait_for("run", pods=2, without=[before.uid_of("worker-0")])
        assert state.job_uid == before.job_uid

    def test_pods_of_a_lost_node_are_replaced_on_another(
        self, runs: PodPerJobWorld, lose: Callable[[str], None]
    ) -> None:
        runs.apply("run")
        before = runs.train("run", 60, checkpoint=50)
        lost = before.node_of("worker-0")
        lose(lost)
        state = runs.wait_for("run", pods=2, without=[before.uid_of("worker-0")], seconds=LONG_DEADLINE)
        assert state.node_of("worker-0") != lost
        assert state.uid_of("master-0") == before.uid_of("master-0")
        restarts = {"restartsByKind": {"node": 1}}
        runs.train("run", 51, checkpoint=50, generation=2, resumedFrom=50, recovery=restarts)

    @pytest.mark.parametrize("resource", ["pods", "services"])
    def test_a_quota_on_what_the_job_is_made_of_is_reported(
        self, runs: PodPerJobWorld, resource: str
    ) -> None:
        create_quota(runs, resource, "0")
        runs.apply("run")
        state = runs.wait_for("run", conditions={"Running": "QuotaExceeded"})
        message = str(state.conditions["Running"]["message"])
        assert f"exceeded quota: limit, requested: {resource}=1" in message

    def test_a_queue_admits_suspends_and_resumes_a_run(self, runs: PodPerJobWorld) -> None:
        runs.apply("run", **QUEUE)
        state = runs.wait_for("run", phase="Queued", conditions={"Running": "Queued"}, job=True)
        assert not state.pods
        assert runs.job("run")["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == "research"
        runs.suspend_as_queue("run", False)
        before = runs.train("run", 60, checkpoint=50)
        runs.suspend_as_queue("run", True)
        runs.wait_for("run", phase="Queued", conditions={"Running": "Queued"}, pods=0)
        assert runs.job("run")["spec"]["suspend"] is True, "the operator leaves it to the queue"
        runs.suspend_as_queue("run", False)
        state = runs.wait_for("run", pods=2, without=before.pod_uids)
        assert state.job_uid == before.job_uid

    def test_suspending_the_recipe_deletes_the_job_and_resuming_creates_another(
        self, runs: PodPerJobWorld
    ) -> None:
        runs.apply("run")
        before = runs.train("run", 60, checkpoint=50)
        runs.edit("run", suspend=True)
        runs.wait_for("run", phase="Suspended", job=False, pods=0)
        runs.edit("run", suspend=False)
        runs.wait_for("run", pods=2, without=[*before.pod_uids, before.job_uid])

    def test_deleting_the_recipe_deletes_all_that_the_job_made(self, runs: PodPerJobWorld) -> None:
        runs.apply("run")
        runs.wait_for("run", pods=2)
        runs.api.delete("MegatronRecipe", runs.namespace, "run")
        for kind in dict.fromkeys((runs.job_kind, "JobSet", "Job", "Pod", "Service")):
            runs.wait_for_only(kind)

    def test_a_run_starts_once_whenever_the_operator_is_killed(self, runs: PodPerJobWorld) -> None:
        with killed_after_every_write(runs) as kills:
            runs.apply("run")
            state = runs.wait_for("run", pods=2, job=True, conditions={"Running": "PodsRunning"})
        assert kills[0] >= 2, "after the job and a status"
        assert state.recovery["restarts"] == 0
        before = runs.train("run", 60, checkpoint=50)
        with killed_after_every_write(runs):
            runs.edit("run", training={"trainIters": 300})
            state = runs.wait_for(
                "run", pods=2, job=True, observed=True, without=[*before.pod_uids, before.job_uid]
            )
        made = runs.api.get("JobSet", runs.namespace, "run")["metadata"]["uid"]
        for pod in state.pods.values():
            assert "300" in pod["spec"]["containers"][0]["args"]
            assert pod["metadata"]["labels"]["jobset.sigs.k8s.io/jobset-uid"] == made
        runs.train("run", 70, checkpoint=50, generation=1, resumedFrom=50)

    def test_a_pod_that_fails_is_counted_once_whenever_the_operator_is_killed(
        self, runs: PodPerJobWorld
    ) -> None:
        """Its Job may have replaced it meanwhile, and then keeps it."""
        runs.apply("run")
        before = runs.train("run", 60, checkpoint=50)
        with killed_after_every_write(runs):
            runs.report("run", phase="rendezvous", iteration=60, checkpointIteration=50)
            words = json.dumps({"message": "rank 3 was killed"})
            runs.terminate("run-worker-0", 138, words)
            state = runs.wait_for(
                "run",
                conditions={"Recovering": "PodsReplaced"},
                where=lambda state: (
                    state.running_pods >= {"master-0", "worker-0"}
                    and state.uid_of("worker-0") != before.uid_of("worker-0")
                ),
            )
        assert state.uid_of("master-0") == before.uid_of("master-0")
        runs.report("run", iteration=51, checkpointIteration=50, generation=2, resumedFrom=50)
        counted = {"recovery": {"restarts": 1}, "progress": {"iteration": 51}}
        recovery = runs.wait_for("run", phase="Training", status=counted).recovery
        assert recovery["lastCause"] == "worker-0: rank 3 was killed (exit code 138)"

    def test_an_elastic_run_is_re_created_on_fewer_nodes(
        self, runs: PodPerJobWorld, pool: Callable[[int], Pool]
    ) -> None:
        nodes = pool(2)
        elastic = {"elastic": {"minCount": 2, "shrinkAfter": 1, "growAfter": 1}}
        runs.apply("run", scheduling={"nodeSelector": nodes.selector}, recovery=elastic)
        state = runs.train("run", 60, checkpoint=50)
        nodes.cordon(state.node_of("worker-0"))
        runs.delete_pod("run-worker-0")

        def shrunk(state: RunState) -> bool:
            return state.replicas == 1

        runs.wait_for("run", pods=1, where=shrunk, seconds=LONG_DEADLINE)

    def test_an_interrupted_run_moves_off_a_node_with_failed_hardware(self, runs: PodPerJobWorld) -> None:
        runs.apply("run")
        before = runs.train("run", 60, checkpoint=50)
        bad = before.node_of("worker-0")
        words = {"reason": "WorkerDied", "message": "lost its GPU", "evidence": "DeviceMemory"}
        runs.terminate("run-worker-0", 138, json.dumps(words))
        state = runs.wait_for("run", pods=2, without=[*before.pod_uids, before.job_uid])
        assert state.recovery["nodesAvoided"] == [bad]
        assert bad not in {state.node_of("master-0"), state.node_of("worker-0")}
        recovery = runs.train("run", 51, checkpoint=50, generation=2, resumedFrom=50).recovery
        assert recovery["restarts"] == 1, "creating the job again costs nothing more"

    def test_the_longest_name_is_accepted_and_a_longer_one_refused_by_the_plan(
        self,
        runs: PodPerJobWorld,
    ) -> None:
        runs.apply("a" * 43, **QUEUE)
        runs.wait_for("a" * 43, conditions={"Running": "Queued"}, job=True)
        runs.apply("a" * 44)
        state = runs.wait_for("a" * 44, phase="Refused")
        assert "metadata.name" in state.conditions["Planned"]["message"]

    def test_a_run_keeps_its_kind_of_job_and_moves_when_it_is_suspended_and_resumed(
        self, runs: PodPerJobWorld, world: World, choose: Callable[[str], None]
    ) -> None:
        runs.apply("run")
        before = runs.train("run", 60, checkpoint=50)
        choose("pytorchjob")
        try:
            runs.terminate("run-worker-0", 138)
            state = runs.wait_for("run", conditions={"Recovering": "PodsReplaced"})
            assert state.job_uid == before.job_uid
            runs.edit("run", suspend=True)
            runs.wait_for("run", phase="Suspended", job=False, pods=0)
            runs.edit("run", suspend=False)
            state = world.train("run", 71, checkpoint=50, generation=2, resumedFrom=50)
            assert "kind" not in state.status["job"]
            assert not runs.job_exists("run")
        finally:
            choose(runs.backend.name)
