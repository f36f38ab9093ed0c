"""Runs on CPUs whose tensor-parallel ranks split the sequence too: they train as one rank does.

Each continues a checkpoint of TP 1 in another layout, with its optimizer. Its losses, weights and moments are
then those of the run that has kept its layout.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.trainer.gang import Gang
from tests.trainer.warm_process import WarmProcess

BEGUN, LAST = 2, 6
# Without dropout, whose random numbers depend on the layout. With this epsilon a weight changes in proportion
# to its gradient; by Adam's own all change as much, those too whose gradient is rounding alone.
COMMON = (
    "--attention-dropout 0 --hidden-dropout 0 --adam-eps 0.01 --lr 0.03 --save-interval 2 "
    "--dist-ckpt-optim-fully-reshardable"
)
LAYER_NORM = "--position-embedding-type learned_absolute"
RMS_NORM = "--normalization RMSNorm --swiglu --disable-bias-linear"
UNTIED = f"{RMS_NORM} --untie-embeddings-and-output-weights"
EACH_HEAD = f"{RMS_NORM} --qk-layernorm --group-query-attention --num-query-groups 2"
EXPERTS = (
    "--num-experts 4 --moe-router-topk 2 --disable-bias-linear --moe-aux-loss-coeff 0.01 "
    "--moe-token-dispatcher-type allgather"
)
SHARED_EXPERT = f"{EXPERTS} {RMS_NORM} --qk-layernorm --moe-shared-expert-intermediate-size 64"

Trained = Callable[[str, int, Mapping[str, int], Gang | None], Gang]


def sizes(*, tensor: int = 1, pipeline: int = 1, expert: int = 1, expert_tensor: int = 0) -> dict[str, int]:
    """The sizes of a layout; `expert_tensor` 0 is that of Megatron, the tensor parallel size."""
    found = {"tensor-model": tensor, "pipeline-model": pipeline, "expert-model": expert}
    return found | ({"expert-tensor": expert_tensor} if expert_tensor else {})


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory, corpus: Path, warm: WarmProcess) -> Trained:
    """Trains a model in a layout on a number of ranks, from another run's checkpoint if one is given."""
    found: dict[tuple[Any, ...], Gang] = {}

    def run(model: str, ranks: int, layout: Mapping[str, int], begun: Gang | None) -> Gang:
        key = (model, ranks, *layout.items(), begun)
        if key not in found:
            gang = Gang(tmp_path_factory.mktemp("run"), corpus, nodes=1, warm=warm, ranks=ranks)
            gang.length = ["--train-iters", str(LAST if begun else BEGUN)]
            gang.flags += f"{COMMON} {model}".split()
            for kind, size in layout.items():
                gang.flags += [f"--{kind}-parallel-size", str(size)]
            gang.flags += ["--sequence-parallel"] if layout["tensor-model"] > 1 else []
            gang.flags += ["--load", str(begun.save)] if begun else []
            gang.run_to_end()
            found[key] = gang
        return found[key]

    return run


def tensors(gang: Gang) -> dict[str, torch.Tensor]:
    """The last checkpoint's weights, and of the optimizer the weights in float32 and both moments."""
    from torch.distributed.checkpoint import FileSystemReader, load
    from torch.distributed.checkpoint.metadata import TensorStorageMetadata

    reader = FileSystemReader(gang.save / f"iter_{LAST:07}")
    found: dict[str, Any] = {
        name: torch.zeros(stored.size, dtype=stored.properties.dtype)
        for name, stored in reader.read_metadata().state_dict_metadata.items()
        if isinstance(stored, TensorStorageMetadata) and stored.properties.dtype == torch.float32
    }
    load(found, storage_reader=reader, no_dist=True)
    return found


def assert_trained_alike(run: Gang, expected: Gang) -> None:
    """Assert that two runs have the losses, weights and moments of each other, in float32."""
    losses, reference = run.losses(), expected.losses()
    assert sorted(losses) == sorted(reference) == list(range(BEGUN + 1, LAST + 1))
    for iteration, (loss,) in reference.items():
        assert losses[iteration] == [pytest.approx(loss, rel=1e-6)], iteration
    found, wanted = tensors(run), tensors(expected)
    assert found.keys() == wanted.keys()
    assert any(name.startswith("optimizer.state.exp_avg_sq.") for name in wanted)
    for name, tensor in wanted.items():
        scale = tensor.abs().max().item()
        assert found[name] == pytest.approx(tensor, abs=1e-4 * scale), name


@pytest.mark.parametrize(
    ("model", "pipeline"),
    [
        (LAYER_NORM, 1),
        pytest.param(UNTIED, 1, marks=pytest.mark.repeats),
        pytest.param(EACH_HEAD, 1, marks=pytest.mark.repeats),
        (EACH_HEAD, 2),
    ],
    ids=["LayerNorm", "RMSNorm", "norms of heads", "norms of heads, tied embedding in two stages"],
)
def test_ranks_that_split_sequences_train_as_one_does(trained: Trained, model: str, pipeline: int) -> None:
    begun = trained(model, 1, sizes(), None)
    split = trained(model, 2 * pipeline, sizes(tensor=2, pipeline=pipeline), begun)
    assert_trained_alike(split, trained(model, 1, sizes(), begun))


@pytest.mark.parametrize(
    ("model", "ranks", "layout"),
    [
        pytest.param(EXPERTS, 2, sizes(tensor=2), marks=pytest.mark.repeats),
        pytest.param(SHARED_EXPERT, 2, sizes(tensor=2, expert_tensor=1), marks=pytest.mark.repeats),
        (SHARED_EXPERT, 2, sizes(tensor=2, expert=2, expert_tensor=1)),
        pytest.param(EXPERTS, 4, sizes(tensor=2, expert=2), marks=pytest.mark.repeats),
        (SHARED_EXPERT, 4, sizes(tensor=2, pipeline=2)),
    ],
    ids=[
        "TP 2",
        "a shared expert, TP 2, whole experts",
        "a shared expert, TP 2, EP 2",
        "TP 2, EP 2 and ETP 2",
        "a shared expert, TP 2, PP 2",
    ],
)
def test_experts_of_two_ranks_are_trained_on_by_ranks_that_split_sequences(
    trained: Trained, model: str, ranks: int, layout: Mapping[str, int]
) -> None:
    """Experts and their optimizer from EP 2, with LayerNorm, or with RMSNorm and a shared expert."""
    begun = trained(model, 2, sizes(expert=2), None)
    split = trained(model, ranks, layout, begun)
    assert_trained_alike(split, trained(model, 2, sizes(expert=2), begun))
