"""The measurements of `make bench-scale`, each on the control plane that it is given."""

import contextlib
import json
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from localcluster.ports import free_port
from megatron_operator.controller.progress_poller import RUNS_PER_SECOND

from bench.operator_metrics import RECONCILES, scrape, total
from bench.scale_cluster import (
    NAMESPACE,
    TRAINING_OPERATOR,
    Bench,
    Request,
    counts,
    recipe,
    volume,
    wait_for,
)
from bench.scale_copies import copy_run
from bench.scale_manifests import job_manifest, start_manifests
from bench.scale_processes import FakePods, Load, cores, until_quiet, usage
from testkit.api_server import Object
from testkit.fake_trainers import terminate_container
from testkit.operator_process import OPERATOR_NAMESPACE, OperatorProcess

LEASE: Final = "megatron-operator-leader"
"""The only name that the chart's role gives rights on."""
LIMIT: Final = 3600.0
"""Seconds after which a measurement is given up."""
RESTART_LIMIT: Final = 120.0
FAULTS: Final = 3
WRITE_INTERVAL: Final = 30.0
"""Seconds between two writes of a run's progress, at least."""
IDLE_SECONDS: Final = 5.0
KILLED: Final = 138
"""Exit code of a rank that the training-operator replaces."""
STATUS: Final = "megatronrecipes/status"


@dataclass(slots=True)
class Started:
    """Jobs, or pods, that came into being after their recipe was created."""

    latencies: list[float]
    """Seconds from sending a recipe until its job existed, sorted."""
    last: float
    """Seconds from the first request until the last one existed."""
    load: Load
    """Of the machine until then."""
    cpu: float = 0.0
    """Seconds of processor time of the operator until then."""
    requests: Counter[str] = field(default_factory=Counter)

    def percentile(self, share: float) -> float:
        """The latency that this share of the recipes did not exceed."""
        return self.latencies[min(len(self.latencies) - 1, int(share * len(self.latencies)))]


@dataclass(slots=True)
class Steady:
    """All runs train."""

    seconds: float
    requests: Counter[str]
    reads: int
    writes: int
    reconciles: float
    cores: float
    rss: int
    load: Load


@dataclass(slots=True)
class Restart:
    """A new process finds all runs."""

    quiet: float | None
    """Seconds; None when not within RESTART_LIMIT."""
    reads: int
    writes: int
    rss: int


@dataclass(slots=True)
class Takeover:
    """The leader is killed while all runs train, and a recipe is created."""

    job: float
    """Seconds until the recipe has its job."""
    writes: int
    """Writes to other recipes until then."""


@dataclass(slots=True)
class Measured:
    """What one run of the bench has found of this operator."""

    started: Started
    training: float
    """Seconds from the first answer of the pods until all statuses have the phase Training."""
    idle_rss: int
    steady: Steady
    faults: list[float]
    restart: Restart
    takeover: Takeover


def training_operator_alone(bench: Bench, recipes: int) -> Started:
    """Pods of bare PyTorchJobs: seconds until both pods of each exist."""
    manifest = job_manifest()
    jobs = (manifest | {"metadata": _metadata(n)} for n in range(recipes))
    before, since = Load.now(bench.server_pid), time.time()
    sent = bench.create_all(jobs)
    wait_for("all pods", lambda: len(_pods(bench)) >= 2 * recipes, LIMIT)
    load = Load.now(bench.server_pid).since(before)
    created = _pods(bench)
    last = {name: max(created[f"{name}-{kind}-0"] for kind in ("master", "worker")) for name in sent}
    requests = bench.log.between(since, max(last.values()), TRAINING_OPERATOR)
    return _started(sent, last, requests, load)


def _pods(bench: Bench) -> Mapping[str, float]:
    return bench.log.created("pods", TRAINING_OPERATOR)


def _metadata(number: int) -> Object:
    return {"name": f"run-{number}", "namespace": NAMESPACE}


def bare_kopf(bench: Bench, recipes: int) -> Started:
    """Jobs of the bare kopf operator."""
    return _started_by("bench.scale_bare", job_manifest(), bench, recipes)


def plain_client(bench: Bench, recipes: int) -> Started:
    """Jobs of a client that writes what this operator writes, and does nothing else."""
    bench.create_all(volume(f"run-{n}") for n in range(recipes))
    return _started_by("bench.scale_client", start_manifests(), bench, recipes)


