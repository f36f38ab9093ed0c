"""Weeks of a fleet in an hour: `python -m bench.fleet --runs 200 --nodes 2000 --days 14 --minutes 60`.

The shipped operator, a real API server, scheduler with gangs and training-operator; nodes are KWOK's, and
trainers are played (`bench.fleet_trainer`). Training, repairs and arrivals are compressed as the days are
into the minutes; detection, replacement and restarts take what they take (docs/fleet.md).
"""

import argparse
import contextlib
import json
import logging
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from localcluster.ports import free_port
from urllib3.exceptions import HTTPError

from bench.fleet_operator import SHORTEST
from bench.fleet_plan import MIXES, RunPlan, plan_runs
from bench.fleet_pods import PodWatch
from bench.fleet_queues import QUEUE, queues
from bench.fleet_report import PAGE, Measured, page, table
from bench.fleet_runs import rows, write_csv
from bench.fleet_trainer import SAVE_STEPS, SHRINK_AFTER, Trainer
from bench.fleet_world import FleetPods, Trace, World
from bench.interruptions import PER_POD
from bench.operator_metrics import DECISIONS, RECONCILES, by_label, scrape, total
from bench.scale_cluster import (
    NAMESPACE,
    PLATFORM,
    Bench,
    control_plane,
    heartbeats,
    recipe,
    volume,
    wait_for,
)
from bench.scale_processes import usage
from testkit.api_server import Api, Object
from testkit.errors import ApiError
from testkit.fake_nodes import terminate_pods
from testkit.operator_process import OPERATOR_NAMESPACE, OperatorProcess

log = logging.getLogger("bench.fleet")

TICK: Final = 0.2
"""Seconds between two moments in which the world acts."""
LOOK: Final = 5.0
"""Seconds between two lists of the recipes."""
BATCH: Final = 3840
"""Divisible by the data parallelism of every elastic size of up to 64 nodes that the bench uses."""
GROW_AFTER: Final = 300.0
"""Seconds of `recovery.elastic.growAfter` on the fleet's clock."""
NOTICED: Final = 40.0
"""Seconds from when Kubernetes finds a node lost to its repair, at least: the operator waits for 30."""
GANGS: Final = ("coscheduling", "kubernetes", "kueue")
GANG_SECONDS: Final = 60
"""`gangScheduling.scheduleTimeoutSeconds`: on few cores the scheduler takes seconds for a gang of 64 pods."""
ENDED: Final = ("Succeeded", "Failed")
PRIORITY_CLASS: Final[Object] = {
    "apiVersion": "scheduling.k8s.io/v1",
    "kind": "PriorityClass",
    "metadata": {"name": "megatron-recovery"},
    "value": 1,
    "preemptionPolicy": "Never",
}


@dataclass(frozen=True, slots=True)
class Options:
    """The command line."""

    runs: int
    nodes: int
    days: float
    minutes: float
    limit: float
    """Minutes after which the bench gives up, and names what is stuck."""
    gangs: str
    cordon: bool
    priority: bool
    mix: str
    rate: float
    repair_hours: float
    seed: int

    @property
    def factor(self) -> float:
        """Seconds of the fleet in one of the clock."""
        return self.days * 24 * 60 / self.minutes


def spec(plan: RunPlan, trainer: Trainer, options: Options) -> Object:
    """The recipe of a run."""
    factor = options.factor
    body = recipe(plan.name)
    recovery: Object = {}
    if plan.least_nodes is not None:
        recovery["elastic"] = {
            "minCount": plan.least_nodes * PER_POD,
            "shrinkAfter": round(max(SHORTEST / 2, SHRINK_AFTER / factor)),
            "growAfter": round(max(SHORTEST, GROW_AFTER / factor)),
        }
    body["spec"] |= {
        "accelerator": {"count": plan.nodes * PER_POD},
        "training": {"globalBatchSize": BATCH, "trainIters": trainer.total},
        "checkpoint": {"saveInterval": SAVE_STEPS, "keep": 2},
        "recovery": recovery,
    }
    if options.gangs == "kueue":
        body["spec"]["scheduling"] = {"queue": QUEUE}
    return body


