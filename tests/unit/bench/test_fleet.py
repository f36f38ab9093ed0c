"""The plan of a fleet and the trainers that it plays; the cluster is not needed for either."""

from dataclasses import fields
from itertools import islice

import pytest

from bench.fleet import Options, command_line, measured_with, platform
from bench.fleet_incidents import CAUSES, EXPLICIT, IMPLICIT, INCIDENTS, MANUAL
from bench.fleet_operator import SCALED
from bench.fleet_plan import GPU_HOURS_BETWEEN, LOAD, MIXES, Injection, PlannedFault, faults, plan_runs
from bench.fleet_pods import seen
from bench.fleet_trainer import STEP, Interruption, Member, Trainer, fleet_time
from bench.interruptions import Effect
from bench.wall_time import Scale

FACTOR = 1000.0
TICK = 0.25


def plan_of(kind: str):  # type: ignore[no-untyped-def]
    return next(each for each in plan_runs(20, 100, 14, 1) if each.kind == kind)


def gang(size: int, start: int = 0) -> list[Member]:
    return [Member(f"run-{n}", f"uid-{start + n}", n, f"node-{n}", True, False) for n in range(size)]


def options_of(*words: str) -> dict[str, object]:
    return vars(command_line().parse_args(words))


def test_by_default_the_platform_has_what_a_fleet_needs_to_get_through() -> None:
    given = options_of()
    chosen = platform(Options(**{each.name: given[each.name] for each in fields(Options)}), "scheduler")  # type: ignore[arg-type]
    assert chosen["gangScheduling"] == {"scheduler": "kubernetes"}
    assert chosen["badNodes"] == {"cordon": True}
    assert chosen["recoveryPriorityClassName"]
    assert measured_with(given) == []


@pytest.mark.parametrize(
    "words",
    [["--no-cordon", "--no-priority"], ["--runs 20", "--gangs coscheduling", "--no-priority", "--rate 0.5"]],
)
def test_the_command_on_the_page_repeats_the_measurement(words: list[str]) -> None:
    given = options_of(*" ".join(words).split())
    assert set(measured_with(given)) == set(words)
    assert options_of(*" ".join(measured_with(given)).split()) == given


class Played:
    """A trainer, and the time."""

    def __init__(self, kind: str) -> None:
        self.trainer = Trainer(plan_of(kind), FACTOR)
        self.now = 1_800_000_000.0

    def for_seconds(self, seconds: float, members: list[Member], size: int, *released: str) -> None:
        for _ in range(round(seconds / TICK)):
            self.now += TICK
            self.trainer.advance(self.now, TICK, members, size, frozenset(released))

    def until_training(self, members: list[Member], size: int) -> None:
        while self.trainer.phase != "training":
            self.for_seconds(TICK, members, size)


def test_the_work_of_a_fleet_is_nearly_what_it_can_do() -> None:
    for runs, nodes in ((20, 100), (200, 2000)):
        plans = plan_runs(runs, nodes, 14, 7)
        assert len(plans) == runs
        work = sum(each.nodes * each.hours for each in plans)
        assert work == pytest.approx(LOAD * nodes * 14 * 24, rel=0.1)
        assert max(each.hours for each in plans) <= 14 * 24 / 2, "there is time for the last to arrive"
        assert [each.arrives for each in plans] == sorted(each.arrives for each in plans)
        assert max(each.nodes for each in plans) <= nodes


def test_a_seed_gives_the_same_fleet_and_the_same_faults() -> None:
    assert plan_runs(20, 100, 14, 3) == plan_runs(20, 100, 14, 3) != plan_runs(20, 100, 14, 4)
    assert list(islice(faults("a", "llama3", 1, 3), 50)) == list(islice(faults("a", "llama3", 1, 3), 50))


@pytest.mark.parametrize("mix", sorted(MIXES))
def test_faults_come_at_the_published_rate(mix: str) -> None:
    found = list(islice(faults("run", mix, 2.0, 1), 4000))
    assert found[-1].gpu_hours / len(found) == pytest.approx(GPU_HOURS_BETWEEN / 2, rel=0.05)
    assert {each.injection for each in found} == set(Injection)


def test_the_incidents_have_the_published_shares() -> None:
    whole = sum(each.count for each in INCIDENTS)
    assert whole == 55_365
    shares = [round(100 * each.count / whole, 1) for each in INCIDENTS]
    explicit = [36.1, 11.0, 10.1, 5.0, 2.9, 2.1, 2.0, 1.4, 0.4, 0.3, 0.2, 0.1, 0.1]
    assert shares == [*explicit, 9.9, 0.8, 0.3, 17.3]
    assert (len(EXPLICIT), len(IMPLICIT), MANUAL.symptom) == (13, 3, "Code/Data Adjustment")