def _started_by(module: str, manifests: Object | list[Object], bench: Bench, recipes: int) -> Started:
    """Jobs of a module that is given these manifests in a file."""
    bench.install()
    file = bench.folder / f"{module}.json"
    file.write_text(json.dumps(manifests))
    with (bench.folder / f"{module}.log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", module, file],
            env=os.environ | {"KUBECONFIG": str(bench.kubeconfig)},
            stdout=log,
            stderr=subprocess.STDOUT,
        )
    try:
        wait_for("the watch", lambda: _watches(bench), LIMIT)
        return _start_all(bench, recipes, process.pid)
    finally:
        process.terminate()
        process.wait(30)


def _watches(bench: Bench) -> bool:
    """Whether the operator has listed the recipes; its watch is logged when it ends."""
    return any(each.resource == "megatronrecipes" and each.verb == "list" for each in bench.log.read())


def _start_all(bench: Bench, recipes: int, pid: int) -> Started:
    time.sleep(IDLE_SECONDS)
    before, since, load = usage(pid).cpu, time.time(), Load.now(bench.server_pid)
    sent = bench.create_all(recipe(f"run-{n}") for n in range(recipes))
    wait_for("all jobs", lambda: len(bench.log.created("pytorchjobs")) >= recipes, LIMIT)
    cpu, load = usage(pid).cpu - before, Load.now(bench.server_pid).since(load)
    created = bench.log.created("pytorchjobs")
    return _started(sent, created, bench.log.between(since, max(created.values())), load, cpu)


def _started(
    sent: Mapping[str, float],
    created: Mapping[str, float],
    requests: list[Request],
    load: Load,
    cpu: float = 0.0,
) -> Started:
    latencies = sorted(created[name] - moment for name, moment in sent.items())
    last = max(created[name] for name in sent) - min(sent.values())
    return Started(latencies, last, load, cpu, counts(requests))


def this_operator(bench: Bench, recipes: int, seconds: float) -> Measured:
    """Everything about this operator, with so many recipes; `seconds` of the steady state are measured."""
    port = free_port()
    with _operating(bench, recipes, f"--metrics-port={port}") as (operator, pods):
        idle = usage(operator.pid).rss
        started = _start_all(bench, recipes, operator.pid)
        training = wait_for("all runs to train", lambda: _training(bench) == recipes, LIMIT, 5.0)
        steady = _steady(bench, operator.pid, port, recipes, seconds)
        faults = [_fault(bench, pods, f"run-{number}") for number in range(min(FAULTS, recipes))]
        wait_for("all runs to train again", lambda: _training(bench) == recipes, LIMIT, 5.0)
        restart = _restart(bench, operator, pods, recipes)
        operator.stop()
        takeover = _takeover(bench, operator, recipes)
    return Measured(started, training, idle, steady, faults, restart, takeover)


def start_alone(bench: Bench, recipes: int) -> Started:
    """Jobs of this operator."""
    with _operating(bench, recipes) as (operator, _):
        return _start_all(bench, recipes, operator.pid)


def restart_alone(bench: Bench, recipes: int) -> Restart:
    """The restart of this operator with copies of one run, which stand still."""
    with _operating(bench, 1) as (operator, pods):
        pods.freeze()
        _start_all(bench, 1, operator.pid)
        wait_for("the run to train", lambda: _training(bench) == 1, LIMIT)
        operator.stop()
        bench.cluster.component_stop("training-operator")
        copy_run(bench, "run-0", (f"copy-{number}" for number in range(recipes - 1)))
        operator.start()
        # It waits long enough for the copies to be reconciled.
        return _restart(bench, operator, pods, recipes)


@contextlib.contextmanager
def _operating(bench: Bench, recipes: int, *more: str) -> Iterator[tuple[OperatorProcess, FakePods]]:
    """The operator, which watches, and volumes for so many recipes."""
    bench.install()
    bench.create_all(volume(f"run-{n}") for n in range(recipes))
    pods = FakePods()
    options = [f"--namespace={OPERATOR_NAMESPACE}", "--node-discovery", "--progress-interval=5", *more]
    operator = OperatorProcess(bench.kubeconfig, bench.folder / "operator.log", pods.url, options)
    try:
        operator.start()
        wait_for("the watch", lambda: _watches(bench), LIMIT)
        time.sleep(IDLE_SECONDS)
        yield operator, pods
    finally:
        operator.stop()
        pods.stop()


