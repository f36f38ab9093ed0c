"""Both engines start from an imported checkpoint, and what they save is exported again.

The learning rate is too small to change a weight, so the exported model is the imported one, bit for bit,
only if every tensor was loaded, sharded and saved as it should be.
"""

import importlib.util
import os
from pathlib import Path
from typing import Any

import pytest
from megatron_contract.bridge_run import Value
from megatron_trainer.weights import huggingface_folder
from megatron_trainer.weights.tensors import records

from testkit.weights.families import VOCABULARY, by_name, write_model
from testkit.weights.warm import WarmConverter
from tests.trainer.bridge_run import LENGTH, BridgeGang
from tests.trainer.gang import Gang
from tests.trainer.warm_process import WarmProcess

TOO_SMALL = 1e-30
ITERATIONS = 2
pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("modelopt") is None or "MEGATRON_WEIGHTS_CHECK" not in os.environ,
    reason="takes minutes: run make weights-check",
)


def _import(name: str, folder: Path, converter: WarmConverter) -> tuple[Path, Path]:
    """Write a family's model in bfloat16; return its folder and the checkpoint imported from it."""
    write_model(by_name(name), folder / "source", "bfloat16")
    ended = converter.convert(
        "import", "--from", folder / "source", "--to", folder / "imported", log=folder / "log"
    )
    assert ended.code == 0, ended.output
    return folder / "source", folder / "imported"


