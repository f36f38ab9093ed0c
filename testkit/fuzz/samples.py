"""Right inputs that cases are made of, and a small cluster that they are followed in."""

import copy
from pathlib import Path
from typing import Any, Final

import yaml
from megatron_contract.environment import CONTAINER_NAME
from megatron_operator.api.labels import API_VERSION, KIND
from megatron_operator.manifests import pytorchjob

START: Final = "2027-01-15T07:00:00Z"


def recipe_seeds(root: Path) -> list[Any]:
    """All examples and all recipes that must be refused."""
    files = [*sorted((root / "examples").glob("*.yaml")), *sorted((root / "tests/refusals").glob("*.yaml"))]
    return [document for file in files for document in yaml.safe_load_all(file.read_text())]


def recipe_of(entry: str, accelerator: str | None = "h100-sxm", count: int = 8) -> dict[str, Any]:
    """A recipe for a catalog entry."""
    kind = {} if accelerator is None else {"type": accelerator}
    spec = {"recipe": entry, "accelerator": kind | {"count": count}, "data": {"mockData": True}}
    return {"apiVersion": API_VERSION, "kind": KIND, "metadata": {"name": "run"}, "spec": spec}


RECIPES: Final = (recipe_of("llama3-8b", "h100"), recipe_of("tiny-gpt", None, 2))

NODE_LABELS: Final[list[dict[str, str]]] = [
    {"nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3", "nvidia.com/gpu.count": "8"},
    {"nvidia.com/gpu.product": "", "nvidia.com/gpu.count": "many"},
]


def platform_seeds() -> list[Any]:
    """A full platform and an empty one."""
    profile = {
        "hardware": "h100-sxm",
        "resourceName": "nvidia.com/gpu",
        "perNode": 8,
        "nodeLabels": {"zone": "a"},
        "tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists"}],
        "topology": ["example.com/rack"],
        "extraResources": {"rdma/hca": "1"},
        "env": {"NCCL_DEBUG": "INFO"},
        "resources": {"cpu": "64", "memory": "512Gi"},
        "shmSize": "64Gi",
    }
    full = {
        "accelerators": {"h100": profile, "cpu": {"platform": "cpu", "perNode": 2, "resourceName": None}},
        "defaultAccelerator": "cpu",
        "image": "trainer:1",
        "imagePullSecrets": ["registry"],
        "checkpoint": {"size": "1Ti"},
        "queue": "research",
        "namespaces": {"*": {"maxAccelerators": 64}, "default": {"acceleratorTypes": ["h100", "cpu"]}},
        "badNodes": {
            "cordon": True,
            "maxShare": 0.2,
            "maxPerHour": 2,
            "conditions": ["A=False"],
            "taints": ["a/b"],
        },
    }
    return [full, {}, {"accelerators": {"h100": profile}, "image": "trainer:1"}]


_ENTRY: Final = {
    "description": "d",
    "source": "s",
    "model": {"numLayers": 2, "hiddenSize": 64, "numAttentionHeads": 4, "vocabSize": 128},
    "training": {"seqLength": 64, "globalBatchSize": 8, "trainIters": 10, "lr": 1.0e-4},
}
CATALOGS: Final[list[Any]] = [
    {"entries": {"mine": _ENTRY}},
    {"family": "f", "entries": {"mine": {"extends": "llama3-8b", "description": "d", "source": "s"}}},
    {"templates": {"t": _ENTRY}, "entries": {"mine": {"extends": "t", "description": "d", "source": "s"}}},
    {"entries": {"mine": _ENTRY}, "functions": {"mine": "name tp\nmine_config 1"}},
]

PROGRESS: Final[dict[str, Any]] = {
    "schema": 1,
    "phase": "training",
    "nodeRank": 0,
    "generation": 2,
    "iteration": 50,
    "trainIters": 200,
    "lmLoss": 2.5,
    "stepSeconds": 1.5,
    "checkpointIteration": 40,
    "checkpointTime": START,
    "resumedFrom": 40,
    "incidents": [{"generation": 2, "detectedAt": 1.79e9, "kind": "rank", "cause": "c", "rank": 1}],
    "warnings": [{"reason": "Warning", "message": "m 1"}],
    "usefulSeconds": 10.0,
    "firstStartedAt": 1.79e9,
    "saveSeconds": 12.5,
    "evaluateSeconds": 3.0,
}


