"""Runs in queues of Kueue, with its real controller: `make test-kueue` builds it first, in minutes."""

from collections.abc import Callable, Iterator

import pytest
from localcluster import Cluster

from testkit.api_server import Api, Object
from testkit.fake_nodes import fake_node
from testkit.operator_process import OPERATOR_NAMESPACE
from testkit.run_state import RunState
from testkit.waiting import wait_until
from tests.control_plane.conftest import PLATFORM
from tests.control_plane.nodes import Pool
from tests.control_plane.queues import (
    QUEUE,
    Priorities,
    Queues,
    in_queue,
    is_suspended,
    priority_class,
    queues_of,
)
from tests.control_plane.test_bad_nodes import avoided_nodes, fail_worker
from tests.control_plane.test_elastic import ELASTIC, LONG_AGO, lose_worker, wait_for_size
from tests.control_plane.test_flows import PREPARED
from tests.control_plane.test_required_topology import apply_in_one_rack, two_racks
from tests.control_plane.world import World

LEVELS = ("topology.kubernetes.io/rack", "kubernetes.io/hostname")
COMPLETED = '{"reason": "Completed", "iteration": 200, "checkpointIteration": 200}'

pytestmark = pytest.mark.job_backends(
    "pytorchjob", "jobset", reason="Kueue 0.19 sets runtimePatches of a TrainJob, which Trainer 2.0 lacks"
)
of_changed_jobs = pytest.mark.job_backends("pytorchjob", reason="the operator changes no other kind of job")


@pytest.fixture(scope="module", autouse=True)
def kueue(cluster: Cluster) -> Iterator[None]:
    """Kueue, which manages Jobs and the kind of job of runs."""
    with cluster.kueue():
        yield


@pytest.fixture
def queues(world: World) -> Iterator[Queues]:
    """The test's queue."""
    with queues_of(world) as queues:
        yield queues


@pytest.fixture
def urgent(api: Api, world: World) -> Iterator[str]:
    """A PriorityClass that preempts runs without one."""
    with priority_class(api, f"urgent-{world.namespace}") as name:
        yield name


@pytest.fixture
def priorities(api: Api, world: World) -> Iterator[Priorities]:
    """Classes of the priority in a queue."""
    priorities = Priorities(api, world.namespace)
    yield priorities
    priorities.delete()


@pytest.fixture
def topology_aware(install: Callable[[str, Object], str], world: World) -> Iterator[None]:
    """A platform whose queues have flavors with a Topology."""
    world.operator.stop()
    install(OPERATOR_NAMESPACE, {"platform": PLATFORM | {"topologyAwareQueues": True}})
    world.operator.ensure()
    yield
    world.operator.stop()
    install(OPERATOR_NAMESPACE, {"platform": PLATFORM})
    world.operator.ensure()


def succeed(world: World, run: str) -> None:
    """Let the containers of a run's pods complete, and wait until it has succeeded."""
    for place in ("worker-0", "master-0"):
        world.terminate(f"{run}-{place}", 0, COMPLETED, "Completed")
    world.wait_for(run, phase="Succeeded")


def delete(world: World, run: str) -> None:
    """Delete a run."""
    world.api.delete("MegatronRecipe", world.namespace, run)


def test_a_run_is_created_suspended_and_trains_once_kueue_admits_it(world: World, queues: Queues) -> None:
    """Its profile names a topology, which the flavor does not have."""
    world.apply("run", **in_queue())
    state = world.wait_for("run", phase="Queued", conditions={"Running": "Queued"}, job=True, pods=0)
    assert state.conditions["Running"]["message"].startswith(f"waits for admission by queue {QUEUE}")
    queues.create(pods=2)
    state = world.train("run", 10)
    assert queues.resumed_by(state) == "kueue"
    assert queues.conditions(state)["Admitted"] == "Admitted"
    succeed(world, "run")
    wait_until("Kueue to finish the Workload", lambda: "Finished" in queues.conditions(state))


@pytest.mark.parametrize("end", [succeed, delete])
def test_of_two_gangs_of_which_one_fits_the_other_waits_whole_and_runs_after_it(
    world: World, queues: Queues, pool: Callable[[int], Pool], end: Callable[[World, str], None]
) -> None:
    """The nodes and the quota have room for one gang and a half."""
    nodes = pool(3)
    queues.create(pods=3)
    for name in ("one", "two"):
        world.apply(name, **in_queue(nodeSelector=nodes.selector))

    def trained_first() -> str | None:
        states = {name: world.wait_for(name) for name in ("one", "two")}
        return next((name for name, state in states.items() if len(state.running_pods) == 2), None)

    first = wait_until("one of the gangs to run", trained_first)
    [second] = {"one", "two"} - {first}
    world.train(first, 10)
    world.wait_for(second, phase="Queued", conditions={"Running": "Queued"}, pods=0, job=True)
    end(world, first)
    world.train(second, 10)
    succeed(world, second)


