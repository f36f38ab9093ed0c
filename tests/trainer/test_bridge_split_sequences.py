"""Models of Megatron-Bridge whose tensor-parallel ranks split the sequence too, on CPUs.

Small random models are imported, and fine-tuned at TP 2 for a step: its gradients are those of one rank.
"""

import importlib.util
import os
from pathlib import Path
from typing import Any

import pytest
import torch
from megatron_operator import catalog
from megatron_operator.catalog.bridge_support import SPLIT_ON_CPUS, architecture

from testkit.fine_tuned import CASES, Case
from testkit.weights.families import by_name, write_model
from testkit.weights.warm import WarmConverter
from tests.trainer.bridge_run import LENGTH, RecipeGang, write_samples, write_tokenizer
from tests.trainer.warm_process import WarmProcess

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("modelopt") is None or "MEGATRON_BRIDGE_TRAINING" not in os.environ,
    reason="takes minutes: run make bridge-training",
)


# What Megatron-Bridge imports stays out of this process.
GRADIENTS = "tests.trainer.rank_gradients"
FOLDER = "TEST_GRADIENTS"
"""Variable with the folder that ranks write to; `rank_gradients.FOLDER`."""


def _architecture(case: Case) -> str:
    (function, *_) = (
        layout.function for layout in catalog.load().get(case.recipe).layouts if layout.function
    )
    return architecture(function)


FAMILIES = {case.family: case for case in CASES if case.recipe.endswith("-sft")}
SPLIT = [case for case in FAMILIES.values() if _architecture(case) in SPLIT_ON_CPUS]


class GradientGang(RecipeGang):
    """A run whose ranks write their gradients."""

    def _launch(self, flags: list[str], environment: dict[str, str], log: Path) -> Any:
        assert self._warm is not None
        return self._warm.start(flags, environment, log, GRADIENTS)


def _gradients(
    case: Case, data: Path, folder: Path, warm: WarmProcess, tensor: int
) -> list[dict[str, torch.Tensor]]:
    """The gradients of each of `tensor` ranks, by the name of the parameter."""
    one = {f"{kind}ParallelSize": 1 for kind in ("tensorModel", "pipelineModel", "expertModel")}
    spec = {
        "recipe": case.recipe,
        "accelerator": {"type": "cpu", "count": 1, "perNode": 1},
        "init": {"modelFolder": "/data/model", "from": {"megatron": {"path": "/data/weights"}}},
        "data": {"volume": {"claimName": "corpus"}, "datasetRoot": "samples"},
        "parallelism": one,
        "training": {
            **{"seqLength": LENGTH, "globalBatchSize": 4, "microBatchSize": 1, "trainIters": 1},
            **{"lr": 0.01, "lrWarmupIters": 0, "lrDecayIters": 100, "evalIters": 0},
        },
        "checkpoint": {"saveInterval": 1, "volume": {"size": "100Ti"}},
    }
    split = {f"model.{kind}_parallel_size": tensor for kind in ("tensor_model", "expert_tensor")}
    overrides = {**case.overrides, **split, "model.sequence_parallel": tensor > 1, "checkpoint.save": None}
    run = GradientGang(folder, warm, data, spec, overrides)
    run.ranks_per_node = tensor
    written = folder / "gradients"
    written.mkdir()
    run.environment[FOLDER] = str(written)
    run.run_to_end()
    return [torch.load(written / str(rank)) for rank in range(tensor)]


@pytest.mark.parametrize("case", SPLIT, ids=lambda case: case.family)
def test_gradients_are_those_of_one_rank(
    case: Case,
    converter: WarmConverter,
    tmp_path_factory: pytest.TempPathFactory,
    warm_bridge: WarmProcess,
) -> None:
    data = tmp_path_factory.mktemp("data")
    write_model(by_name(case.family), data / "model", "bfloat16")
    write_tokenizer(data / "model")
    write_samples(data / "samples")
    words = ["import", "--from", data / "model", "--to", data / "weights"]
    ended = converter.convert(*words, log=data / "log")
    assert ended.code == 0, ended.output
    (whole,) = _gradients(case, data, tmp_path_factory.mktemp("run"), warm_bridge, 1)
    ranks = _gradients(case, data, tmp_path_factory.mktemp("run"), warm_bridge, 2)

    assert all(rank.keys() == whole.keys() for rank in ranks)
    assert [name for name in whole if "norm" in name]
    for name, expected in whole.items():
        if ranks[0][name].shape == expected.shape:
            scale = expected.abs().max().item()
            assert all(rank[name] == pytest.approx(expected, abs=1e-3 * scale) for rank in ranks), name
        else:
            # Of what is split over ranks, which have parts that are not in the order of the whole.
            parts = torch.stack([rank[name].norm() for rank in ranks]).norm().item()
            assert parts == pytest.approx(expected.norm().item(), rel=1e-3), name