@pytest.fixture(scope="module")
def folders(converter: WarmConverter, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A Llama and its checkpoint."""
    return _import("Llama", tmp_path_factory.mktemp("model"), converter)


def _tensors(folder: Path) -> dict[str, Any]:
    return records(huggingface_folder.read(folder, "", weights=True).tensors())


DENSE = "--tensor-model-parallel-size 2"
EXPERTS = (
    "--pipeline-model-parallel-size 2 --qk-layernorm --num-experts 4 --moe-router-topk 2 "
    "--moe-ffn-hidden-size 32 --moe-token-dispatcher-type allgather --moe-aux-loss-coeff 0"
)


class OwnLoop(Gang):
    """Megatron's own loop on two ranks, from an imported checkpoint; `more` are flags of the family."""

    def __init__(self, folder: Path, imported: Path, more: str) -> None:
        super().__init__(folder, None, nodes=1, ranks=2)
        self.flags = (
            "--num-layers 2 --hidden-size 64 --ffn-hidden-size 128 --num-attention-heads 4 "
            "--group-query-attention --num-query-groups 2 --kv-channels 16 --position-embedding-type rope "
            "--normalization RMSNorm --swiglu --disable-bias-linear --untie-embeddings-and-output-weights "
            "--attention-dropout 0 --hidden-dropout 0 --norm-epsilon 1e-6 --bf16 "
            f"--seq-length {LENGTH} --max-position-embeddings {LENGTH} --micro-batch-size 1 "
            f"--global-batch-size 4 --lr {TOO_SMALL} --lr-decay-iters 100 --weight-decay 0 "
            "--use-distributed-optimizer --ckpt-format torch_dist "
            "--save-interval 100 --eval-iters 0 --eval-interval 1000 --split 98,2,0 "
            f"--tokenizer-type NullTokenizer --vocab-size {VOCABULARY} "
            f"--make-vocab-size-divisible-by 1 --load {imported} {more}"
        ).split()

    def arguments(self) -> list[str]:
        return [*self.flags, *self._data, "--train-iters", str(ITERATIONS), "--save", str(self.save)]


@pytest.mark.parametrize(("name", "more"), [("Llama", DENSE), ("Qwen3-MoE", EXPERTS)])
def test_megatron_s_own_loop_trains_from_an_imported_checkpoint(
    name: str, more: str, converter: WarmConverter, tmp_path: Path
) -> None:
    source, imported = _import(name, tmp_path, converter)
    run = OwnLoop(tmp_path, imported, more)
    run.run_to_end()

    exported = tmp_path / "exported"
    ended = converter.convert(
        "export", "--from", run.save, "--to", exported, "--base", source, log=tmp_path / "log"
    )

    assert ended.code == 0, ended.output
    assert _tensors(exported) == _tensors(source)
    assert sorted(run.losses()) == list(range(1, ITERATIONS + 1))


def _train(
    folder: Path, warm: WarmProcess, source: Path, imported: Path, function: str, **overrides: Value
) -> BridgeGang:
    run = BridgeGang(
        folder,
        warm,
        source,
        function,
        checkpoint__pretrained_checkpoint=str(imported),
        train__train_iters=ITERATIONS,
        **overrides,
    )
    run.run_to_end()
    return run


def test_bridge_trains_from_an_imported_checkpoint(
    folders: tuple[Path, Path], converter: WarmConverter, warm_bridge: WarmProcess, tmp_path: Path
) -> None:
    source, imported = folders
    overrides: dict[str, Value] = {"optimizer__lr": TOO_SMALL, "optimizer__min_lr": 0.0}
    run = _train(tmp_path, warm_bridge, source, imported, "llama32_1b_sft_config", **overrides)

    exported = tmp_path / "exported"
    ended = converter.convert(
        "export", "--from", run.save, "--to", exported, "--base", source, log=tmp_path / "log"
    )

    assert ended.code == 0, ended.output
    assert _tensors(exported) == _tensors(source)


@pytest.mark.parametrize(("scheme", "tensor_parallel"), [("lora", 2), ("dora", 1)])
def test_adapters_that_bridge_trained_are_merged(
    folders: tuple[Path, Path],
    converter: WarmConverter,
    warm_bridge: WarmProcess,
    tmp_path: Path,
    scheme: str,
    tensor_parallel: int,
) -> None:
    """The comparison reads magnitudes as Bridge saves them, those of gates by rank."""
    source, imported = folders
    overrides: dict[str, Value] = {"peft__scheme": scheme, "peft__dim": 8}
    overrides["model__tensor_model_parallel_size"] = tensor_parallel
    run = _train(tmp_path, warm_bridge, source, imported, "llama32_1b_peft_config", **overrides)
    refused = converter.convert(
        "export", "--from", run.save, "--to", tmp_path / "refused", log=tmp_path / "log"
    )
    assert (refused.code, "--base FOLDER" in refused.output) == (2, True), refused.output

    exported = tmp_path / "exported"
    ended = converter.convert(
        "export", "--from", run.save, "--to", exported, "--base", source, log=tmp_path / "log"
    )
    assert ended.code == 0, ended.output
    compared = converter.merged_logits(run.save, source, exported, tmp_path / "logits")

    before, after = _tensors(source), _tensors(exported)
    changed = {name for name in before if before[name] != after[name]}
    assert before.keys() == after.keys()
    assert {name.rsplit(".", 2)[1] for name in changed} == {
        *("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
    }
    # What is left is the rounding of merged weights to bfloat16.
    assert compared["merged"] < 0.1 * compared["unmerged"], compared


def test_magnitudes_of_tensor_parallel_ranks_are_of_the_rows_that_they_were_trained_for(
    folders: tuple[Path, Path], converter: WarmConverter, warm_bridge: WarmProcess, tmp_path: Path
) -> None:
    """At the wrong rows they would scale weights that nothing has changed."""
    source, imported = folders
    overrides: dict[str, Value] = {"optimizer__lr": TOO_SMALL, "optimizer__min_lr": 0.0}
    overrides |= {"peft__scheme": "dora", "model__tensor_model_parallel_size": 2}
    run = _train(tmp_path, warm_bridge, source, imported, "llama32_1b_peft_config", **overrides)

    exported = tmp_path / "exported"
    words = ("export", "--from", run.save, "--to", exported, "--base", source)
    ended = converter.convert(*words, log=tmp_path / "log")
    assert ended.code == 0, ended.output
    assert _tensors(exported) == _tensors(source)
