"""Samples of a small fleet for the picture of the dashboard, as Prometheus would scrape them.

No run trained. `bench.simulated_run` plays each: `recovery_policy.decide` reacts to its faults, with the
phases that `make bench-recovery` measured. Status, ledger and metrics are made by the operator's and the
trainer's own code, step times by the planner; losses are a formula. The operator's reconciles are its work
queue and API client against `testkit.api_stand_in`, and take what they take on this machine.
"""

import asyncio
import logging
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final
from unittest.mock import patch

import yaml
from kubernetes.aio import client
from megatron_contract.progress import ProgressReport
from megatron_operator.api.conditions import Phase
from megatron_operator.api.recipe import RecoverySpec
from megatron_operator.api.recovery_status import RecoveryStatus
from megatron_operator.api.status import Plan
from megatron_operator.api.times import timestamp
from megatron_operator.controller import metrics, run_metrics
from megatron_operator.controller.api_client import ApiClient
from megatron_operator.controller.api_resources import RECIPES
from megatron_operator.controller.loop_lag import measure_loop_lag
from megatron_operator.controller.run_metrics import RUNS
from megatron_operator.controller.workqueue import WorkQueue
from megatron_operator.lifecycle.ledger_weeks import monday
from megatron_operator.lifecycle.reported_incidents import goodput
from megatron_operator.lifecycle.status_builder import RecipeKey, StatusBuilder
from megatron_operator.lifecycle.time_ledger import State, advance, open_ledger
from megatron_operator.sdk import Recipe
from megatron_trainer.telemetry.server import collect_metrics
from prometheus_client import REGISTRY
from prometheus_client.metrics_core import Metric

from bench.goodput import PHASES, phases_of
from bench.interruptions import PLANNED, UNEXPECTED, Fault
from bench.simulated_run import EPOCH, SimulatedRun
from bench.wall_time import Clock, Scale
from testkit.api_stand_in import ApiStandIn

END: Final = 1_767_528_000.0
"""Unix time of the newest sample: 2026-01-04T12:00:00Z."""
INTERVAL: Final = 30.0
"""Seconds between two scrapes: the chart's default."""
HOUR: Final = 3600.0
CHECKPOINT_STEPS: Final = 200
PRICE: Final = 2.5
"""Of an accelerator and hour, as in the example of docs/platform.md."""
_CAUSES: Final = {cause.component: cause for cause in (*UNEXPECTED, PLANNED)}
_TRAINING: Final = ("train", "checkpoint", "detect")
"""Parts of a run in which the operator sees a run that trains."""


@dataclass(frozen=True, slots=True)
class ExampleRun:
    """A run of the fleet. Hours count back from END."""

    namespace: str
    name: str
    accelerators: int
    began: float
    """Hours since the first start."""
    queued: float
    """Hours between its creation and that."""
    faults: tuple[tuple[float, str, int], ...] = ()
    """Hours ago, component of `bench.interruptions`, pod."""
    ended: float | None = None
    """Hours since it succeeded."""
    slower: float = 1.06
    """Its step time over the plan's."""


FLEET: Final = (
    ExampleRun(
        "research", "llama3-8b-web", 64, 30.0, 0.4,
        ((27.0, "Software Bug", 2), (5.1, "GPU HBM3 Memory", 3), (2.0, "Software Bug", 0)),
    ),
    ExampleRun("research", "llama3-8b-long", 32, 20.0, 0.2, ((3.4, "Network Switch/Cable", 1),), slower=1.12),
    ExampleRun("teaching", "llama3-8b-code", 32, 12.0, 0.6, ((1.2, "Power Supply", 2),), slower=1.04),
    ExampleRun("teaching", "llama3-8b-chat", 16, 3.0, 1.5, slower=1.09),
    ExampleRun("vision", "llama3-8b-probe", 16, 9.0, 0.1, ((4.2, "Software Bug", 1),), 0.9, 1.02),
)  # fmt: skip


@dataclass
class RecordedClock(Clock):
    """A clock that keeps when each part of the run began."""

    moments: list[tuple[float, str, int, float]] = field(default_factory=list)
    """Seconds since the first start, part, iteration of the checkpoint and unsaved step time then."""

    def spend(self, part: str, seconds: float, until: float) -> bool:
        """As of Clock."""
        self._note(part)
        return super().spend(part, seconds, until)

    def train(self, until: float) -> None:
        """As of Clock."""
        self._note("train")
        super().train(until)

    def save(self) -> None:
        """As of Clock; a checkpoint is numbered by its iteration."""
        super().save()
        self.checkpoints += CHECKPOINT_STEPS - 1
        self._note("train")

    def _note(self, part: str) -> None:
        self.moments.append((self.now, part, self.checkpoints, self.unsaved))


