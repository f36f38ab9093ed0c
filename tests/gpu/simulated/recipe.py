"""A recipe whose ranks train on simulated GPUs: TP 2 in one pod, Megatron's own layers."""

from typing import Any

PROFILE = "simulated-cuda"
"""Of values.yaml."""


def adapt(spec: dict[str, Any]) -> None:
    """Have a recipe's spec train on two simulated GPUs of one node, without Transformer Engine and Apex."""
    spec["accelerator"] = {"type": PROFILE, "count": 2, "perNode": 2}
    spec["parallelism"] = {
        "tensorModelParallelSize": 2,
        "sequenceParallel": False,
        "overlapGradReduce": False,
        "overlapParamGather": False,
    }
    spec["model"] = {"numLayers": 2, "noRopeFusion": True}
    spec["training"] = {
        **spec["training"],
        "globalBatchSize": 4,
        "microBatchSize": 1,
        "seqLength": 64,
        "evalIters": 0,
        "transformerImpl": "local",
        "bf16": True,
    }
    spec["data"] = {"mockData": True}
    spec["megatronArgs"] = {
        "no-persist-layer-norm": True,
        "no-masked-softmax-fusion": True,
        "rerun-mode": "disabled",
    }
