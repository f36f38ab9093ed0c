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
    """All examples, recipes with golden manifests, and recipes that must be refused; then fine-tuning."""
    folders = ("examples", "tests/golden/recipes", "tests/refusals")
    files = [file for folder in folders for file in sorted((root / folder).glob("*.yaml"))]
    found = [document for file in files for document in yaml.safe_load_all(file.read_text())]
    # A tenth of the seeds and mostly accepted, so that changes reach adapters, chats and conversions.
    return [*found, *FINE_TUNING * 4]


def recipe_of(entry: str, accelerator: str | None = "h100-sxm", count: int = 8) -> dict[str, Any]:
    """A recipe for a catalog entry."""
    kind = {} if accelerator is None else {"type": accelerator}
    spec = {"recipe": entry, "accelerator": kind | {"count": count}, "data": {"mockData": True}}
    return {"apiVersion": API_VERSION, "kind": KIND, "metadata": {"name": "run"}, "spec": spec}


def _fine_tuning(entry: str, init: dict[str, Any], data: dict[str, Any], **others: Any) -> dict[str, Any]:
    """A fine-tuning recipe of Megatron-Bridge from weights of a volume."""
    recipe = recipe_of(entry)
    recipe["spec"] |= {"init": init, "data": {"volume": {"claimName": "models"}} | data} | others
    recipe["spec"]["training"] = {"trainIters": 200, "evalInterval": 100, "evalIters": 2}
    return recipe


_CHATS: Final = {
    "sources": [
        {"path": "/data/raw/a/*.jsonl", "format": "chat", "documents": 1000},
        {"path": "/data/raw/b", "format": "chat"},
    ],
    "split": "98,2,0",
    "maxEpochs": 3,
}
_IMPORT: Final = {"from": {"huggingFace": {"path": "/data/llama-3.1-8b"}}}
_CONVERTED: Final = {"from": {"megatron": {"path": "/data/megatron"}}, "modelFolder": "/data/llama-3.1-8b"}
_EXPORT: Final = {"huggingFace": {"path": "/data/tuned"}, "when": ["end"]}
_ADAPTERS: Final = {"type": "lora", "dim": 16, "alpha": 32, "dropout": 0.1, "targetModules": ["linear_qkv"]}
_FOLDER: Final = {"datasetRoot": "answers", "examples": "chat"}
FINE_TUNING: Final = (
    _fine_tuning("llama3.1-8b-lora", _IMPORT, _CHATS, peft=_ADAPTERS, export=_EXPORT | {"merge": True}),
    _fine_tuning(
        "llama3.1-8b-sft",
        _IMPORT,
        _CHATS,
        export=_EXPORT | {"when": ["best", "end"]},
        checkpoint={"saveInterval": 50, "keep": 2, "keepBest": True},
    ),
    _fine_tuning("llama3.1-8b-sft", _CONVERTED, _FOLDER, export=_EXPORT),
)
"""Chats and prepared folders, weights of both forms, adapters and exports; all are accepted."""

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
        "nodeLostAfter": "1m",
        "bindCpus": True,
        "computeDomain": True,
        "pricePerGpuHour": 2.5,
        "podTemplate": {"annotations": {"a/b": "c"}},
    }
    full = {
        "accelerators": {"h100": profile, "cpu": {"platform": "cpu", "perNode": 2, "resourceName": None}},
        "defaultAccelerator": "cpu",
        "image": "trainer:1",
        "bridgeImage": "trainer-bridge:1",
        "imagePullSecrets": ["registry"],
        "serviceAccounts": ["trainer"],
        "checkpoint": {"size": "1Ti"},
        "dataStorageClassName": "shared",
        "topologyAwareQueues": True,
        "networkPolicies": {"enabled": True, "operatorNamespace": "megatron", "metricsFrom": ["monitoring"]},
        "namespaces": {"*": {"maxAccelerators": 64}, "default": {"acceleratorTypes": ["h100", "cpu"]}},
        "badNodes": {
            "cordon": True,
            "uncordonByCheck": True,
            "moveRuns": True,
            "maxShare": 0.2,
            "maxPerHour": 2,
            "conditions": ["A=False"],
            "taints": ["a/b"],
        },
    }
    small = {"accelerators": {"h100": profile}, "image": "trainer:1"}
    gang = {"gangScheduling": {"scheduler": "volcano", "queue": "gpus"}}
    return [full, {}, small, small | gang]


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
    "validationIteration": 40,
    "validationLoss": 2.5,
    "bestValidationIteration": 40,
    "bestValidationLoss": 2.5,
    "evaluations": [{"iteration": 40, "loss": 2.5}],
    "bestCheckpointIteration": 40,
    "bestCheckpointLoss": 2.5,
    "preparation": {
        "documents": 10,
        "bytesDone": 5,
        "bytesTotal": 10,
        "bytesPerSecond": 1.5,
        "secondsLeft": 3.5,
        "step": "check",
    },
}