class RecordedRun(SimulatedRun):
    """A simulated run that keeps each state of `status.recovery`."""

    def __init__(self, scale: Scale, end: float) -> None:
        self.recoveries: list[tuple[float, RecoveryStatus]] = []
        super().__init__(scale, phases_of(yaml.safe_load(PHASES.read_text())), RecoverySpec(), end)
        self.clock = RecordedClock(scale, end)

    def _report(self, kind: str, fault: Fault) -> None:
        super()._report(kind, fault)
        reached = self.clock.checkpoints + int(self.clock.unsaved / self._scale.step)
        self._reason = (self._reason or {}) | {"iteration": reached}

    @property
    def recovery(self) -> RecoveryStatus:  # type: ignore[override]
        """The newest state."""
        return self.recoveries[-1][1]

    @recovery.setter
    def recovery(self, value: RecoveryStatus) -> None:
        self.recoveries.append((self.clock.now, value))


class PlayedRun:
    """A run at any time, forwards: its status as the operator exports it and its report as node 0 does."""

    def __init__(self, run: ExampleRun) -> None:
        planned = Recipe(
            "llama3-8b", name=run.name, accelerator="h100-sxm", count=run.accelerators,
            training={"globalBatchSize": 128},
        ).plan().plan  # fmt: skip
        assert planned.expected is not None, "the planner estimates this entry's speed"
        self.run, self.plan = run, Plan.model_validate(planned.wire() | {"pricePerGpuHour": PRICE})
        self.expected = planned.expected
        self.step = planned.expected.step_seconds * run.slower
        scale = Scale(
            pods=planned.nodes, step=self.step, checkpoint_steps=CHECKPOINT_STEPS, spares=2, repair=6 * HOUR,
            groups=8.0, load=20.0,
        )  # fmt: skip
        self._lasts = (run.began - (-1.0 if run.ended is None else run.ended)) * HOUR
        simulated = RecordedRun(scale, self._lasts)
        simulated.play(
            Fault((run.began - ago) * HOUR, pod, _CAUSES[component]) for ago, component, pod in run.faults
        )
        self._moments = simulated.clock.moments
        self._recoveries = simulated.recoveries
        self._ledger = open_ledger(timestamp(EPOCH - run.queued * HOUR), State("queue"))
        self._next = 0

    @property
    def key(self) -> RecipeKey:
        """Namespace and name."""
        return RecipeKey(self.run.namespace, self.run.name)

    def export(self, now: float) -> ProgressReport | None:
        """Set the operator's series at a Unix time; returns the report of node 0's pod where it answers."""
        local = now - END + self.run.began * HOUR
        if local < -self.run.queued * HOUR:
            return None
        passed = [each for each in self._moments if each[0] <= local]
        ended = self.run.ended is not None and local >= self._lasts
        for moment, part, _, _ in passed[self._next :]:
            self._advance("train" if part in _TRAINING else part, moment)
        self._next = len(passed)
        report = None
        if ended:
            self._advance("idle", self._lasts, ended=True)
            phase = Phase.SUCCEEDED
        elif not passed:
            phase = Phase.PENDING
        else:
            training = passed[-1][1] in _TRAINING
            phase = Phase.TRAINING if training else Phase.RECOVERING
            report = self._report(passed[-1], local, now, training=training)
        status = StatusBuilder.of(self._body(), EPOCH + local)
        recovery = self._recovery(local)
        if report is not None:
            recovery = recovery.model_copy(update={"goodput": goodput(report, now)})
        status.set(phase=phase, plan=self.plan, recovery=recovery, ledger=self._ledger)
        RUNS.update(status)
        return report

    def _body(self) -> dict[str, Any]:
        metadata = {"namespace": self.run.namespace, "name": self.run.name, "uid": "u", "generation": 1}
        return {"metadata": metadata, "spec": {}}

    def _advance(self, category: str, local: float, *, ended: bool = False) -> None:
        state = State(category, accelerators=0 if ended else self.run.accelerators)
        history = self._recovery(local).history
        self._ledger = advance(self._ledger, state, EPOCH + local, history, ended=ended)

    def _recovery(self, local: float) -> RecoveryStatus:
        return [value for time, value in self._recoveries if time <= max(local, 0.0)][-1]

    def _report(
        self, moment: tuple[float, str, int, float], local: float, now: float, *, training: bool
    ) -> ProgressReport:
        began, part, checkpoints, unsaved = moment
        since = unsaved + (local - began if part == "train" else 0.0)
        iteration = max(1, checkpoints + int(since / self.step))
        saved = [at for at, _, number, _ in self._moments if number == checkpoints]
        wave = 1 + 0.01 * math.sin(local / 240 + self.run.accelerators)
        known: dict[str, Any] = {}
        if training:
            rate = self.plan.world_size * self.expected.tokens_per_second_per_gpu / self.run.slower / wave
            known = {
                "lm_loss": _loss(iteration) + 0.02 * math.sin(iteration * 0.71),
                "learning_rate": 3e-4
                * min(1.0, iteration / 2000)
                * (0.55 + 0.45 * math.cos(iteration / 60_000)),
                "step_seconds": self.step * wave,
                "tokens_per_second": rate,
                "tflops_per_gpu": self.expected.tflops_per_gpu / self.run.slower / wave,
            }
        if (evaluated := iteration // 1000 * 1000) > 0:
            known |= {
                "validation_loss": _loss(evaluated) + 0.03,
                "best_validation_loss": _loss(evaluated) + 0.03,
            }
        if checkpoints:
            written = now - (local - saved[0])
            known |= {
                "checkpoint_iteration": checkpoints,
                "checkpoint_time": timestamp(written),
            }
        return ProgressReport(
            schema=1,
            phase="training" if training else "loading",
            node_rank=0,
            generation=1,
            iteration=iteration,
            train_iters=100_000,
            useful_seconds=checkpoints * self.step + since,
            first_started_at=now - local,
            **known,
        )


def _loss(iteration: int) -> float:
    return 1.75 + 14.0 / (1 + iteration / 60) ** 0.5


async def record(hours: float, fleet: Sequence[ExampleRun] = FLEET) -> list[str]:
    """The samples of the hours before END as lines of OpenMetrics, in order of time."""
    runs = [PlayedRun(each) for each in fleet]
    lines: list[str] = []
    with ApiStandIn().running() as api:
        connection = ApiClient(client.ApiClient(client.Configuration(host=api.url)))
        lag = asyncio.create_task(measure_loop_lag())
        metrics.LEADER.set(1)
        logging.getLogger(WorkQueue.__module__).setLevel(logging.CRITICAL)
        try:
            for number in range(int(hours * HOUR / INTERVAL) + 1):
                now = END - hours * HOUR + number * INTERVAL
                await _reconcile(connection, [run.key for run in runs], number)
                lines += _scrape(runs, now)
        finally:
            lag.cancel()
            await connection.close()
            for run in runs:
                RUNS.remove(run.key)
    return [*lines, "# EOF"]


async def _reconcile(connection: ApiClient, keys: Sequence[RecipeKey], number: int) -> None:
    """Reconcile one recipe of the fleet, and every tenth time one that is gone or fails."""
    done = asyncio.Event()

    async def reconcile(key: RecipeKey) -> None:
        done.set()
        if number % 100 == 99:
            raise OSError("connection lost")
        await connection.find(RECIPES, key.namespace)
        if number % 10 == 9:
            await connection.get(RECIPES, *key)

    if number == 0 or number % 400 == 399:
        metrics.STALE_OBJECTS.labels("pods").inc()
    queue = WorkQueue(reconcile, workers=1)
    queue.start()
    queue.add(keys[number % len(keys)], 0)
    await done.wait()
    await queue.stop(grace=60)


def _scrape(runs: Iterable[PlayedRun], now: float) -> Iterator[str]:
    reports = [(run, run.export(now)) for run in runs]
    # The runs' own clock begins at EPOCH, and all are of that week.
    with patch.object(run_metrics, "monday", lambda _: monday(EPOCH)):
        found = list(REGISTRY.collect())
    for metric in found:
        if metric.name.startswith("megatron_"):
            yield from _lines(metric, {}, now)
    for run, report in reports:
        target = {"namespace": run.run.namespace, "recipe": run.run.name, "pod": f"{run.run.name}-master-0"}
        for metric in () if report is None else collect_metrics(report):
            yield from _lines(metric, target, now)


def _lines(metric: Metric, target: dict[str, str], now: float) -> Iterator[str]:
    for sample in metric.samples:
        if not sample.name.endswith("_created"):
            labels = ",".join(f'{name}="{value}"' for name, value in (sample.labels | target).items())
            yield f"{sample.name}{{{labels}}} {sample.value} {now}"