def test_a_preempted_run_gives_up_its_pods_and_resumes_without_a_restart(
    world: World, queues: Queues, urgent: str
) -> None:
    queues.create(pods=2)
    world.apply("run", **in_queue())
    before = world.train("run", 60, checkpoint=50)
    world.apply("urgent", **in_queue(priorityClassName=urgent))
    state = world.wait_for(
        "run", phase="Queued", conditions={"Running": "Queued"}, pods=0, without=before.pod_uids
    )
    assert queues.conditions(state)["Evicted"] == "Preempted"
    world.train("urgent", 10)
    state = world.wait_for("run", phase="Queued", conditions={"Running": "Queued"}, pods=0)
    assert is_suspended(state)

    world.report("run", iteration=51, checkpointIteration=50, generation=2, resumedFrom=50)
    delete(world, "urgent")
    state = world.train("run", 52, checkpoint=50, generation=2, resumedFrom=50)
    assert state.job_uid == before.job_uid
    assert (state.recovery["restarts"], state.recovery["restartsSinceCheckpoint"]) == (0, 0)
    assert not state.recovery.get("history")


@of_changed_jobs
def test_a_changed_priority_in_the_queue_needs_no_new_job(
    world: World, queues: Queues, priorities: Priorities
) -> None:
    low, high = priorities.create("low", 1), priorities.create("high", 100)
    queues.create(pods=2)
    world.apply("one", **in_queue(workloadPriorityClassName=low))
    one = world.train("one", 60, checkpoint=50)
    world.apply("two", **in_queue(workloadPriorityClassName=low))
    two = world.wait_for("two", phase="Queued", conditions={"Running": "Queued"}, pods=0, job=True)
    world.edit("two", scheduling={"workloadPriorityClassName": high})
    state = world.train("two", 10)
    assert state.job_uid == two.job_uid, "changed while it waited"
    world.wait_for("one", phase="Queued", conditions={"Running": "Queued"}, pods=0)

    world.edit("two", scheduling={"workloadPriorityClassName": low})
    state = world.wait_for(
        "two", phase="Training", pods=2, where=lambda two: queues.workload(two)["spec"]["priority"] == 1
    )
    assert state.job_uid == two.job_uid, "changed while it trained"
    world.report("one", iteration=51, checkpointIteration=50, generation=2, resumedFrom=50)
    world.edit("one", scheduling={"workloadPriorityClassName": high})
    state = world.train("one", 52, checkpoint=50, generation=2, resumedFrom=50)
    assert state.job_uid == one.job_uid
    assert state.recovery["restarts"] == 0


def test_a_run_whose_priority_class_does_not_exist_waits_with_the_reason_until_it_does(
    world: World, queues: Queues, priorities: Priorities
) -> None:
    missing, reason = priorities.name("high"), "WorkloadPriorityClassMissing"
    queues.create(pods=2)
    world.apply("run", **in_queue(workloadPriorityClassName=missing))
    state = world.wait_for("run", phase="Pending", conditions={"Running": reason}, job=False)
    assert state.conditions["Running"]["message"].startswith(f"there is no WorkloadPriorityClass {missing};")
    priorities.create("high", 100)
    before = world.train("run", 10)
    world.edit("run", scheduling={"workloadPriorityClassName": priorities.name("higher")})
    world.wait_for("run", phase="Training", pods=2, conditions={"Prepared": reason})
    priorities.create("higher", 1000)
    state = world.wait_for("run", conditions={"Prepared": "NothingToPrepare"}, observed=True)
    if not world.backend.changes_templates:
        state = world.wait_for("run", pods=2, without=[before.job_uid or "", *before.pod_uids])
    wait_until("Kueue to know the new priority", lambda: queues.workload(state)["spec"]["priority"] == 1000)
    if world.backend.changes_templates:
        assert (state.job_uid, state.pod_uids) == (before.job_uid, before.pod_uids)


@of_changed_jobs
def test_a_pod_is_replaced_elsewhere_and_the_gang_keeps_its_place(
    world: World, queues: Queues, pool: Callable[[int], Pool]
) -> None:
    """The operator changes the pod templates so that they avoid the node, which Kueue must not undo."""
    queues.create(pods=2)
    nodes = pool(3)
    world.apply("run", **in_queue(nodeSelector=nodes.selector))
    before = world.train("run", 60, checkpoint=50)
    admitted = queues.workload(before)["metadata"]["uid"]
    bad = before.node_of("worker-0")
    fail_worker(world, before.uid_of("worker-0"), 1)
    world.wait_for("run", pods=2, where=lambda state: state.node_of("worker-0") != bad)
    state = world.train("run", 52, checkpoint=50, generation=2, resumedFrom=50, recovery={"restarts": 1})
    assert avoided_nodes(state) == [bad]
    assert state.uid_of("master-0") == before.uid_of("master-0")
    assert queues.workload(state)["metadata"]["uid"] == admitted


