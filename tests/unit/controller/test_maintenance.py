"""A run moves off a node before its maintenance, over a simulated cluster: two pods on three nodes."""

from collections.abc import Callable
from typing import Any

import pytest
from megatron_operator.api.platform import BadNodes, Maintenance
from megatron_operator.api.times import seconds
from megatron_operator.lifecycle.incident_history import HISTORY_LIMIT

from tests.unit.controller import whole_operator
from tests.unit.controller.simulated_cluster import GRACE, Node
from tests.unit.controller.simulated_run import Run, run_on

ANNOUNCED = "node condition VMEventScheduled=True"


@pytest.fixture
def run(training_run: Run) -> Run:
    training_run.until(training_run.trains)
    return training_run


def nodes(run: Run) -> set[str | None]:
    return {pod.node for pod in run.cluster.pods}


def announce(run: Run, *names: str) -> None:
    for name in names:
        run.cluster.nodes[name].announced = True


def pass_time(run: Run, seconds: int) -> None:
    for _ in range(seconds):
        run.cluster.pass_time(1)
        run.operator.reconcile()


def recovered(run: Run) -> Callable[[], bool]:
    return lambda: run.trains() and bool(run.incidents) and "recoveredAt" in run.incidents[-1]


def events(run: Run, reason: str) -> list[str]:
    return [each["message"] for each in run.api.posted if each["reason"] == reason]


@pytest.mark.parametrize("writes", [None, *range(4)])
def test_a_run_moves_once_with_its_checkpoint_wherever_the_operator_dies(
    run: Run, writes: int | None
) -> None:
    stays = run.cluster.pods[0].uid
    reached = run.cluster.iteration
    announce(run, "node-1")
    run.operator.die_after(writes)
    run.until(lambda: nodes(run) == {"node-0", "node-2"})
    run.until(run.trains)
    pass_time(run, 60)
    assert run.cluster.pods[0].uid == stays, "a pod elsewhere stays"
    assert run.cluster.resumed_from >= reached, "nothing is repeated"
    assert set(run.api.graces) == {None}, "the gang has the pod's own grace period to save in"
    recovery = run.status["recovery"]
    assert (recovery.get("restarts", 0), recovery.get("restartsSinceCheckpoint", 0)) == (0, 0)
    assert [(each["kind"], each["node"]) for each in run.incidents] == [("maintenance", "node-1")]
    assert run.incidents[0]["cause"] == f"maintenance of node-1 ({ANNOUNCED})"
    assert run.incidents[0]["lostIterations"] == 0
    assert recovery["nodesAvoided"] == ["node-1"]


def test_a_run_stays_until_it_has_just_the_time_to_save_before_a_scheduled_start(run: Run) -> None:
    start = run.cluster.now + 1400
    run.cluster.nodes["node-1"].maintenance_at = start
    pass_time(run, 30)
    entry = run.status["recovery"]["maintenance"]["node-1"]
    assert entry["sign"] == "node label cloud.google.com/scheduled-maintenance-time"
    assert seconds(entry["leaveAt"]) == int(start) - 900 - GRACE
    run.until(lambda: run.cluster.now >= start - 900 - GRACE - 2, seconds=1400)
    assert (nodes(run), run.incidents) == ({"node-0", "node-1"}, [])
    run.until(lambda: nodes(run) == {"node-0", "node-2"})
    run.until(recovered(run))
    assert run.cluster.now < start - 600
    assert run.incidents[0]["lostIterations"] == 0


def test_the_node_is_used_again_once_its_maintenance_is_scheduled_for_much_later(run: Run) -> None:
    run.cluster.nodes["node-1"].maintenance_at = run.cluster.now + 600
    run.until(recovered(run))
    assert run.status["recovery"]["nodesAvoided"] == ["node-1"]
    run.cluster.nodes["node-1"].maintenance_at = run.cluster.now + 30 * 86_400
    run.until(lambda: not run.status["recovery"].get("nodesAvoided"))
    assert not run.status["recovery"].get("maintenance")
    pass_time(run, 60)
    assert (nodes(run), len(run.incidents)) == ({"node-0", "node-2"}, 1)


def test_a_run_stays_where_a_start_is_long_past(run: Run) -> None:
    run.cluster.nodes["node-1"].maintenance_at = run.cluster.now - 2 * 86_400
    pass_time(run, 60)
    assert run.trains()
    assert not run.incidents
    run.cluster.nodes["node-2"].maintenance_at = run.cluster.now - 2 * 86_400
    announce(run, "node-1")
    run.until(lambda: nodes(run) == {"node-0", "node-2"})


def test_a_condition_moves_a_run_whose_node_has_a_start_in_a_week(run: Run) -> None:
    run.cluster.nodes["node-1"].maintenance_at = run.cluster.now + 7 * 86_400
    announce(run, "node-1")
    run.until(lambda: nodes(run) == {"node-0", "node-2"})


