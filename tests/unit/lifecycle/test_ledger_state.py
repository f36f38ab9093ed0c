"""What the ledger of a run's time records from one reconcile to the next."""

from typing import Any

import pytest
from megatron_operator.api.conditions import Condition, Phase
from megatron_operator.api.ledger_status import TimeLedger
from megatron_operator.api.reasons import Reason
from megatron_operator.api.status import Plan
from megatron_operator.api.times import timestamp
from megatron_operator.lifecycle.ledger_state import PLANNING, update_ledger, update_reported_times
from megatron_operator.lifecycle.progress_status import update_goodput
from megatron_operator.lifecycle.status_builder import StatusBuilder
from megatron_operator.lifecycle.status_update import update_status
from megatron_operator.lifecycle.time_ledger import account, until_of

BOUND = {"type": "PodScheduled", "status": "True"}
UNBOUND = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "no GPU is free"}
PLAN = Plan(
    world_size=16,
    nodes=2,
    per_node=8,
    tensor_model_parallel_size=1,
    pipeline_model_parallel_size=1,
    context_parallel_size=1,
    expert_model_parallel_size=1,
    expert_tensor_parallel_size=1,
    data_parallel_size=16,
    expert_data_parallel_size=16,
    sequence_parallel=False,
    stage_layers=[1],
    use_distributed_optimizer=True,
    overlap_grad_reduce=True,
    overlap_param_gather=True,
    micro_batch_size=1,
    global_batch_size=16,
    gradient_accumulation=1,
)


@pytest.fixture
def run(run: Any) -> Any:
    run.body["metadata"]["creationTimestamp"] = timestamp(run.now)
    run.created = run.now
    bind(run, run.pods)
    return run


def bind(run: Any, pods: list[Any]) -> None:
    for pod in pods:
        pod["spec"] = {"nodeName": "node-1"}
        pod["status"]["conditions"] = [BOUND | {"lastTransitionTime": timestamp(run.now)}]


def reconcile(run: Any) -> StatusBuilder:
    status: StatusBuilder = run.status()
    status.set(plan=PLAN)
    update_status(status, run.snapshot())
    update_ledger(status, run.snapshot())
    if status.changed():
        update_reported_times(status, run.reading)
    run.write(status)
    return status


def ledger(run: Any) -> TimeLedger:
    found: TimeLedger = run.status().current.ledger
    return found


def spent(run: Any) -> dict[str, float]:
    status = run.status()
    found = account(ledger(run), status.recovery.history, run.now)
    assert sum(found.ticks.values()) == round((run.now - run.created) * 100)
    return {name: ticks / 100 for name, ticks in found.ticks.items() if ticks}


def test_a_run_waits_starts_loads_and_trains(run: Any) -> None:
    run.pass_time(5)
    for pod in run.pods:
        pod["status"] = {"phase": "Pending", "conditions": [UNBOUND]}
        del pod["spec"]
    reconcile(run)
    run.pass_time(20)
    bind(run, run.pods)
    run.pass_time(4)
    reconcile(run)
    for pod in run.pods:
        pod["status"] |= {"phase": "Running", "startTime": timestamp(run.now)}
    run.report(phase="loading")
    run.pass_time(2)
    run.reading = run.reading.__class__(run.reading.report, run.now)
    reconcile(run)
    run.pass_time(6)
    run.report(iteration=1)
    reconcile(run)
    run.pass_time(50)
    # The pods were bound 4 s before the reconcile that saw it.
    assert spent(run) == {"prepare": 5, "schedule": 20, "start": 7, "load": 7, "train": 50}
    causes = [(each.category, each.cause, each.accelerators) for each in ledger(run).marks]
    assert causes == [
        ("prepare", "Planning", 0),
        ("schedule", "Unschedulable", 0),
        ("start", "FirstStart", 16),
        ("load", "FirstStart", 16),
        ("train", None, 16),
    ]


def test_ranks_that_start_again_keep_the_time_that_they_trained(run: Any) -> None:
    """The pods were bound before the run trained: the second start did not begin then."""
    run.pass_time(10)
    run.report(iteration=1)
    reconcile(run)
    trained_since = run.now
    run.pass_time(50)
    run.report(phase="rendezvous", iteration=60)
    reconcile(run)
    stopped = run.now
    run.pass_time(5)
    found = spent(run)
    assert (found["train"], found["start"]) == (stopped - trained_since, 5)


def test_a_new_recipe_with_the_default_status_of_the_api_server_is_planned_at_first(run: Any) -> None:
    run.body["status"] = {"observedGeneration": -1}
    run.pass_time(3)
    for pod in run.pods:
        pod["status"] = {"phase": "Pending", "conditions": [UNBOUND]}
        del pod["spec"]
    reconcile(run)
    assert ledger(run).marks[0].cause == PLANNING


def test_a_suspended_job_is_in_the_queue_and_holds_nothing(run: Any) -> None:
    run.job["status"] = {"conditions": [{"type": "Suspended", "status": "True"}]}
    run.job["spec"]["runPolicy"]["suspend"] = True
    run.pods = []
    reconcile(run)
    run.pass_time(90)
    assert spent(run) == {"queue": 90}
    assert account(ledger(run), [], run.now).accelerator_ticks == {}


def test_a_lost_pod_is_charged_to_its_incident(run: Any) -> None:
    run.report(iteration=50)
    reconcile(run)
    run.pass_time(100)
    run.replace_worker("Pending")
    reconcile(run)
    status = run.status()
    assert status.phase == Phase.RECOVERING
    last = ledger(run).marks[-1]
    assert (last.category, last.cause) == ("schedule", status.recovery.history[-1].cause)
    assert last.accelerators == 16, "the other pod holds its node"


