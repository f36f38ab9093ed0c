"""Pretraining by Megatron-Bridge from the weights of a Hugging Face model, whose result becomes one.

With the arguments of import, run and export that the operator renders: a small random model of transformers
is imported, trained on two and four ranks, and exported.
"""

import importlib.util
import json
import os
from pathlib import Path
from typing import Any

import pytest
from megatron_contract.exit_codes import ExitCode
from megatron_trainer.weights import huggingface_folder
from megatron_trainer.weights.tensors import records

from testkit.fine_tuned import Case
from testkit.pretrained import CONTINUED
from testkit.weights.families import VOCABULARY, by_name, write_model, write_words
from testkit.weights.warm import WarmConverter
from tests.trainer.bridge_run import LENGTH, RecipeGang
from tests.trainer.warm_process import WarmProcess

ITERATIONS = 3
CLOSE = 1e-5
"""Largest difference of logits up to 2, in float32."""
OF_BFLOAT16 = 5e-3
"""Largest difference of losses of about 5.6 in bfloat16, where routers and indexers may choose others, and in
float32."""
TOO_SMALL = 1e-12
"""A learning rate that changes no weight of bfloat16."""
DOCUMENT = [*range(7, 217, 14), 1]
"""Its length divides that of a sample, so that all samples of a corpus of such documents are the same."""
UNCHANGED = (".experts.", ".indexer.", ".compressor.", "tid2eid")
"""Parts that some layers do not train on these samples: experts that no token chose, indexers, and entries
that are longer than a sample."""
pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("modelopt") is None or "MEGATRON_BRIDGE_TRAINING" not in os.environ,
    reason="takes minutes: run make bridge-training",
)


def write_corpus(folder: Path) -> None:
    """Write `text_text_document`, two files of a dataset of Megatron."""
    import torch
    from megatron.core.datasets.indexed_dataset import IndexedDatasetBuilder

    builder = IndexedDatasetBuilder(str(folder / "text_text_document.bin"))
    for _ in range(400):
        builder.add_document(torch.tensor(DOCUMENT), [len(DOCUMENT)])
    builder.finalize(str(folder / "text_text_document.idx"))


class Models:
    """Per family a data volume with its model, in bfloat16, and a corpus."""

    def __init__(self, factory: pytest.TempPathFactory) -> None:
        self._factory = factory
        self._found: dict[str, Path] = {}

    def __getitem__(self, name: str) -> Path:
        if name not in self._found:
            folder = self._factory.mktemp("volume")
            write_model(by_name(name), folder / "model", "bfloat16")
            write_corpus(folder)
            self._found[name] = folder
        return self._found[name]


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Models:
    """The models that were asked for."""
    return Models(tmp_path_factory)


def spec_of(case: Case, **settings: Any) -> dict[str, Any]:
    """The recipe of a case, from /data/model to /data/out."""
    return {
        "recipe": case.recipe,
        "accelerator": {"type": "cpu", "count": case.ranks, "perNode": case.ranks},
        "parallelism": case.parallelism,
        "init": {"from": {"huggingFace": {"path": "/data/model"}}},
        "data": {
            "volume": {"claimName": "data"},
            "blend": [{"path": "text_text_document"}],
            "split": "98,2,0",
        },
        "training": {
            **{"seqLength": LENGTH, "globalBatchSize": 4, "microBatchSize": 1, "trainIters": ITERATIONS},
            **{"lr": 0.01, "lrWarmupIters": 1, "lrDecayIters": 100, "evalIters": 0},
        },
        "checkpoint": {"saveInterval": ITERATIONS, "volume": {"size": "100Ti"}},
        "export": {"huggingFace": {"path": "/data/out"}},
        **settings,
    }


def volume_of(model: Path, folder: Path) -> Path:
    """A data volume of its own, which takes what a run writes, with the model and the corpus of another."""
    data = folder / "data"
    data.mkdir()
    for path in model.iterdir():
        (data / path.name).symlink_to(path)
    return data


def tensors(folder: Path) -> dict[str, Any]:
    """The records of the weights in a Hugging Face folder."""
    return records(huggingface_folder.read(folder, "", weights=True).tensors())


