"""A recipe that cannot be planned within the limits: its condition, the other recipes, a running job."""

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
from megatron_operator.api.conditions import Condition
from megatron_operator.api.errors import PlanningLimitError
from megatron_operator.api.reasons import Reason
from megatron_operator.controller import planning
from megatron_operator.controller.plan_workers import PlanWorkers
from megatron_operator.controller.planning import Planning
from megatron_operator.lifecycle.desired import Config, DesiredState, desired_state
from megatron_operator.lifecycle.status_builder import RecipeKey, StatusBuilder
from megatron_operator.planner.limits import PlanningLimits

from tests.unit.controller.endless_catalog import EndlessCatalog
from tests.unit.controller.simulated_run import Run
from tests.unit.controller.whole_operator import CONFIG, recipe_spec

ROOT = Path(__file__).parents[3]


class Source:
    """A configuration with recipes that cannot be planned."""

    def __init__(self) -> None:
        self.change()

    def change(self) -> None:
        self.config = Config(CONFIG.platform, EndlessCatalog())

    async def read(self, since: float = 0.0, **_: float) -> Config:
        self.since = since
        return self.config


class CountingWorkers(PlanWorkers):
    calls = 0

    async def call(self, *arguments: Any, **options: Any) -> Any:
        self.calls += 1
        return await super().call(*arguments, **options)


class Setup:
    def __init__(self, cpu_seconds: float = 0.5) -> None:
        self.source, self.worker = Source(), CountingWorkers(PlanningLimits(cpu_seconds=cpu_seconds))
        self.ready: list[RecipeKey] = []
        source: Any = self.source
        self.planning = Planning(source, self.worker, self.ready.append)

    async def plan(self, status: StatusBuilder) -> DesiredState:
        """Wait for the plan as the work queue does."""
        while True:
            self.ready.clear()
            if (desired := await self.planning.desired(status)) is not None:
                return desired
            while not self.ready:
                await asyncio.sleep(0.01)


@pytest.fixture(autouse=True)
def importable(monkeypatch: pytest.MonkeyPatch) -> None:
    """The planning process imports this folder's catalog."""
    monkeypatch.setenv("PYTHONPATH", str(ROOT))


@pytest.fixture
async def setup() -> AsyncIterator[Setup]:
    setup = Setup()
    yield setup
    await setup.worker.stop()


def recipe(entry: str = "llama3-8b", generation: int = 1, name: str = "run") -> StatusBuilder:
    metadata = {"name": name, "namespace": "default", "uid": name, "generation": generation}
    return StatusBuilder.of({"metadata": metadata, "spec": recipe_spec(16) | {"recipe": entry}}, 0.0)


async def test_the_process_plans_what_the_function_returns(setup: Setup) -> None:
    desired = await setup.plan(recipe())
    expected = desired_state(recipe(), CONFIG)
    assert (desired.plan, desired.contract, desired.job_hash) == (
        expected.plan,
        expected.contract,
        expected.job_hash,
    )


@pytest.mark.parametrize(
    ("entry", "message"),
    [("endless", "0.5 s of processor time"), ("greedy", "MiB of memory"), ("killed", "was killed 2 times")],
)
async def test_a_recipe_that_exceeds_a_limit_is_asked_for_once(
    setup: Setup, entry: str, message: str
) -> None:
    with pytest.raises(PlanningLimitError, match=message):
        await setup.plan(recipe(entry))
    before = setup.worker.calls
    with pytest.raises(PlanningLimitError, match=message):
        await setup.plan(recipe(entry))
    assert setup.worker.calls == before, "it does not use the time again"
    assert (await setup.plan(recipe(name="other"))).plan.world_size == 16


async def test_it_is_planned_again_when_spec_platform_or_catalog_change(setup: Setup) -> None:
    for generation, calls in ((1, 1), (2, 2), (2, 2)):
        with pytest.raises(PlanningLimitError):
            await setup.plan(recipe("endless", generation))
        assert setup.worker.calls == calls
    setup.source.change()
    with pytest.raises(PlanningLimitError):
        await setup.plan(recipe("endless", 2))
    assert setup.worker.calls == 3