def test_a_restarted_operator_that_knows_no_report_changes_nothing(run: Any) -> None:
    run.report(phase="loading")
    reconcile(run)
    assert ledger(run).marks[-1].category == "load"
    run.reading = None
    run.pass_time(10)
    assert not reconcile(run).changed()


def test_the_seconds_that_pods_report_are_kept_and_never_the_reason_of_a_write(run: Any) -> None:
    run.report(iteration=50, saveSeconds=3.0, evaluateSeconds=1.5)
    reconcile(run)
    run.pass_time(100)
    assert {name: spent(run)[name] for name in ("save", "evaluate")} == {"save": 3.0, "evaluate": 1.5}
    run.report(iteration=50, saveSeconds=4.0)
    assert not reconcile(run).changed()
    # A pod that has just started knows less.
    run.report(iteration=51, saveSeconds=1.0)
    reconcile(run)
    assert ledger(run).save_seconds == 3.0


def test_the_seconds_that_an_earlier_recipe_of_the_name_began_to_sum_are_not_used(run: Any) -> None:
    sums = {"saveSeconds": 5400.0, "evaluateSeconds": 600.0}
    run.report(iteration=50, firstStartedAt=run.created - 86_400, **sums)
    reconcile(run)
    run.pass_time(3600)
    assert spent(run).keys() == {"prepare", "train"}
    assert (ledger(run).save_seconds, ledger(run).evaluate_seconds) == (None, None)


def test_the_end_of_a_run_ends_its_ledger(run: Any) -> None:
    run.report(iteration=50)
    reconcile(run)
    run.pass_time(100)
    status = run.status()
    status.fail(Reason.JOB_FAILED, "it failed")
    update_ledger(status, run.snapshot())
    run.write(status)
    assert ledger(run).settled_at == timestamp(run.now)
    assert sum(ledger(run).seconds.values()) == int(run.now - run.created)
    run.pass_time(1000)
    status = run.status()
    update_ledger(status, run.snapshot())
    assert not status.changed()
    assert until_of(ledger(run), None) == run.now - 1000


@pytest.mark.parametrize("before", [Phase.SUCCEEDED, Phase.FAILED])
def test_the_time_after_the_end_of_a_run_stays_what_it_was_when_an_export_is_added(
    run: Any, before: Phase
) -> None:
    run.report(iteration=200)
    reconcile(run)
    run.pass_time(100)
    completed = timestamp(run.now)
    conditions = [{"type": "Succeeded", "status": "True"}]
    run.job["status"] = {"conditions": conditions, "completionTime": completed}
    run.pass_time(5)
    end(run, before)
    run.pass_time(86_400)
    end(run, Phase.EXPORTING)
    run.pass_time(30)
    idle = {
        each.cause: each.seconds
        for each in account(ledger(run), [], run.now).largest_losses(20)
        if each.category == "idle"
    }
    late = 5 if before == Phase.FAILED else 0
    assert idle == {before: 86_405 - late, Phase.EXPORTING: 30}


def end(run: Any, phase: Phase) -> None:
    """Write the status of a run that is over, in this phase."""
    status = run.status()
    status.set(phase=phase)
    if phase == Phase.EXPORTING:
        status.set_condition(Condition.EXPORTED, False, Reason.EXPORTING)
    update_ledger(status, run.snapshot())
    run.write(status)


def test_a_run_of_a_release_without_a_ledger_begins_one_with_its_next_change(run: Any) -> None:
    run.report(iteration=50)
    reconcile(run)
    del run.body["status"]["ledger"]
    run.pass_time(100)
    assert not reconcile(run).changed()
    run.report(iteration=60)
    reconcile(run)
    run.pass_time(10)
    assert spent(run) == {"idle": 102, "train": 10}
    assert ledger(run).marks[0].cause == "NotRecorded"


def test_a_refused_recipe_is_idle(run: Any) -> None:
    status = run.status()
    status.set(phase=Phase.REFUSED)
    status.set_condition(Condition.PLANNED, False, Reason.REFUSED, "8 is no multiple of 3")
    update_ledger(status, run.snapshot())
    run.write(status)
    run.pass_time(30)
    assert spent(run) == {"idle": 30}


def test_an_import_prepares_and_an_export_holds_nothing(run: Any) -> None:
    phases = (
        (Phase.IMPORTING, Condition.IMPORTED, Reason.IMPORTING),
        (Phase.EXPORTING, Condition.EXPORTED, Reason.EXPORTING),
    )
    for phase, kind, reason in phases:
        status = run.status()
        status.set(phase=phase)
        status.set_condition(kind, False, reason, "job run-import is running")
        update_ledger(status, run.snapshot())
        run.write(status)
        assert (ledger(run).marks[-1].cause, ledger(run).marks[-1].accelerators) == (reason, 0)
        run.pass_time(30)
    assert spent(run) == {"prepare": 30, "idle": 30}


def test_the_goodput_of_checkpoints_that_an_earlier_recipe_of_the_name_began_is_unknown(run: Any) -> None:
    run.report(iteration=50, firstStartedAt=run.created - 604_800, usefulSeconds=36_000.0)
    reconcile(run)
    status = run.status()
    update_goodput(status, run.reading)
    assert status.recovery.goodput is None
    run.report(iteration=50, firstStartedAt=run.created, usefulSeconds=1.0)
    update_goodput(status, run.reading)
    assert status.recovery.goodput is not None
