"""Example runs for tests and pictures of the page, planned by the real planner. Nothing was measured."""

import copy
import math
from functools import cache
from pathlib import Path
from typing import Any, Final

from megatron_operator.api.labels import API_VERSION, KIND
from megatron_operator.api.times import seconds, timestamp
from megatron_operator.cli.first_failure import first_failed_pod
from megatron_operator.lifecycle.status_reading import read_status
from megatron_operator.sdk import Recipe
from megatron_operator.sdk.losses import LossPoint
from megatron_operator.ui.failure_log import FailureLog
from megatron_operator.ui.history import RunHistory
from megatron_operator.ui.points import points_of_log
from megatron_operator.ui.runs import RunLogs

Object = dict[str, Any]
NOW: Final = seconds("2026-01-04T12:00:00Z") or 0.0
CREATED: Final = "2026-01-01T09:00:00Z"
PARALLELISM: Final = {"tensorModelParallelSize": 2, "pipelineModelParallelSize": 2}
FAILURE: Final = "".join(
    f"2026-01-03T18:02:59Z {line}"
    for line in Path(__file__).with_name("example_hang.txt").read_text().splitlines(keepends=True)
)
"""The log of a pod whose rank hangs: that of tests/trainer/test_hang.py without its stand-in for CUDA, with
the paths of the image, and the ranks and iteration of the example."""
_Incident = tuple[str, str, str, str, str, int, int | None, int, int, dict[str, float]]
_HANG: Final = (
    "rank 2 is stopped after iteration 41206, all others wait for it (604 s); stacks of all ranks: "
    "/checkpoints/hangs/20260103T180255Z-generation-3"
)
_INCIDENTS: Final[tuple[_Incident, ...]] = (
    ("2026-01-01T22:40:11Z", "rank", "rank 25 was killed by SIGKILL", "worker-2", "gpu-4", 25, 137,
     8_412, 8_400, {"detect": 0.4, "load": 31.0, "redo": 44.5}),
    ("2026-01-02T03:11:09Z", "node", "uncorrectable ECC error on GPU 1", "worker-2", "gpu-12", 25, None,
     12_933, 12_900, {"detect": 2.1, "schedule": 38.0, "start": 61.0, "load": 40.2, "redo": 121.0}),
    ("2026-01-03T18:02:55Z", "hang", _HANG, "master-0", "gpu-1", 2, None,
     41_206, 41_200, {"detect": 604.0, "load": 33.3, "redo": 26.1}),
)  # fmt: skip
_REASONS: Final = {
    "Failed": ("Failed", "True", "PrepareFailed", "the preparation Job failed: no document in /data/raw"),
    "Refused": ("Planned", "False", "Refused", "spec.accelerator.count: 60 is no multiple of 8"),
    "Pending": ("Running", "False", "VolumeClaimMissing", "claim corpus does not exist"),
    "Starting": (
        "Running",
        "False",
        "Unschedulable",
        "0/16 nodes are available: 16 Insufficient nvidia.com/gpu.",
    ),
}
"""Phase -> type, status, reason and message of the condition that explains it."""