async def test_an_edit_ends_the_planning_of_the_earlier_spec() -> None:
    setup = Setup(cpu_seconds=10_000)
    assert await setup.planning.desired(recipe("endless")) is None
    assert (await setup.plan(recipe(generation=2))).plan.world_size == 16
    await setup.worker.stop()


async def test_a_reconcile_waits_once_for_a_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    setup = Setup(cpu_seconds=10_000)
    for patience in (0.01, 10_000.0):
        monkeypatch.setattr(planning, "PATIENCE", patience)
        assert await setup.planning.desired(recipe("endless")) is None
    setup.planning.forget(recipe().key)
    assert (await setup.plan(recipe())).plan.world_size == 16
    await setup.worker.stop()


async def test_a_recipe_finds_a_process_that_was_started_before_it(setup: Setup) -> None:
    await setup.planning.start()
    (process,) = setup.worker.pids
    await setup.plan(recipe())
    assert setup.worker.pids == [process]


@pytest.fixture
def run() -> Iterator[Run]:
    setup = Setup()
    run = Run(setup.planning)
    yield run
    run.operator.runner.run(setup.worker.stop())
    run.operator.close()


def planned(run: Run) -> dict[str, Any]:
    conditions = run.status.get("conditions") or []
    return next((each for each in conditions if each["type"] == Condition.PLANNED), {})


def reconcile_until(run: Run, reason: Reason) -> None:
    """Reconcile in real time: the process works meanwhile."""
    for _ in range(6000):
        run.operator.reconcile()
        if planned(run).get("reason") == reason:
            return
        run.operator.runner.run(asyncio.sleep(0.01))
    raise AssertionError(run.status)


def test_the_condition_of_an_endless_recipe_is_planner_timeout_until_it_is_edited(run: Run) -> None:
    valid = run.api.recipe["spec"]["recipe"]
    run.edit(recipe="endless")
    reconcile_until(run, Reason.PLANNER_TIMEOUT)
    assert planned(run)["status"] == "False"
    assert "spec: planning it was stopped after 0.5 s of processor time" in planned(run)["message"]
    assert run.status["phase"] == "Refused"
    assert run.cluster.job is None
    run.edit(recipe=valid)
    reconcile_until(run, Reason.PLANNED)


def test_nothing_is_written_of_a_new_recipe_before_it_is_planned(run: Run) -> None:
    run.edit(recipe="endless")
    version = run.api.recipe["metadata"]["resourceVersion"]
    run.operator.reconcile()
    assert run.api.recipe["metadata"]["resourceVersion"] == version
    reconcile_until(run, Reason.PLANNER_TIMEOUT)
    assert int(run.api.recipe["metadata"]["resourceVersion"]) == int(version) + 1


def test_a_running_job_is_supervised_while_and_after_an_endless_edit_is_planned(run: Run) -> None:
    reconcile_until(run, Reason.PLANNED)
    run.until(run.trains)
    before = run.cluster.job
    run.edit(recipe="endless")
    reconcile_until(run, Reason.PLANNER_TIMEOUT)
    iteration = run.status["progress"]["iteration"]
    run.until(lambda: run.status["progress"]["iteration"] > iteration)
    assert run.cluster.job is before
    assert run.trains()


async def test_a_recipe_is_planned_with_a_configuration_that_is_read_after_it_changed() -> None:
    setup = Setup()
    key = recipe().key
    await setup.plan(recipe())
    assert setup.source.since == 0.0
    before = time.monotonic()
    setup.planning.recipe_changed(key)
    await setup.plan(recipe())
    assert setup.source.since >= before
    setup.planning.forget(key)
    await setup.plan(recipe())
    assert setup.source.since == 0.0
    await setup.worker.stop()