def platform(options: Options, scheduler: str) -> Object:
    """One pod a node, and gangs of a scheduler with this name; with Kueue it places pods without gangs."""
    profile = PLATFORM["accelerators"]["simulated"] | {"resources": {"cpu": "40", "memory": "64Gi"}}
    gangs: Object = {"scheduler": scheduler, "scheduleTimeoutSeconds": GANG_SECONDS}
    if options.gangs == "kubernetes":
        gangs = {"scheduler": "kubernetes"}
        profile |= {"podTemplate": {"schedulerName": scheduler}}
    chosen: Object = {} if options.gangs == "kueue" else {"gangScheduling": gangs}
    if options.cordon:
        chosen["badNodes"] = {"cordon": True}
    if options.priority:
        chosen["recoveryPriorityClassName"] = PRIORITY_CLASS["metadata"]["name"]
    return PLATFORM | {"accelerators": {"simulated": profile}} | chosen


@dataclass(slots=True)
class _Fleet:
    """One bench that runs."""

    bench: Bench
    options: Options
    world: World
    plans: list[RunPlan]
    recipes: dict[str, Object] = field(default_factory=dict)
    """As they were last read."""

    def play(self, watch: PodWatch) -> None:
        """Let everything happen, until all runs have ended or the limit is reached."""
        began = last = time.time()
        looked, arriving = began, list(self.plans)
        while time.time() - began < self.options.limit * 60:
            now = time.time()
            self.world.injecting = now - began < self.options.minutes * 60
            while arriving and arriving[0].arrives * 3600 / self.options.factor <= now - began:
                plan = arriving.pop(0)
                self.bench.api.create(spec(plan, self.world.add(plan), self.options))
            self.world.advance(now, now - last, watch.pods(), watch.released)
            last = now
            if now - looked >= LOOK:
                looked = now
                self._look(now - began)
                if not arriving and len(self.ended()) == len(self.plans):
                    return
            time.sleep(max(0.0, TICK - (time.time() - now)))

    def _look(self, after: float) -> None:
        try:
            found = self.bench.api.list("MegatronRecipe", NAMESPACE)
        except (ApiError, HTTPError) as error:
            log.warning("the recipes are read again: %s", error)
            return
        self.recipes = {each["metadata"]["name"]: each for each in found}
        phases: dict[str, int] = {}
        for each in found:
            phase = str((each.get("status") or {}).get("phase"))
            phases[phase] = phases.get(phase, 0) + 1
        faults = sum(len(each.interruptions) for each in self.world.trainers)
        log.info("%4.0f s, %d faults: %s", after, faults, json.dumps(phases))

    def ended(self) -> list[Object]:
        """Recipes that have ended."""
        return [r for r in self.recipes.values() if (r.get("status") or {}).get("phase") in ENDED]


def measure(options: Options, folder: Path) -> Measured:
    """Start everything, play the fleet, and return what was found."""
    plans = plan_runs(options.runs, options.nodes, options.days, options.seed)
    with control_plane(options.nodes, folder) as bench, contextlib.ExitStack() as stack:
        gangs: dict[str, Callable[[], contextlib.AbstractContextManager[str]]] = {
            "coscheduling": bench.cluster.gang_scheduling,
            "kubernetes": bench.cluster.kubernetes_gangs,
            "kueue": lambda: queues(bench, options.nodes),
        }
        scheduler = stack.enter_context(gangs[options.gangs]())
        if options.priority:
            bench.api.create(PRIORITY_CLASS)
        bench.install(platform(options, scheduler))
        terminate_pods(bench.api, of_lost_nodes=False)
        bench.create_all(volume(each.name) for each in plans)
        pods, port = FleetPods(), free_port()
        trace = Trace(
            options.factor,
            max(heartbeats(options.nodes).grace + NOTICED, options.repair_hours * 3600 / options.factor),
            options.mix,
            options.rate,
            options.seed,
        )
        nodes = [f"node-{number}" for number in range(options.nodes)]
        world = World(Api(bench.cluster.kubeconfig), pods.answers, nodes, trace)
        watch = PodWatch(bench.api, bench.cluster.kubeconfig, NAMESPACE)
        command = [
            f"--namespace={OPERATOR_NAMESPACE}", "--node-discovery", "--progress-interval=5",
            f"--metrics-port={port}",
        ]  # fmt: skip
        operator = OperatorProcess(
            bench.kubeconfig,
            folder / "operator.log",
            pods.url,
            command,
            ("bench.fleet_operator", str(options.factor)),
        )
        fleet = _Fleet(bench, options, world, plans)
        try:
            operator.start()
            wait_for("the operator", lambda: bool(scrape(port)), 120.0)
            watch.start()
            before, began = usage(operator.pid), time.time()
            fleet.play(watch)
            seconds, after, metrics = time.time() - began, usage(operator.pid), scrape(port)
            left = [pod.member.name for pod in watch.pods() if pod.active]
            (folder / "recipes.json").write_text(json.dumps(fleet.recipes))
            jobs = {job["metadata"]["name"]: job for job in bench.api.list("PyTorchJob", NAMESPACE)}
        finally:
            watch.stop()
            operator.stop()
            world.stop()
            pods.stop()
        requests = bench.log.between(began, began + seconds)
        return Measured(
            seconds=seconds,
            trainers=world.trainers,
            recipes=fleet.recipes,
            jobs=jobs,
            reconciles=total(metrics, RECONCILES),
            decisions=by_label(metrics, DECISIONS),
            failed_reconciles=total(metrics, RECONCILES + '{outcome="error"}'),
            writes=sum(each.write for each in requests),
            reads=sum(each.read for each in requests),
            deletions=bench.log.deletions("pods"),
            cores=(after.cpu - before.cpu) / seconds,
            rss=after.rss,
            pods_left=left,
            errors=world.errors,
        )