def typed(value: object) -> dict[str, Any]:
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
            return {"type": "array", "items": typed(value[0])}
        case dict():
            return {"type": "object", "properties": {key: typed(item) for key, item in value.items()}}
    return {}


PROGRESS_SCHEMA: Final = typed(PROGRESS)
TERMINATION: Final[dict[str, Any]] = {
    "reason": "Completed",
    "message": "all done",
    "exitCode": 0,
    "nodeRank": 1,
    "rank": 3,
    "iteration": 200,
    "checkpointIteration": 200,
}
TERMINATION_SCHEMA: Final = typed(TERMINATION)
CONVERSION: Final[dict[str, Any]] = TERMINATION | {"tensors": 291, "bytes": 16_060_522_496}
CONVERSION_SCHEMA: Final = typed(CONVERSION)

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
    "evaluations": [{"iteration": 9, "lmLoss": 2.5}],
}
JOURNAL_SCHEMA: Final = typed(JOURNAL)

_INCIDENT: Final[dict[str, Any]] = {
    "number": 1,
    "time": START,
    "kind": "rank",
    "cause": "c",
    "node": "n",
    "rank": 1,
    "iteration": 50,
    "seconds": {"detect": 1.0, "redo": 2.0},
}
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
    {
        "phase": "Exporting",
        "observedGeneration": 1,
        "progress": {"iteration": 200, "trainIters": 200, "lmLoss": 1.5, "tokensPerSecond": 1e5},
        "validation": {
            "iteration": 200,
            "loss": 1.5,
            "bestIteration": 200,
            "bestLoss": 1.5,
            "evaluations": [{"iteration": 200, "loss": 1.5}],
        },
        "preparation": {"documents": 10, "bytesDone": 5, "bytesTotal": 10, "bytesPerSecond": 1.0},
        "imported": {"source": "/data/a", "path": "/data/a-megatron", "tensors": 1, "bytes": 2, "audit": "a"},
        "exported": {"source": "/checkpoints/run", "path": "/data/tuned/end", "audit": "b", "iteration": 200},
        "exportedBest": {
            **{"source": "/checkpoints/run", "path": "/data/tuned/best", "audit": "c"},
            **{"iteration": 150, "validationLoss": 1.25},
        },
        "ledger": {
            "settledAt": START,
            "seconds": {"train": 10.0, "redo": 1.0},
            "acceleratorSeconds": {"train": 80.0},
            "losses": [{"category": "redo", "cause": "c", "node": "n", "seconds": 1.0}],
            "marks": [{"time": START, "category": "train", "accelerators": 8}],
        },
        "recovery": {
            "restarts": 1,
            "lastIncident": _INCIDENT,
            "history": [_INCIDENT],
            "goodput": 0.5,
            "nodesAvoided": ["n"],
            "nodeEvidence": {"n": {"evidence": "Xid", "cause": "c", "time": START}},
            "elastic": {"count": 4, "since": START, "reason": "r"},
        },
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


FAILED_JOB: Final[dict[str, Any]] = {
    "metadata": {"name": "run-import", "namespace": "a", "uid": "j"},
    "status": {"conditions": [{"type": "Failed", "status": "True", "message": "backoff"}]},
}


def body(status: dict[str, Any]) -> dict[str, Any]:
    """A MegatronRecipe with this status."""
    metadata = {"name": "run", "namespace": "a", "uid": "u", "generation": 1, "resourceVersion": "1"}
    spec = copy.deepcopy(RECIPES[0]["spec"])
    return {"apiVersion": API_VERSION, "kind": KIND, "metadata": metadata, "spec": spec, "status": status}


def _pod(
    name: str, kind: str, index: int, state: dict[str, Any], phase: str, container: str = CONTAINER_NAME
) -> dict[str, Any]:
    labels = {pytorchjob.LABEL_REPLICA_TYPE: kind, pytorchjob.LABEL_REPLICA_INDEX: str(index)}
    bound = {"type": "PodScheduled", "status": "True", "lastTransitionTime": START}
    return {
        "metadata": {"name": f"run-{name}", "uid": name, "creationTimestamp": START, "labels": labels},
        "spec": {"nodeName": f"node-{name}"},
        "status": {
            "phase": phase,
            "startTime": START,
            "conditions": [bound],
            "containerStatuses": [{"name": container, "state": state}],
        },
    }


def running_pod() -> dict[str, Any]:
    """The Master, running."""
    return _pod("master-0", "master", 0, {"running": {"startedAt": START}}, "Running")


def running_pods() -> tuple[dict[str, Any], ...]:
    """Both pods, running."""
    return running_pod(), _pod("worker-0", "worker", 0, {"running": {"startedAt": START}}, "Running")


def ended_pod(code: int, message: str, container: str = CONTAINER_NAME) -> dict[str, Any]:
    """A Worker, or a Job's pod, whose container ended with this exit code and termination message."""
    ended = {"terminated": {"exitCode": code, "message": message, "reason": "Error", "finishedAt": START}}
    return _pod("worker-0", "worker", 0, ended, "Succeeded" if code == 0 else "Failed", container)