def test_a_move_is_reported_and_its_time_has_cause_and_node(run: Run) -> None:
    announce(run, "node-1")
    run.until(lambda: run.condition("Recovering").get("reason") == "MovedForMaintenance")
    run.until(recovered(run))
    assert events(run, "MovedForMaintenance") == [f"maintenance of node-1 ({ANNOUNCED})"]
    marks = [(each.get("cause"), each.get("node")) for each in run.status["ledger"]["marks"]]
    assert (f"maintenance of node-1 ({ANNOUNCED})", "node-1") in marks


def test_the_node_is_used_again_once_nothing_is_announced_and_the_run_stays(run: Run) -> None:
    announce(run, "node-1")
    run.until(recovered(run))
    before = nodes(run)
    run.cluster.nodes["node-1"].announced = False
    run.until(lambda: not run.status["recovery"].get("nodesAvoided"))
    pass_time(run, 60)
    assert not run.status["recovery"].get("maintenance")
    assert (nodes(run), len(run.incidents)) == (before, 1)
    assert events(run, "NodeReleased")


def test_a_run_trains_on_where_it_has_no_other_place_and_moves_once_there_is_one(run: Run) -> None:
    run.cluster.nodes["node-2"].taken = True
    announce(run, "node-1")
    pass_time(run, 320)
    why = "the other nodes have no room for all 2 pods now"
    assert run.status["recovery"]["maintenance"]["node-1"]["notAvoided"] == why
    text = f"maintenance of node-1 is announced ({ANNOUNCED}), but the run stays on it: {why}"
    assert events(run, "NodeNotAvoided") == [text], "reported once"
    assert not run.incidents
    run.cluster.nodes["node-2"].taken = False
    run.until(lambda: nodes(run) == {"node-0", "node-2"})


def test_a_run_does_not_move_to_a_node_that_announces_maintenance_too(run: Run) -> None:
    announce(run, *run.cluster.nodes)
    pass_time(run, 320)
    assert run.trains()
    assert not run.incidents
    assert set(run.status["recovery"]["maintenance"]) == {"node-0", "node-1"}


def test_a_run_that_came_back_for_lack_of_room_does_not_move_again(run: Run) -> None:
    announce(run, "node-1")
    run.until(lambda: len(run.cluster.pods) == 2 and run.cluster.pods[1].deleted_at is not None)
    run.cluster.nodes["node-2"].taken = True
    run.until(lambda: nodes(run) == {"node-0", "node-1"} and run.trains(), seconds=900)
    run.cluster.nodes["node-2"].taken = False
    pass_time(run, 60)
    assert [each["kind"] for each in run.incidents] == ["maintenance"]
    assert nodes(run) == {"node-0", "node-1"}