def _option(name: str, value: object) -> str:
    """An option as the command line has it."""
    flag = f"--{name.replace('_', '-')}"
    if isinstance(value, bool):
        return flag if value else f"--no-{flag.removeprefix('--')}"
    return f"{flag} {value:g}" if isinstance(value, int | float) else f"{flag} {value}"


def measured_with(given: Mapping[str, object]) -> list[str]:
    """The options that repeat a measurement, of all that were given or left at their defaults."""
    parser = command_line()
    changed = {name: value for name, value in given.items() if value != parser.get_default(name)}
    return [_option(name, value) for name, value in changed.items() if name not in ("logs", "write", "csv")]


def command_line() -> argparse.ArgumentParser:
    """The options. The defaults are those with which a fleet of the default's size gets through."""
    parser = argparse.ArgumentParser(prog="bench.fleet", description=__doc__)
    parser.add_argument("--runs", type=int, default=200)
    parser.add_argument("--nodes", type=int, default=2000, help="with 8 GPUs each")
    parser.add_argument("--days", type=float, default=14.0, help="of the fleet")
    parser.add_argument("--minutes", type=float, default=60.0, help="into which the days are compressed")
    parser.add_argument(
        "--limit", type=float, help="minutes after which it ends; default twice --minutes and 5"
    )
    parser.add_argument("--gangs", choices=GANGS, default="kubernetes", help="what keeps runs together")
    switch = argparse.BooleanOptionalAction
    parser.add_argument("--cordon", action=switch, default=True, help="cordon nodes whose device fails")
    parser.add_argument(
        "--priority", action=switch, default=True, help="a PriorityClass for pods of runs that recover"
    )
    parser.add_argument("--mix", choices=sorted(MIXES), default="llama3", help="causes of the faults")
    parser.add_argument("--rate", type=float, default=1.0, help="faults, in multiples of the published rate")
    parser.add_argument("--repair-hours", type=float, default=24.0, help="until a broken node comes back")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--write", action="store_true", help=f"write the tables to docs/{PAGE.name}")
    parser.add_argument("--csv", type=Path, help="file for a row of each run: goodput, times, ledger")
    parser.add_argument("--logs", type=Path, help="directory for logs; default: a temporary one")
    return parser


def main(argv: list[str] | None = None) -> int:
    """The command line. Returns 1 when something is stuck, or a run has failed."""
    parser = command_line()
    given = vars(parser.parse_args(argv))
    words = measured_with(given)
    logs, write, table_of_runs = given.pop("logs"), given.pop("write"), given.pop("csv")
    given["limit"] = given["limit"] or 2 * given["minutes"] + 5
    options = Options(**given)
    try:
        plan_runs(options.runs, options.nodes, options.days, options.seed)
    except ValueError as error:
        parser.error(f"--nodes {options.nodes}: {error}")
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s: %(message)s")
    # More threads than the pool of connections keeps, which costs nothing but a line.
    logging.getLogger("urllib3").setLevel(logging.ERROR)
    with tempfile.TemporaryDirectory() as temporary:
        folder = logs or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        found = measure(options, folder)
    lines = table(found)
    print("\n".join(lines))
    if table_of_runs is not None:
        write_csv(table_of_runs, rows(found.trainers, found.recipes, found.jobs))
    if write:
        command = f'make bench-fleet BENCH="{" ".join(words)} --write"'
        PAGE.write_text(page(PAGE.read_text(), lines, command))
    return 1 if found.stuck or found.failed or found.pods_left else 0


if __name__ == "__main__":
    sys.exit(main())
