"""Every query of the dashboard, answered by a real Prometheus that scrapes the real exporters."""

import asyncio
import json
import math
import re
import time
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from kubernetes.aio import client
from megatron_operator.api.conditions import Phase
from megatron_operator.api.recovery_status import LostSeconds, RecoveryStatus, RestartsByKind
from megatron_operator.api.status import Expected, Plan
from megatron_operator.api.times import timestamp
from megatron_operator.controller import metrics, run_metrics
from megatron_operator.controller.api_client import ApiClient
from megatron_operator.controller.api_resources import RECIPES
from megatron_operator.controller.loop_lag import measure_loop_lag
from megatron_operator.controller.run_metrics import RUNS
from megatron_operator.controller.workqueue import WorkQueue
from megatron_operator.lifecycle.ledger_weeks import monday
from megatron_operator.lifecycle.status_builder import RecipeKey
from megatron_operator.lifecycle.time_ledger import State, advance, open_ledger
from megatron_trainer.telemetry.server import ProgressServer
from prometheus_client import REGISTRY, start_http_server

from scripts.metrics_page import TRAINER_REPORT
from testkit.api_stand_in import ApiStandIn
from testkit.prometheus import Prometheus, PrometheusMissingError, program, serve
from testkit.waiting import wait_until
from tests.unit.chart.test_dashboard import DASHBOARD, queries

NAMESPACE, NAME = "dashboard", "observed"
CHOSEN = {"$namespace": NAMESPACE, "$run": NAME, "$__rate_interval": "5m"}
REPORT = replace(TRAINER_REPORT, step_seconds=1.1, tflops_per_gpu=400.0)


@pytest.fixture
def prometheus(tmp_path: Path) -> Iterator[Prometheus]:
    """A server that scrapes the operator's registry and a trainer pod as the chart's monitors do."""
    try:
        program("prometheus")
    except PrometheusMissingError as error:
        pytest.skip(str(error))
    operator, thread = start_http_server(0, "127.0.0.1", REGISTRY)
    trainer = ProgressServer(0, lambda: REPORT)
    trainer.start()
    of_pod = {"namespace": NAMESPACE, "recipe": NAME, "pod": f"{NAME}-master-0"}
    config = {
        "global": {"scrape_interval": "1s"},
        "scrape_configs": [
            {
                "job_name": "operator",
                "honor_labels": True,
                "static_configs": [{"targets": [f"127.0.0.1:{operator.server_port}"]}],
            },
            {
                "job_name": "trainers",
                "static_configs": [{"targets": [f"127.0.0.1:{trainer.server_port}"], "labels": of_pod}],
            },
        ],
    }
    try:
        with serve(tmp_path, config) as server:
            yield server
    finally:
        trainer.shutdown()
        trainer.server_close()
        operator.shutdown()
        operator.server_close()
        thread.join()


def lag_measurements() -> float:
    return REGISTRY.get_sample_value("megatron_operator_event_loop_lag_seconds_count") or 0.0


async def operate(api: ApiStandIn) -> None:
    """Let the operator's own parts count something: requests, reconciles, the lag of the loop."""
    connection = ApiClient(client.ApiClient(client.Configuration(host=api.url)))
    reconciled, measured = asyncio.Event(), lag_measurements()

    async def reconcile(key: RecipeKey) -> None:
        if key.name == "broken":
            raise OSError("connection lost")
        await connection.find(RECIPES, NAMESPACE)
        assert await connection.get(RECIPES, NAMESPACE, "missing") is None
        reconciled.set()

    queue = WorkQueue(reconcile, workers=1)
    lag = asyncio.create_task(measure_loop_lag())
    queue.start()
    queue.add(RecipeKey(NAMESPACE, "broken"), 0)
    queue.add(RecipeKey(NAMESPACE, NAME), 0)
    await reconciled.wait()
    while lag_measurements() == measured:
        await asyncio.sleep(0.01)
    await queue.stop(grace=60)
    lag.cancel()
    await connection.close()


def update_run(run: Any, plan: Plan, restarts: int) -> None:
    """Export a run that trains after this many interruptions."""
    run.body["metadata"] |= {"namespace": NAMESPACE, "name": NAME}
    status = run.status()
    recovery = RecoveryStatus(
        restarts_by_kind=RestartsByKind(rank=restarts),
        lost_seconds=LostSeconds(redo=4.5 * restarts),
        lost_iterations=3 * restarts,
        goodput=0.9,
        nodes_avoided=["node-1"],
    )
    status.set(phase=Phase.TRAINING, recovery=recovery, plan=plan)
    ledger = open_ledger(timestamp(run.now - 100), State("prepare"))
    status.set(ledger=advance(ledger, State("train", accelerators=8), run.now - 30, [], ended=False))
    RUNS.update(status)


@pytest.fixture
def plan() -> Plan:
    expected = Expected(
        step_seconds=1.0, tokens_per_second_per_gpu=1e5, tflops_per_gpu=450.0, mfu=0.45, bubble=0.0
    )
    return Plan.model_construct(world_size=8, expected=expected, price_per_gpu_hour=2.5)


def test_every_query_has_series(
    prometheus: Prometheus,
    run: Any,
    plan: Plan,
    api: ApiStandIn,
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(run_metrics, "monday", lambda _: monday(run.now))
    request.addfinalizer(lambda: RUNS.remove(RecipeKey(NAMESPACE, NAME)))

    def scraped(since: float) -> bool:
        """Whether scrapes of the operator and the pod have begun after this Unix time."""
        of_run = f'timestamp(megatron_recipe_phase{{name="{NAME}"}}) > {since}'
        of_pod = f'timestamp(megatron_iteration{{recipe="{NAME}"}}) > {since}'
        return bool(prometheus.query(of_run)) and bool(prometheus.query(of_pod))

    # What counts is seen before and after it grows, else there is no rate.
    for number in (1, 2):
        metrics.LEADER.set(1)
        metrics.STALE_OBJECTS.labels("pods").inc()
        metrics.EVENTS_DROPPED.inc()
        asyncio.run(operate(api))
        update_run(run, plan, restarts=number)
        # Prometheus moves the times of scrapes by up to 2 ms.
        wait_until("a scrape", partial(scraped, time.time() + 0.01))

    found = {}
    for title, query, _ in queries(json.loads(DASHBOARD.read_text())):
        chosen = re.sub(r"\$[a-z_]\w+", lambda variable: CHOSEN[variable[0]], query)
        found[title] = [float(each["value"][1]) for each in prometheus.query(chosen)]
        assert found[title], f"{title}: no series of {chosen}"
        assert all(map(math.isfinite, found[title])), f"{title}: {found[title]}"

    assert found["MFU"] == [pytest.approx(0.4)]
    assert found["Step time over the plan's"] == [pytest.approx(1.1)]
    assert found["Goodput of the fleet"] == [pytest.approx(0.9)]
    assert sum(found["GPU-hours by category"]) == pytest.approx(8 * 30 / 3600)
    assert sum(found["Lost GPU-hours by run"]) == 0
    assert found["GPU-hours of this week by namespace"] == [pytest.approx(8 * 30 / 3600)]
    assert found["Cost of this week by namespace"] == [pytest.approx(2.5 * 8 * 30 / 3600)]
    assert found["Interruptions"] == [2]