def test_a_run_that_had_to_take_a_node_before_its_start_leaves_it_for_that(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    platform = whole_operator.CONFIG.platform.model_copy(update={"bad_nodes": BadNodes(max_share=1)})
    with run_on(platform, monkeypatch) as run:
        run.cluster.nodes["node-3"] = Node("node-3")
        run.until(run.trains)
        start = run.cluster.now + 1900
        run.cluster.nodes["node-2"].maintenance_at = start
        announce(run, "node-1")
        run.until(recovered(run))
        assert run.status["recovery"]["nodesAvoided"] == ["node-1", "node-2"]
        run.cluster.nodes["node-1"].taken = True
        run.cluster.node_dies("node-3")
        run.until(lambda: nodes(run) == {"node-0", "node-2"} and run.trains())
        run.cluster.node_returns("node-3")
        run.until(lambda: run.cluster.now >= start - 900 - GRACE - 2, seconds=1000)
        assert nodes(run) == {"node-0", "node-2"}
        run.until(lambda: nodes(run) == {"node-0", "node-3"} and run.trains())
        assert run.cluster.now < start
        assert [each["kind"] for each in run.incidents] == ["maintenance", "node", "maintenance"]


def test_a_run_without_room_takes_a_node_whose_maintenance_is_about_to_start_only_after_the_start(
    run: Run,
) -> None:
    start = run.cluster.now + 800
    run.cluster.nodes["node-1"].maintenance_at = start
    run.until(recovered(run))
    run.cluster.node_dies("node-2")
    run.until(lambda: run.cluster.now >= start - 1, seconds=800)
    assert nodes(run) == {"node-0", None}
    run.until(lambda: nodes(run) == {"node-0", "node-1"} and run.trains())
    assert run.status["recovery"].get("nodesAvoided", []) == []


@pytest.mark.parametrize("moves", [True, False])
def test_signs_of_failed_hardware_move_a_run_that_trains_where_the_platform_has_it(
    monkeypatch: pytest.MonkeyPatch, moves: bool
) -> None:
    rules = {
        "bad_nodes": BadNodes(conditions=["VMEventScheduled"], move_runs=moves),
        "maintenance": Maintenance(conditions=[]),
    }
    platform = whole_operator.CONFIG.platform.model_copy(update=rules)
    with run_on(platform, monkeypatch) as run:
        run.until(run.trains)
        run.cluster.nodes["node-1"].maintenance_at = run.cluster.now + 7200
        announce(run, "node-1")
        pass_time(run, 120)
        assert nodes(run) == ({"node-0", "node-2"} if moves else {"node-0", "node-1"})
        assert [each["kind"] for each in run.incidents] == (["maintenance"] if moves else [])


def test_a_run_moves_at_most_so_often_in_an_hour(run: Run) -> None:
    for _ in range(6):
        [leaving] = [pod.node for pod in run.cluster.pods if pod.rank == 1]
        assert leaving is not None
        moves = len(run.incidents)
        announce(run, leaving)
        if moves == 4:
            break
        run.until(lambda moves=moves: len(run.incidents) == moves + 1)  # type: ignore[misc]
        run.until(recovered(run))
        run.cluster.nodes[leaving].announced = False
        run.until(lambda: not run.status["recovery"].get("nodesAvoided"))
    pass_time(run, 120)
    assert len(run.incidents) == 4 < HISTORY_LIMIT
    entry = run.status["recovery"]["maintenance"][leaving]
    assert entry["notAvoided"] == "platform.badNodes.maxPerHour allows 4 in an hour"


def test_a_run_that_avoids_no_nodes_is_not_moved(run: Run) -> None:
    run.edit(recovery={"nodes": {"avoidAfter": 0}})
    run.until(lambda: run.status["observedGeneration"] == 2 and run.trains())
    announce(run, "node-1")
    pass_time(run, 120)
    assert not run.incidents
    assert not run.status["recovery"].get("maintenance")


def test_while_no_valid_platform_file_is_known_a_run_neither_moves_nor_uses_a_node_again(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def unknown(_: object) -> None: ...

    announce(run, "node-1")
    run.until(recovered(run))
    before = run.status["recovery"]
    monkeypatch.setattr(whole_operator.ConfigInMemory, "valid_platform", unknown)
    run.operator._start()
    run.cluster.nodes["node-1"].announced = False
    announce(run, "node-0")
    pass_time(run, 60)
    assert (nodes(run), len(run.incidents)) == ({"node-0", "node-2"}, 1)
    for recorded in ("maintenance", "nodesAvoided"):
        assert run.status["recovery"][recorded] == before[recorded]


def test_an_interrupted_run_moves_only_once_it_trains_again(run: Run) -> None:
    run.cluster.training_operator = False
    run.cluster.fail(run.cluster.pods[1], 137, "was killed")
    announce(run, "node-0")
    pass_time(run, 60)
    assert "maintenance" not in {each["kind"] for each in run.incidents}
    run.cluster.training_operator = True
    run.until(lambda: "node-0" not in nodes(run) and run.trains())
    assert [each["kind"] for each in run.incidents] == ["pod", "maintenance"]


def test_a_run_that_has_to_stay_costs_no_more_reads_than_one_that_trains(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads: list[str] = []
    api: Any = run.api
    for name in ("get", "find"):
        method = getattr(api, name)

        def recorded(resource: Any, *rest: Any, _method: Any = method, **named: Any) -> Any:
            reads.append(resource.plural)
            return _method(resource, *rest, **named)

        monkeypatch.setattr(api, name, recorded)
    pass_time(run, 100)
    undisturbed = sorted(reads)
    run.cluster.nodes["node-2"].taken = True
    announce(run, "node-1")
    pass_time(run, 5)
    assert run.status["recovery"]["maintenance"]["node-1"]["notAvoided"]
    reads.clear()
    pass_time(run, 100)
    assert sorted(reads) == undisturbed, "those of its checkpoints"


def test_a_run_whose_edit_was_refused_keeps_the_job_that_would_have_to_be_created_again(run: Run) -> None:
    run.edit(parallelism={"tensorModelParallelSize": 3})
    run.until(lambda: run.condition("Planned")["status"] == "False")
    for replicas in run.api.job()["spec"]["pytorchReplicaSpecs"].values():
        # Kueue places such pods, so that one cannot move alone.
        replicas["template"]["spec"]["schedulingGates"] = [{"name": "kueue.x-k8s.io/topology"}]
    announce(run, "node-1")
    pass_time(run, 300)
    assert run.trains()
    assert run.api.deleted == []
    assert len(events(run, "NodeNotAvoided")) == 1
    assert "the recipe as it is now is refused" in events(run, "NodeNotAvoided")[0]