def test_each_incident_is_replayed_or_left_out() -> None:
    left_out = {each.symptom: each.count for each in INCIDENTS if each.effect is None}
    assert left_out == {"MFU Decline": 442, "NaN value": 148}
    counts = dict.fromkeys(Effect, 0)
    for cause in CAUSES:
        counts[cause.effect] += cause.count
    assert counts == {
        Effect.RANK: 30_811,
        Effect.ACCELERATOR: 8_626,
        Effect.NODE: 250,
        Effect.HANG: 5_506,
        Effect.DRAIN: 9_582,
    }
    assert sum(counts.values()) + sum(left_out.values()) == 55_365


def test_cuda_errors_are_divided_by_their_published_causes() -> None:
    device, code = (each for each in CAUSES if each.component.startswith("CUDA Error"))
    assert (device.effect, device.count) == (Effect.ACCELERATOR, 6_763)
    assert (code.effect, code.count) == (Effect.RANK, 13_205)


def test_too_few_nodes_for_the_largest_run_are_refused() -> None:
    with pytest.raises(ValueError, match="5 nodes have no room for a run of 8; use at least 8 nodes"):
        plan_runs(20, 5, 14, 1)


def test_an_undisturbed_run_makes_all_iterations_in_its_hours() -> None:
    run = Played("small")
    run.until_training(gang(4), 4)
    while run.trainer.phase == "training":
        run.for_seconds(TICK, gang(4), 4)
    assert run.trainer.phase == "finished"
    assert fleet_time(run.trainer, Scale()).useful == pytest.approx(run.trainer.plan.hours, rel=1e-3)
    report = run.trainer.report(0)
    assert report["iteration"] == report["checkpointIteration"] == run.trainer.total


def test_a_lost_pod_costs_the_iterations_since_the_checkpoint() -> None:
    run = Played("small")
    run.until_training(gang(4), 4)
    run.for_seconds(2, gang(4), 4)
    reached, saved = int(run.trainer.iteration), run.trainer.checkpoint
    assert 0 < saved < reached
    fault = PlannedFault(1.0, "NIC", Injection.NODE_DIES, 0.5)
    run.trainer.interruptions.append(Interruption(fault, run.now, run.trainer.members))
    run.for_seconds(1, gang(3), 4)
    new = [*gang(3), Member("run-3", "uid-new", 3, "node-9", True, False)]
    run.until_training(new, 4)
    (incident,) = run.trainer.incidents
    assert (incident["iteration"], incident["resumedFrom"]) == (reached, saved)
    assert incident["detectedAt"] < incident["metAt"] < incident["firstStepAt"]
    assert run.trainer.repeated * FACTOR == pytest.approx((reached - saved) * STEP, abs=STEP)
    assert run.trainer.interruptions[0].outcome == "pod replaced"


def test_a_pod_that_is_drained_has_saved() -> None:
    run = Played("small")
    run.until_training(gang(4), 4)
    run.for_seconds(2, gang(4), 4)
    reached = int(run.trainer.iteration)
    run.for_seconds(TICK, gang(3), 4, "uid-3")
    assert run.trainer.checkpoint == reached


def test_an_elastic_run_on_half_of_its_nodes_is_half_as_fast() -> None:
    run = Played("elastic")
    nodes = run.trainer.plan.nodes
    run.until_training(gang(nodes), nodes)
    run.for_seconds(1, gang(nodes), nodes)
    whole = run.trainer.iteration
    half = gang(nodes // 2, start=100)
    run.for_seconds(TICK, half, nodes // 2)
    run.until_training(half, nodes // 2)
    resumed = run.trainer.iteration
    run.for_seconds(1, half, nodes // 2)
    assert run.trainer.iteration - resumed == pytest.approx(whole / 2)
    assert run.trainer.shrinks == 1


def test_only_the_operator_ends_a_hang_of_the_launchers() -> None:
    for hang, found in ((Injection.RANKS_HANG, True), (Injection.LAUNCHERS_HANG, False)):
        run = Played("small")
        run.until_training(gang(4), 4)
        run.trainer.hold(run.now, hang)
        reached = run.trainer.iteration
        run.for_seconds(2, gang(4), 4)
        assert (run.trainer.phase != "training") == found
        assert run.trainer.iteration == reached


def test_every_duration_that_is_scaled_is_one_of_the_operator() -> None:
    for module, name, least in SCALED:
        assert getattr(module, name) > least


def test_a_pod_is_read_by_its_recipe_and_place() -> None:
    pod = {
        "metadata": {"name": "run-worker-2", "uid": "u", "labels": {"megatron.training/recipe": "run"}},
        "spec": {
            "nodeName": "node-1",
            "containers": [{"name": "pytorch", "env": [{"name": "PET_NNODES", "value": "4"}]}],
        },
        "status": {"phase": "Running"},
    }
    found = seen(pod)
    assert found is not None
    assert (found.run, found.size, found.member.rank, found.member.node) == ("run", 4, 3, "node-1")
    assert seen(pod | {"metadata": {"name": "other", "uid": "u"}}) is None