@pytest.mark.parametrize("case", CONTINUED, ids=lambda case: f"{case.recipe} {case.parallelism}")
def test_a_model_is_imported_pretrained_and_exported_as_the_operator_renders_it(
    case: Case, models: Models, converter: WarmConverter, tmp_path: Path, warm_bridge: WarmProcess
) -> None:
    data = volume_of(models[case.family], tmp_path)
    run = RecipeGang(tmp_path, warm_bridge, data, spec_of(case), case.overrides)
    imported = run.convert(converter, "import")
    assert imported.code == 0, imported.output
    run.run_to_end()
    exported = run.convert(converter, "export")
    assert exported.code == 0, exported.output

    sample = [DOCUMENT[place % len(DOCUMENT)] for place in range(LENGTH + 1)]
    expected = converter.loss(data / "model", sample, tmp_path / "loss.json")
    losses = run.losses()
    assert sorted(losses) == list(range(1, ITERATIONS + 1))
    assert losses[1] == [pytest.approx(expected, abs=OF_BFLOAT16)]
    assert losses[ITERATIONS][0] < expected - 0.1
    compared = converter.trained_logits(run.save, data / "out", tmp_path / "logits.json")
    print(case.recipe, case.parallelism, expected, losses, compared)
    assert compared["difference"] < CLOSE
    before, after = tensors(data / "model"), tensors(data / "out")
    assert before.keys() == after.keys()
    same = {name for name in before if before[name] == after[name]}
    assert not [name for name in same if not any(part in name for part in UNCHANGED)]


@pytest.mark.parametrize("recipe", ["gemma2-2b", "deepseek-v2-lite"])
def test_weights_that_no_step_changes_come_back_bit_for_bit_as_best_and_last_checkpoint(
    recipe: str, models: Models, converter: WarmConverter, tmp_path: Path, warm_bridge: WarmProcess
) -> None:
    (case,) = (case for case in CONTINUED if case.recipe == recipe)
    data = volume_of(models[case.family], tmp_path)
    spec = spec_of(case, export={"huggingFace": {"path": "/data/out"}, "when": ["best", "end"]})
    spec["training"] |= {"lr": TOO_SMALL, "minLr": 0.0, "evalInterval": 1, "evalIters": 1}
    spec["checkpoint"]["saveInterval"] = 1
    run = RecipeGang(tmp_path, warm_bridge, data, spec, case.overrides)
    for role in ("import", "export", "export-best"):
        if role == "export":
            run.run_to_end()
        ended = run.convert(converter, role)
        assert ended.code == 0, ended.output

    before = tensors(data / "model")
    assert tensors(data / "out" / "end") == before
    assert tensors(data / "out" / "best") == before
    audit = json.loads((data / "out" / "end" / "conversion-audit.json").read_text())
    assert len(audit["result"]) == len(before)


def test_rows_are_added_for_tokens_of_the_models_own_tokenizer_and_left_out_of_the_export(
    converter: WarmConverter, tmp_path: Path, warm_bridge: WarmProcess
) -> None:
    case = Case("gemma2-2b", "Gemma 2", {"tensorModelParallelSize": 2})
    data = tmp_path / "data"
    write_model(by_name(case.family), data / "model", "bfloat16")
    write_words(data / "model", VOCABULARY + 1)
    write_corpus(data)
    run = RecipeGang(tmp_path, warm_bridge, data, spec_of(case))
    assert run.convert(converter, "import").code == 0
    run.run_to_end()
    exported = run.convert(converter, "export")

    assert exported.code == 0, exported.output
    saved = (run.save / f"iter_{ITERATIONS:07}" / "run_config.yaml").read_text()
    assert f"vocab_size: {VOCABULARY + 128}" in saved
    before, after = tensors(data / "model"), tensors(data / "out")
    embedding = "model.embed_tokens.weight"
    assert before[embedding].shape == after[embedding].shape
    assert before[embedding] != after[embedding]


@pytest.mark.parametrize(
    ("recipe", "family", "message"),
    [
        (
            "olmoe-7b",
            "OLMoE",
            "config.json is of another model than the recipe's: num_layers 2 instead of 16",
        ),
        (
            "gemma2-2b",
            "Gemma 2",
            f"has {VOCABULARY + 1} tokens, and the model {VOCABULARY}; name the tokenizer",
        ),
    ],
)
def test_weights_of_another_model_or_tokenizer_end_the_run_before_it_trains(
    recipe: str, family: str, message: str, converter: WarmConverter, tmp_path: Path, warm_bridge: WarmProcess
) -> None:
    data = tmp_path / "data"
    write_model(by_name(family), data / "model", "bfloat16")
    write_words(data / "tokenizer", VOCABULARY + 1)
    write_corpus(data)
    spec = spec_of(Case(recipe, family))
    spec["data"]["tokenizer"] = {"tokenizerModel": "/data/tokenizer"}
    run = RecipeGang(tmp_path, warm_bridge, data, spec)
    assert run.convert(converter, "import").code == 0
    run.run_to_end(int(ExitCode.BAD_DATA))

    assert message in run.termination(0)["message"]
    assert not run.losses()