def _wait_until_written(recipes: int) -> None:
    """Until the progress of runs that stand still is written: at the second poll after the last write."""
    time.sleep(WRITE_INTERVAL + 2 * recipes / RUNS_PER_SECOND)


def _training(bench: Bench) -> int:
    return bench.api.column("MegatronRecipe", NAMESPACE, "Phase").count("Training")


def _steady(bench: Bench, pid: int, port: int, recipes: int, seconds: float) -> Steady:
    _wait_until_written(recipes)
    since, before = time.time(), Load.now(bench.server_pid)
    reconciled = _reconciles(port)
    used = cores(pid, seconds)
    reconciled = _reconciles(port) - reconciled
    until, load = time.time(), Load.now(bench.server_pid).since(before)
    requests = bench.log.between(since, until)
    reads, writes = sum(each.read for each in requests), sum(each.write for each in requests)
    rss = usage(pid).rss
    return Steady(until - since, counts(requests), reads, writes, reconciled, used, rss, load)


def _reconciles(port: int) -> float:
    """Reconciles since the start. Raises RuntimeError where the operator does not answer."""
    if not (metrics := scrape(port)):
        raise RuntimeError("the operator does not serve its metrics")
    return total(metrics, RECONCILES)


def _fault(bench: Bench, pods: FakePods, name: str) -> float:
    """Seconds from the end of a pod until the status of its run reports it; the run then recovers."""
    names = (f"{name}-master-0", f"{name}-worker-0")
    pods.changes |= {each: {"phase": "rendezvous"} for each in names}
    began = time.monotonic()
    terminate_container(bench.api, NAMESPACE, names[-1], KILLED, '{"message": "rank 3 was killed"}')
    wait_for(f"the fault of {name}", lambda: _recovering(bench, name), LIMIT, 0.05)
    seconds = time.monotonic() - began
    pods.changes |= {each: {"generation": 2} for each in names}
    return seconds


def _recovering(bench: Bench, name: str) -> bool:
    status: Any = bench.api.get("MegatronRecipe", NAMESPACE, name).get("status", {})
    found = {each["type"]: each["status"] for each in status.get("conditions", [])}
    return found.get("Recovering") == "True" or (status.get("recovery") or {}).get("restarts", 0) > 0


def _restart(bench: Bench, operator: OperatorProcess, pods: FakePods, recipes: int) -> Restart:
    """Stop and start the operator while all runs stand still, so that each write is one too many."""
    pods.freeze()
    _wait_until_written(recipes)
    idle = cores(operator.pid, IDLE_SECONDS)
    operator.stop()
    since = time.time()
    operator.start()
    quiet = until_quiet(operator.pid, idle, RESTART_LIMIT)
    requests = bench.log.between(since, time.time())
    reads, writes = sum(each.read for each in requests), sum(each.write for each in requests)
    rss = usage(operator.pid).rss
    pods.move()
    return Restart(quiet, reads, writes, rss)


def _takeover(bench: Bench, operator: OperatorProcess, recipes: int) -> Takeover:
    """Kill the leader of two, and create a recipe."""
    # Both cannot listen on the port of the first one's metrics.
    leader = operator.with_options(
        "--leader-elect", f"--leader-elect-resource-name={LEASE}", "--metrics-port=0"
    )
    standby = leader.with_options()
    try:
        leader.start()
        wait_for("a leader", lambda: "is the leader" in leader.log(), LIMIT)
        standby.start()
        wait_for("a standby", lambda: "stands by" in standby.log(), LIMIT)
        _wait_until_written(recipes)
        since = time.time()
        leader.kill()
        bench.api.create(volume("last"))
        bench.api.create(recipe("last"))
        wait_for("the job", lambda: "last" in bench.log.created("pytorchjobs"), LIMIT, 0.1)
        created = bench.log.created("pytorchjobs")["last"]
    finally:
        leader.stop()
        standby.stop()
    others = [each for each in bench.log.between(since, created) if each.resource == STATUS]
    return Takeover(created - since, sum(each.name != "last" for each in others))