class ExampleRuns:
    """Recipes in memory, for the page."""

    def __init__(self, recipes: list[Object]) -> None:
        self.problem: str | None = None
        self.recipes = {(each["metadata"]["namespace"], each["metadata"]["name"]): each for each in recipes}

    def all(self) -> list[Object]:
        """All recipes."""
        return list(self.recipes.values())

    def get(self, namespace: str, name: str) -> Object | None:
        """One recipe."""
        return self.recipes.get((namespace, name))

    def problem_of(self, namespace: str) -> str | None:  # noqa: ARG002
        """As `problem`."""
        return self.problem

    async def history(self, recipe: Object) -> RunHistory:  # noqa: ARG002
        """None: the log has all points."""
        return RunHistory()

    async def pods(self, recipe: Object) -> list[Object]:
        """Pods of every node of the plan, each on a node of its own."""
        nodes = int(((recipe.get("status") or {}).get("plan") or {}).get("nodes") or 0)
        return [_pod(str(recipe["metadata"]["name"]), number) for number in range(nodes)]

    async def logs(self, recipe: Object) -> RunLogs:
        """A course with the incidents of the status, slower while the first node is hot."""
        status = read_status(recipe.get("status"))[0]
        if status.progress is None or status.progress.iteration is None:
            return RunLogs(problem="the run has no pods, whose logs could be read")
        found = points_of_log(course(status.progress.iteration, _seed(recipe)), status.plan)
        memory = None if status.plan is None or status.plan.memory_per_gpu is None else 61 * 2**30
        failed = status.recovery is not None and bool(status.recovery.history)
        return RunLogs(tuple(found), memory, _failure(recipe, await self.pods(recipe)) if failed else None)


def _failure(recipe: Object, pods: list[Object]) -> FailureLog | None:
    found = first_failed_pod(recipe, pods)
    if found is None or found.time is None:
        return None
    return FailureLog(found.pod, found.why, f"Its log around {found.time}.", FAILURE)


def example_runs() -> ExampleRuns:
    """Runs in every phase, in three namespaces."""
    trains, other = training_run("llama3-8b-web"), training_run("llama3-8b-code", "teaching", lr=2e-4)
    recovers = training_run("llama3-8b-long", "research")
    recovers["status"]["phase"] = "Recovering"
    recovers["status"]["progress"]["iteration"] = 20_100
    found = [trains, other, recovers]
    for number, phase in enumerate(("Failed", "Refused", "Pending", "Starting", "Suspended", "Succeeded")):
        namespace = ("research", "teaching", "vision")[number % 3]
        each = _object(f"probe-{phase.lower()}", namespace, {"recipe": "llama3-8b"})
        each["status"] = {"phase": phase, "observedGeneration": 1}
        if phase in _REASONS:
            kind, value, reason, message = _REASONS[phase]
            condition = {"type": kind, "status": value, "reason": reason, "message": message}
            each["status"]["conditions"] = [condition | {"lastTransitionTime": CREATED}]
        found.append(each)
    return ExampleRuns(found)


def training_run(name: str, namespace: str = "research", *, lr: float = 3e-4) -> Object:
    """A run of Llama 3 8B on 64 H100 that trains with learning rate `lr`, after three incidents."""
    spec = {
        "recipe": "llama3-8b",
        "accelerator": {"type": "h100-sxm", "count": 64},
        "data": {"mockData": True},
        "parallelism": PARALLELISM,
        "training": {"lr": lr},
    }
    plan = copy.deepcopy(_plan(lr))
    rate = plan["expected"]["tokensPerSecondPerGpu"] * 64 * 0.94
    iteration, total = 61_300, plan["trainIters"]
    step = plan["expected"]["stepSeconds"] / 0.94
    recovery = _recovery()
    status = {
        "phase": "Training",
        "observedGeneration": 1,
        "plan": plan,
        "progress": {
            "iteration": iteration, "trainIters": total, "lmLoss": 2.217, "learningRate": lr * 0.91,
            "stepSeconds": step, "tokensPerSecond": rate,
            "tflopsPerGpu": plan["expected"]["tflopsPerGpu"] * 0.94,
            "eta": timestamp(NOW + (total - iteration) * step), "time": timestamp(NOW - 4),
        },
        "checkpoint": {"iteration": 61_200, "time": timestamp(NOW - 380), "contract": {"seq-length": "8192"}},
        "recovery": recovery,
        "ledger": _ledger(),
        "conditions": [
            {"type": kind, "status": "True", "reason": kind, "message": "", "lastTransitionTime": CREATED}
            for kind in ("Planned", "Prepared", "Running")
        ],
    }  # fmt: skip
    return _object(name, namespace, spec) | {"status": status}