@of_changed_jobs
def test_a_run_whose_image_is_known_by_digest_keeps_its_place(world: World, queues: Queues) -> None:
    """Kueue suspends a job whose containers are no longer those that it has admitted."""
    queues.create(pods=2)
    world.apply("run", **in_queue())
    before = world.train("run", 10)
    for pod in before.pods.values():
        name = pod["metadata"]["name"]
        statuses = [
            each | {"imageID": f"registry.example/megatron-trainer@sha256:{'a' * 64}"}
            for each in pod["status"]["containerStatuses"]
        ]
        changes = {"status": {"containerStatuses": statuses}}
        world.api.patch("Pod", world.namespace, name, changes, "status")
    world.train("run", 11, checkpoint=10)
    state = world.train("run", 12, checkpoint=11)
    assert state.job is not None
    master = state.job["spec"]["pytorchReplicaSpecs"]["Master"]["template"]["spec"]
    assert master["containers"][0]["image"] == PLATFORM["image"]
    assert state.pod_uids == before.pod_uids
    assert queues.workload(state)["metadata"]["uid"] == queues.workload(before)["metadata"]["uid"]


def test_a_job_that_is_created_again_goes_through_the_queue(world: World, queues: Queues) -> None:
    queues.create(pods=2)
    world.apply("run", **in_queue())
    before = world.train("run", 60, checkpoint=50)
    world.edit("run", training={"trainIters": 300})
    world.wait_for("run", job=True, without=[before.job_uid or "", *before.pod_uids], observed=True)
    state = world.train("run", 70, checkpoint=50, trainIters=300)
    assert state.job is not None
    assert state.job["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == QUEUE
    assert queues.conditions(state)["Admitted"] == "Admitted"
    assert state.recovery["restarts"] == 0


def test_an_elastic_run_goes_through_the_queue_with_each_size(
    world: World, queues: Queues, pool: Callable[[int], Pool]
) -> None:
    queues.create(pods=2)
    nodes = pool(2)
    world.apply("run", **in_queue(nodeSelector=nodes.selector), recovery={"elastic": ELASTIC})
    lost = world.train("run", 60, checkpoint=50).node_of("worker-0")
    lose_worker(world, nodes, lost)
    wait_for_size(world, 1)
    state = world.train("run", 61, checkpoint=60, pods=1, generation=2, resumedFrom=60)
    assert [each["count"] for each in queues.workload(state)["spec"]["podSets"]] == [1]

    nodes.uncordon(lost)
    world.wait_for("run", status={"recovery": {"elastic": {"larger": 4}}})
    world.patch_status("run", recovery={"lastResizeTime": LONG_AGO, "lastRestartTime": LONG_AGO})
    world.report("run", 1, iteration=70, checkpointIteration=60, generation=2, resumedFrom=60)
    state = wait_for_size(world, 2)
    assert [each["count"] for each in queues.workload(state)["spec"]["podSets"]] == [1, 1]
    assert queues.conditions(state)["Admitted"] == "Admitted"


def test_data_preparation_waits_in_the_queue_too(
    world: World, queues: Queues, priorities: Priorities
) -> None:
    high = priorities.create("high", 100)
    world.apply("run", **in_queue(workloadPriorityClassName=high), data=PREPARED)
    world.wait_for(
        "run",
        phase="Queued",
        conditions={"Prepared": "Queued"},
        job=False,
        where=lambda state: state.conditions["Prepared"]["message"].endswith(
            "LocalQueue research doesn't exist"
        ),
    )
    world.wait_for_only("Pod")
    queues.create(pods=2)
    state = world.train("run", 10)
    assert state.conditions["Prepared"]["reason"] == "Prepared"
    workloads = world.api.list("Workload", world.namespace)
    owners = {reference["kind"] for each in workloads for reference in each["metadata"]["ownerReferences"]}
    assert owners == {"Job", world.job_kind}
    assert {each["spec"]["priority"] for each in workloads} == {100}


def test_a_run_whose_nodes_kueue_has_chosen_is_created_again_to_avoid_one(
    world: World, queues: Queues
) -> None:
    """Kueue would assign the replaced pod to the same node."""
    queues.create(pods=2, levels=LEVELS, node_labels={"megatron.training/simulated-gpu": "true"})
    world.apply("run", **in_queue())
    before = world.train("run", 60, checkpoint=50)
    bad = before.node_of("worker-0")
    fail_worker(world, before.uid_of("worker-0"), 1)
    world.wait_for("run", pods=2, without=[before.job_uid or "", *before.pod_uids])
    state = world.train("run", 52, checkpoint=50, generation=2, resumedFrom=50)
    assert bad not in {state.node_of(place) for place in state.pods}
    assert queues.conditions(state)["Admitted"] == "Admitted"
    assert state.recovery["restarts"] == 1, "creating the job again costs nothing more"


def racks(world: World, state: RunState) -> set[str]:
    """Racks of the nodes of a run's pods."""
    nodes = {state.node_of(place) for place in state.pods}
    return {world.api.get("Node", None, node)["metadata"]["labels"][LEVELS[0]] for node in nodes}


@pytest.mark.usefixtures("topology_aware")
def test_with_topology_aware_queues_kueue_places_a_run_in_one_rack(world: World, queues: Queues) -> None:
    queues.create(pods=2, levels=LEVELS, node_labels={"megatron.training/simulated-gpu": "true"})
    world.apply("run", **in_queue())
    state = world.train("run", 10)
    assert len(racks(world, state)) == 1
    for pod_set in queues.workload(state)["spec"]["podSets"]:
        assert pod_set["topologyRequest"]["preferred"] == LEVELS[0]
    for assignment in queues.workload(state)["status"]["admission"]["podSetAssignments"]:
        assert assignment["topologyAssignment"]["levels"], "Kueue chose the nodes"


def test_a_queue_of_flavors_with_a_topology_admits_runs_that_ask_for_none(
    world: World, queues: Queues
) -> None:
    queues.create(pods=2, levels=LEVELS, node_labels={"megatron.training/simulated-gpu": "true"})
    world.apply("run", **in_queue())
    state = world.train("run", 10)
    assignments = queues.workload(state)["status"]["admission"]["podSetAssignments"]
    assert all("topologyAssignment" in each for each in assignments)


@pytest.mark.usefixtures("topology_aware")
def test_data_preparation_asks_for_no_level_of_a_topology_and_kueue_places_it_all_the_same(
    world: World, queues: Queues
) -> None:
    queues.create(pods=2, levels=LEVELS, node_labels={"megatron.training/simulated-gpu": "true"})
    world.apply("run", **in_queue(), data=PREPARED)
    world.train("run", 10)
    (workload,) = (
        each
        for each in world.api.list("Workload", world.namespace)
        if each["metadata"]["ownerReferences"][0]["name"] == "run-prepare"
    )
    (pod_set,) = workload["spec"]["podSets"]
    assert not {"required", "preferred"} & (pod_set.get("topologyRequest") or {}).keys()
    (assignment,) = workload["status"]["admission"]["podSetAssignments"]
    assert assignment["topologyAssignment"]["levels"], "Kueue chose the node"


@pytest.mark.usefixtures("topology_aware")
def test_a_run_that_requires_a_rack_is_admitted_into_the_one_with_room_for_all_of_its_pods(
    world: World, queues: Queues, pool: Callable[[int], Pool]
) -> None:
    nodes = pool(5)
    two_racks(world, nodes, first=2)
    queues.create(pods=5, levels=LEVELS, node_labels=nodes.selector)
    apply_in_one_rack(world, nodes, 3, queue=QUEUE)
    state = world.train("run", 10, pods=3)
    assert racks(world, state) == {f"{nodes.selector['pool']}-b"}
    assert queues.resumed_by(state) == "kueue"
    for pod_set in queues.workload(state)["spec"]["podSets"]:
        assert pod_set["topologyRequest"]["required"] == LEVELS[0]


@pytest.mark.usefixtures("topology_aware")
def test_a_run_that_no_rack_has_room_for_waits_with_the_reason_until_one_has(
    world: World, queues: Queues, pool: Callable[[int], Pool]
) -> None:
    """Quota and nodes suffice: two nodes are free in each of two racks."""
    nodes = pool(4)
    two_racks(world, nodes, first=2)
    queues.create(pods=4, levels=LEVELS, node_labels=nodes.selector)
    apply_in_one_rack(world, nodes, 3, queue=QUEUE)
    reason = f"allows to fit only 2 out of 2 pod(s); all pods must share {LEVELS[0]}"
    state = world.wait_for(
        "run",
        phase="Queued",
        conditions={"Running": "Queued"},
        job=True,
        pods=0,
        where=lambda state: reason in state.conditions["Running"]["message"],
    )
    assert is_suspended(state)
    nodes.nodes.append(f"{nodes.selector['pool']}-more")
    rack = f"{nodes.selector['pool']}-b"
    world.api.apply(fake_node(nodes.nodes[-1], rack=rack, cpu="3", **nodes.selector))
    state = world.train("run", 10, pods=3)
    assert racks(world, state) == {rack}
    assert queues.resumed_by(state) == "kueue"