def _typed(value: object) -> dict[str, Any]:
    """The schema of a sample."""
    match value:
        case bool():
            return {"type": "boolean"}
        case int():
            return {"type": "integer"}
        case float():
            return {"type": "number"}
        case str():
            return {"type": "string"}
        case list():
            return {"type": "array", "items": _typed(value[0])}
        case dict():
            return {"type": "object", "properties": {key: _typed(item) for key, item in value.items()}}
    return {}


PROGRESS_SCHEMA: Final = _typed(PROGRESS)
TERMINATION: Final[dict[str, Any]] = {
    "reason": "Completed",
    "message": "all done",
    "exitCode": 0,
    "nodeRank": 1,
    "rank": 3,
    "iteration": 200,
    "checkpointIteration": 200,
}
TERMINATION_SCHEMA: Final = _typed(TERMINATION)

JOURNAL: Final[dict[str, Any]] = {
    "schema": 1,
    "incarnation": "i",
    "runId": "r",
    "host": "h",
    "sharded_backend": "torch_dist",
    "firstStartedAt": 1.79e9,
    "generation": 3,
    "incidents": PROGRESS["incidents"],
    "pending": {"kind": "rank", "cause": "c", "node_rank": 0, "rank": 1, "failed_iteration": 12},
    "policy": {
        "episode": {"kind": "rank", "rank": 1, "first": 9, "last": 12, "tries": 1, "starts": [10]},
        "skip": [11],
        "unreadable": {"10": 1},
    },
    "records": [{"iteration": 9, "generation": 1, "stepSeconds": 1.0, "time": 1.79e9}],
}
JOURNAL_SCHEMA: Final = _typed(JOURNAL)

STATUSES: Final[list[Any]] = [
    {},
    {
        "phase": "Training",
        "observedGeneration": 1,
        "progress": {"iteration": 50, "generation": 1, "time": START, "display": "50/200"},
        "checkpoint": {"iteration": 40, "time": START},
        "recovery": {"restarts": 1, "podsAsOf": START, "gang": "0", "lastCause": "c"},
        "conditions": [
            {
                "type": "Running",
                "status": "True",
                "reason": "Training",
                "message": "",
                "lastTransitionTime": START,
                "observedGeneration": 1,
            }
        ],
    },
]

JOB: Final[dict[str, Any]] = {
    "metadata": {"name": "run", "namespace": "a", "uid": "j", "labels": {}},
    "spec": {
        "nprocPerNode": "8",
        "runPolicy": {},
        "pytorchReplicaSpecs": {"Master": {"replicas": 1}, "Worker": {"replicas": 1}},
    },
}


def body(status: dict[str, Any]) -> dict[str, Any]:
    """A MegatronRecipe with this status."""
    metadata = {"name": "run", "namespace": "a", "uid": "u", "generation": 1, "resourceVersion": "1"}
    spec = copy.deepcopy(RECIPES[0]["spec"])
    return {"apiVersion": API_VERSION, "kind": KIND, "metadata": metadata, "spec": spec, "status": status}


def _pod(name: str, kind: str, index: int, state: dict[str, Any], phase: str) -> dict[str, Any]:
    labels = {pytorchjob.LABEL_REPLICA_TYPE: kind, pytorchjob.LABEL_REPLICA_INDEX: str(index)}
    bound = {"type": "PodScheduled", "status": "True", "lastTransitionTime": START}
    return {
        "metadata": {"name": f"run-{name}", "uid": name, "creationTimestamp": START, "labels": labels},
        "spec": {"nodeName": f"node-{name}"},
        "status": {
            "phase": phase,
            "startTime": START,
            "conditions": [bound],
            "containerStatuses": [{"name": CONTAINER_NAME, "state": state}],
        },
    }


def running_pod() -> dict[str, Any]:
    """The Master, running."""
    return _pod("master-0", "master", 0, {"running": {"startedAt": START}}, "Running")


def running_pods() -> tuple[dict[str, Any], ...]:
    """Both pods, running."""
    return running_pod(), _pod("worker-0", "worker", 0, {"running": {"startedAt": START}}, "Running")


def ended_pod(code: int, message: str) -> dict[str, Any]:
    """A Worker that ended with this exit code and termination message."""
    ended = {"terminated": {"exitCode": code, "message": message, "reason": "Error", "finishedAt": START}}
    return _pod("worker-0", "worker", 0, ended, "Succeeded" if code == 0 else "Failed")
