"""Runs a launcher whose ranks train in FP32 and write the gradients of their first step; forked by a test.

The file of each rank has its gradients by the name of the parameter, as they are once Megatron has added them
over tensor-parallel ranks.
"""

import os
import runpy
from pathlib import Path
from typing import Any

import torch
from megatron.bridge.training import mixed_precision
from megatron.core.distributed.finalize_model_grads import finalize_model_grads

from tests.trainer.warm_process import LAUNCHER

FOLDER = "TEST_GRADIENTS"
_DATA_PARALLEL = "module."


def _in_float32() -> Any:
    return mixed_precision.MixedPrecisionConfig(
        fp32=True, params_dtype=torch.float32, pipeline_dtype=torch.float32
    )


def _write(model: Any) -> None:
    path = Path(os.environ[FOLDER]) / str(torch.distributed.get_rank())
    if not path.exists():
        named = [pair for chunk in model for pair in chunk.named_parameters()]
        torch.save({name.replace(_DATA_PARALLEL, ""): each.main_grad.clone() for name, each in named}, path)


def install() -> None:
    """Have the ranks that this process forks do so."""
    # What the trainer sets on a CPU.
    mixed_precision.MIXED_PRECISION_RECIPES["bf16_mixed"] = _in_float32
    inside = finalize_model_grads.__globals__
    add = inside["_allreduce_non_tensor_model_parallel_grads"]

    def add_and_write(model: Any, *args: Any, **kwargs: Any) -> None:
        add(model, *args, **kwargs)
        _write(model)

    inside["_allreduce_non_tensor_model_parallel_grads"] = add_and_write


if __name__ == "__main__":
    install()
    runpy.run_module(LAUNCHER, run_name="__main__", alter_sys=True)