def _object(name: str, namespace: str, spec: Object) -> Object:
    metadata = {
        "name": name, "namespace": namespace, "uid": f"{namespace}-{name}", "generation": 1,
        "creationTimestamp": CREATED,
    }  # fmt: skip
    return {"apiVersion": API_VERSION, "kind": KIND, "metadata": metadata, "spec": spec}


@cache
def _plan(lr: float) -> Object:
    recipe = Recipe(
        "llama3-8b",
        name="example",
        accelerator="h100-sxm",
        count=64,
        parallelism=PARALLELISM,
        training={"lr": lr},
    )
    return dict(recipe.plan().plan.wire())


def _recovery() -> Object:
    history: list[Object] = []
    for number, (time, kind, cause, pod, node, rank, code, last, resumed, lost) in enumerate(_INCIDENTS, 1):
        spent = sum(lost.values())
        history.append(
            {
                "number": number, "time": time, "kind": kind, "cause": cause, "pod": pod, "node": node,
                "rank": rank, "exitCode": code, "iteration": last, "resumedFrom": resumed,
                "lostIterations": last - resumed, "seconds": lost,
                "recoveredAt": timestamp((seconds(time) or 0.0) + spent),
            }
        )  # fmt: skip
    sums = {
        phase: sum(each["seconds"].get(phase, 0.0) for each in history)
        for phase in ("detect", "schedule", "start", "load", "redo")
    }
    return {
        "restarts": 1, "restartsByKind": {"rank": 1, "node": 1, "hang": 1}, "rankRestarts": 2,
        "lastIncident": history[-1], "history": history, "lostSeconds": sums, "goodput": 0.974,
        "lostIterations": sum(each["lostIterations"] for each in history), "nodesAvoided": ["gpu-12"],
    }  # fmt: skip


def _ledger() -> Object:
    return {
        "settledAt": "2026-01-01T10:05:00Z",
        "seconds": {"queue": 2100.0, "schedule": 240.0, "start": 960.0, "load": 600.0},
        "acceleratorSeconds": {"start": 61440.0, "load": 38400.0},
        "losses": [{"category": "queue", "cause": "Queued", "seconds": 2100.0}],
        "marks": [{"time": "2026-01-01T10:05:00Z", "category": "train", "accelerators": 64}],
        "saveSeconds": 2400.0,
        "evaluateSeconds": 1300.0,
    }


def course(iterations: int, seed: int) -> list[LossPoint]:
    """A loss that falls as a power law, a warm-up and cosine decay of the learning rate, steps of 6 s."""
    found = []
    for iteration in range(100, iterations + 1, 100):
        noise = math.sin(iteration * 0.0137 + seed) * 0.02 + math.sin(iteration * 0.71 * (seed + 1)) * 0.03
        loss = 1.75 + 14.0 / (1 + iteration / 60) ** 0.5 + 0.5 * noise * (1 + 2000 / iteration)
        warm = min(1.0, iteration / 2000)
        rate = (3e-4 if seed == 0 else 2e-4) * warm * (0.55 + 0.45 * math.cos(iteration / 150_000 * math.pi))
        step = _plan(3e-4)["expected"]["stepSeconds"] * (1.06 + 0.02 * math.sin(iteration * 0.31))
        if seed == 0 and 25_000 < iteration < 29_000:
            step *= 1.22
        found.append(LossPoint(iteration, CREATED, loss, rate, 0.4, step))
    return found


def _seed(recipe: Object) -> int:
    return 0 if recipe["metadata"]["name"].endswith("web") else 1


def _pod(name: str, number: int) -> Object:
    role, index = ("master", 0) if number == 0 else ("worker", number - 1)
    labels = {"training.kubeflow.org/replica-type": role, "training.kubeflow.org/replica-index": str(index)}
    return {
        "metadata": {"name": f"{name}-{role}-{index}", "labels": labels},
        "spec": {"nodeName": f"gpu-{number + 1}"},
    }
