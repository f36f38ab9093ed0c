"""Every architecture that the operator pretrains by Megatron-Bridge: a small model trains on real text.

With the arguments that the operator renders, on two ranks, and resumed with the same losses.
"""

import importlib.util
import json
import os
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from megatron_contract.environment import VALIDATION_FILE
from megatron_contract.exit_codes import ExitCode

from testkit.pretrained import CASES, PretrainingCase
from testkit.weights.families import by_name, write_model
from testkit.weights.warm import WarmConverter
from tests.trainer import text_corpus
from tests.trainer.bridge_run import LENGTH, RecipeGang
from tests.trainer.warm_process import WarmProcess

ITERATIONS, SAVED_EVERY = 6, 2
PREDICTING = {
    *("nemotron3-super-120b-a12b", "nemotron3-ultra-550b-a55b", "nemotron3.5-lightning"),
    *("glm5.2", "k-exaone2-750b-a37b", "step3.5-196b-a11b", "deepseek-v4-flash"),
}
WORDS = 1000
"""Of the tokenizer of the corpus."""
_EXPERTS, _TENSORS = {"expertModelParallelSize": 2}, {"tensorModelParallelSize": 2}
EXPORTED = (
    ("deepseek-v2-lite", "DeepSeek-V2 without q_lora_rank", _EXPERTS),
    ("falcon-h1-34b", "Falcon-H1", _TENSORS),
)
"""Recipes, their family, and what splits them besides two stages."""
pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("modelopt") is None or "MEGATRON_BRIDGE_TRAINING" not in os.environ,
    reason="takes minutes: run make bridge-training",
)


class PretrainingGang(RecipeGang):
    """The run of a recipe whose model is small; `corpus` stands for the data volume, with the model in it."""

    def __init__(
        self, folder: Path, warm: WarmProcess, corpus: Path, case: PretrainingCase, **settings: Any
    ) -> None:
        data = folder / "data"
        data.mkdir()
        for path in corpus.iterdir():
            (data / path.name).symlink_to(path)
        for suffix in (".bin", ".idx"):
            (data / f"again_text_document{suffix}").symlink_to(corpus / f"text_text_document{suffix}")
        case.write_config(data / "model")
        super().__init__(folder, warm, data, _spec(case) | settings, case.overrides)


def _tensors(checkpoint: Path) -> dict[str, tuple[int, ...]]:
    """Return the shape of every tensor of the model, by its name."""
    from torch.distributed.checkpoint import FileSystemReader
    from torch.distributed.checkpoint.metadata import TensorStorageMetadata

    stored = FileSystemReader(checkpoint).read_metadata().state_dict_metadata
    return {name: tuple(x.size) for name, x in stored.items() if isinstance(x, TensorStorageMetadata)}


def _spec(case: PretrainingCase) -> dict[str, Any]:
    return {
        "recipe": case.recipe,
        "accelerator": {"type": "cpu", "count": 2},
        "init": {"modelFolder": "/data/model"} if case.config_class else {},
        "data": {
            "volume": {"claimName": "corpus"},
            "tokenizer": {"tokenizerType": "HuggingFaceTokenizer", "tokenizerModel": "/data/tokenizer"},
            "blend": [
                {"path": "text_text_document", "weight": 0.7},
                {"path": "again_text_document", "weight": 0.3},
            ],
            "split": "98,2,0",
        },
        **({"model": dict(case.model)} if case.model else {}),
        "parallelism": case.parallelism,
        "training": _training(2) | {"evalIters": 0},
        "checkpoint": {"saveInterval": SAVED_EVERY, "volume": {"size": "100Ti"}},
    }


def _training(iterations: int) -> dict[str, Any]:
    return {
        **{"seqLength": LENGTH, "globalBatchSize": 4, "microBatchSize": 1, "trainIters": iterations},
        **{"lr": 0.003, "lrWarmupIters": 1, "lrDecayIters": 100, "evalInterval": 3, "evalIters": 1},
    }


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.recipe} {case.parallelism}")
def test_a_small_model_is_pretrained_as_the_operator_renders_it(
    case: PretrainingCase, tmp_path: Path, corpus: Path, warm_bridge: WarmProcess
) -> None:
    run = PretrainingGang(tmp_path, warm_bridge, corpus, case)
    run.run_to_end()

    losses = run.losses()
    assert sorted(losses) == [1, 2]
    # Random weights know nothing of 1000 tokens, padded to at most 3200: from ln 1000 = 6.9 to ln 3200 = 8.1.
    assert all(6.5 < loss < 8.5 for (loss,) in losses.values())
    saved = run.save / "iter_0000002"
    assert (saved / "run_config.yaml").is_file()
    tensors = _tensors(saved)
    if case.recipe in PREDICTING:
        assert [name for name in tensors if name.startswith("mtp.")]
    if case.recipe == "gemma4-e4b":
        # Four heads of 16 elements in layers with a window, of 32 in the others.
        widths = {
            kind: tensors[f"decoder.layers.self_attention_{kind}.linear_proj.weight"][-1]
            for kind in ("sliding", "global")
        }
        assert widths == {"sliding": 4 * 16, "global": 4 * 32}
        # Else each rank would train the norms of queries and keys with its own heads alone.
        assert "qk_layernorm: true" in (saved / "run_config.yaml").read_text()


@pytest.mark.parametrize(("recipe", "family", "sizes"), EXPORTED)
def test_weights_that_four_ranks_have_pretrained_from_random_ones_are_exported_with_their_logits(
    recipe: str,
    family: str,
    sizes: dict[str, int],
    tmp_path: Path,
    corpus: Path,
    warm_bridge: WarmProcess,
    converter: WarmConverter,
) -> None:
    """The run has the rows of config.json, which are more than the tokenizer has tokens."""
    case = next(case for case in CASES if case.recipe == recipe)
    settings: dict[str, Any] = {
        "accelerator": {"type": "cpu", "count": 4, "perNode": 4},
        "parallelism": {**case.parallelism, "pipelineModelParallelSize": 2, **sizes},
        "export": {"huggingFace": {"path": "/data/out"}},
    }
    run = PretrainingGang(tmp_path, warm_bridge, corpus, case, **settings)
    of_family = by_name(family)
    model = tmp_path / "data" / "model"
    write_model(replace(of_family, sizes={**of_family.sizes, "vocab_size": WORDS + 24}), model)
    run.run_to_end()
    assert sorted(run.losses()) == [1, 2]
    ended = run.convert(converter, "export")

    assert ended.code == 0, ended.output
    found = converter.trained_logits(run.save, tmp_path / "data" / "out", tmp_path / "logits.json")
    print(recipe, found)
    assert found["difference"] < 1e-5


def test_a_run_keeps_the_rows_of_its_checkpoints_when_its_export_is_removed(
    tmp_path: Path, corpus: Path, warm_bridge: WarmProcess
) -> None:
    recipe, family, _ = EXPORTED[0]
    case = next(case for case in CASES if case.recipe == recipe)
    run = PretrainingGang(tmp_path, warm_bridge, corpus, case, export={"huggingFace": {"path": "/data/out"}})
    of_family, rows = by_name(family), WORDS + 24
    write_model(
        replace(of_family, sizes={**of_family.sizes, "vocab_size": rows}), tmp_path / "data" / "model"
    )
    run.run_to_end()
    run.edit(_spec(case) | {"training": _training(4) | {"evalIters": 0}})
    run.run_to_end()

    assert sorted(run.losses()) == [1, 2, 3, 4]
    for iteration in (2, 4):
        saved = run.save / f"iter_{iteration:07}"
        assert f"vocab_size: {rows}" in (saved / "run_config.yaml").read_text()
        assert _tensors(saved)["embedding.word_embeddings.weight"][0] == rows


def test_an_export_of_a_run_with_the_rows_of_its_tokenizer_is_refused_before_it_trains(
    tmp_path_factory: pytest.TempPathFactory, corpus: Path, warm_bridge: WarmProcess
) -> None:
    """An export that is added later, or of another run. Tokens of DeepSeek-V2 are padded to 3200."""
    recipe, family, _ = EXPORTED[0]
    case = next(case for case in CASES if case.recipe == recipe)
    of_family, rows = by_name(family), 4096

    def run(case: PretrainingCase, **settings: Any) -> PretrainingGang:
        folder = tmp_path_factory.mktemp("run")
        made = PretrainingGang(folder, warm_bridge, corpus, case, **settings)
        larger = replace(of_family, sizes={**of_family.sizes, "vocab_size": rows})
        write_model(larger, folder / "data" / "model")
        return made

    exported: dict[str, Any] = {"export": {"huggingFace": {"path": "/data/out"}}}
    first = run(case)
    first.run_to_end()
    init = {"modelFolder": "/data/model", "from": {"recipe": "first"}}
    volume = {"saveInterval": SAVED_EVERY, "volume": {"claimName": "runs"}}
    weights = {"checkpoint.pretrained_checkpoint": str(first.save)}
    of_first = replace(case, overrides={**case.overrides, **weights})
    second = run(of_first, init=init, checkpoint=volume, **exported)
    first.edit(_spec(case) | {"training": _training(4) | {"evalIters": 0}} | exported)
    for each, losses in ((first, [1, 2]), (second, [])):
        each.run_to_end(int(ExitCode.BAD_DATA))
        message = each.termination(0)["message"]
        assert f"/data/model has {rows} rows of the vocabulary, and the model of this run has 3200" in message
        assert "leave export out, or start a new recipe from imported weights" in message
        assert sorted(each.losses()) == losses


@pytest.mark.parametrize("recipe", ["deepseek-v2-lite", "step3.5-196b-a11b"])
def test_a_killed_run_resumes_with_the_losses_of_an_undisturbed_one(
    recipe: str, tmp_path_factory: pytest.TempPathFactory, corpus: Path, warm_bridge: WarmProcess
) -> None:
    case = next(case for case in CASES if case.recipe == recipe)
    undisturbed = PretrainingGang(
        tmp_path_factory.mktemp("undisturbed"), warm_bridge, corpus, case, training=_training(ITERATIONS)
    )
    undisturbed.run_to_end()
    run = PretrainingGang(
        tmp_path_factory.mktemp("killed"), warm_bridge, corpus, case, training=_training(100)
    )
    run.run_with_a_killed_rank(SAVED_EVERY + 1, until=ITERATIONS)

    expected = undisturbed.distinct_losses()
    assert sorted(expected) == list(range(1, ITERATIONS + 1))
    assert run.distinct_losses(until=ITERATIONS) == expected
    (incident,) = run.incidents()
    assert incident["cause"].startswith("rank 0 was killed by SIGKILL")
    assert incident["resumedFrom"] >= SAVED_EVERY
    evaluated = [json.loads(line) for line in (undisturbed.save / VALIDATION_FILE).read_text().splitlines()]
    assert [each["iteration"] for each in evaluated][:2] == [3, 6]


@pytest.mark.parametrize("recipe", ["nemotron-h-4b", "k-exaone-236b-a23b", "qwen3.5-35b-a3b"])
def test_an_elastic_run_goes_on_in_another_layout_with_its_optimizer(
    recipe: str, tmp_path_factory: pytest.TempPathFactory, corpus: Path, warm_bridge: WarmProcess
) -> None:
    """From TP 2 or EP 2 to PP 2. Experts that are not split have no optimizer of their own."""
    case = next(case for case in CASES if case.recipe == recipe)
    sizes = {"tensorModelParallelSize": 1, "pipelineModelParallelSize": 2}
    sizes |= {"expertModelParallelSize": 1} if "expertModelParallelSize" in case.parallelism else {}

    def run(iterations: int, **changed: int) -> PretrainingGang:
        settings = {
            "parallelism": {**case.parallelism, **changed},
            "training": _training(iterations) | {"evalIters": 0},
            "recovery": {"elastic": {"minCount": 2}},
        }
        return PretrainingGang(tmp_path_factory.mktemp("run"), warm_bridge, corpus, case, **settings)

    first, last = run(SAVED_EVERY), 2 * SAVED_EVERY
    first.run_to_end()
    same_layout, other = run(last), run(last, **sizes)
    for gang in (same_layout, other):
        shutil.copytree(first.save, gang.save)
        gang.run_to_end()

    expected, losses = same_layout.losses(), other.losses()
    assert sorted(losses) == sorted(expected) == list(range(1, last + 1))
    for iteration, (loss,) in expected.items():
        assert losses[iteration] == [pytest.approx(loss, rel=1e-3)], iteration


def test_a_run_starts_from_the_weights_of_another_one_in_another_layout(
    tmp_path_factory: pytest.TempPathFactory, corpus: Path, warm_bridge: WarmProcess
) -> None:
    case = next(case for case in CASES if case.recipe == "deepseek-v2-lite")

    def run(case: PretrainingCase, iterations: int, **settings: Any) -> PretrainingGang:
        training = _training(iterations) | {"evalIters": 0}
        folder = tmp_path_factory.mktemp("run")
        return PretrainingGang(folder, warm_bridge, corpus, case, training=training, **settings)

    first = run(case, ITERATIONS)
    first.run_to_end()
    init = {"modelFolder": "/data/model", "from": {"recipe": "first"}}
    started = {"init": init, "checkpoint": {"saveInterval": SAVED_EVERY, "volume": {"claimName": "runs"}}}
    weights = {"checkpoint.pretrained_checkpoint": str(first.save)}
    case = replace(case, overrides={**case.overrides, **weights})
    same_layout = run(case, 1, **started)
    same_layout.run_to_end()
    pipeline = {"pipelineModelParallelSize": 2, "expertModelParallelSize": 1}
    other = run(case, 100, parallelism={**case.parallelism, **pipeline}, **started)
    other.run_with_a_killed_rank(SAVED_EVERY + 1, until=ITERATIONS)

    random_weights, (expected,) = first.losses()[1][0], same_layout.losses()[1]
    losses = other.distinct_losses(until=ITERATIONS)
    assert sorted(losses) == list(range(1, ITERATIONS + 1))
    assert all(len(each) == 1 for each in losses.values()), "repeated iterations have the losses of before"
    (loss,) = losses[1]
    assert loss == pytest.approx(expected, rel=1e-3)
    assert loss < random_weights - 0.1


def test_a_dataset_that_is_missing_ends_the_run_before_it_trains(
    tmp_path: Path, corpus: Path, warm_bridge: WarmProcess
) -> None:
    data = _spec(CASES[0])["data"] | {"blend": [{"path": "absent_text_document"}]}
    run = PretrainingGang(tmp_path, warm_bridge, corpus, CASES[0], data=data)
    run.run_to_end(int(ExitCode.BAD_DATA))
    assert "absent_text_document.bin does not exist" in run.termination(0)["message"]


def test_a_corpus_without_a_document_for_validation_is_trained_on_where_nothing_is_evaluated(
    tmp_path: Path, warm_bridge: WarmProcess
) -> None:
    texts, corpus = tmp_path / "texts", tmp_path / "corpus"
    for folder in (texts, corpus):
        folder.mkdir()
    for module in ("argparse", "inspect", "tarfile"):
        (texts / f"{module}.py").write_text((Path(os.__file__).parent / f"{module}.py").read_text())
    text_corpus.write(corpus, texts)
    (case,) = (case for case in CASES if case.recipe == "olmoe-7b")
    # Of three documents 2 % are none.
    one_dataset = _spec(case)["data"] | {"blend": [{"path": "text_text_document"}]}
    run = PretrainingGang(tmp_path, warm_bridge, corpus, case, data=one_dataset)
    run.run_to_end()

    assert sorted(run.losses()) == [1, 2]


def test_random_tokens_need_no_tokenizer(tmp_path: Path, corpus: Path, warm_bridge: WarmProcess) -> None:
    (case,) = (case for case in CASES if case.recipe == "olmoe-7b")
    run = PretrainingGang(tmp_path, warm_bridge, corpus, case, data={"mockData": True})
    run.run_to_end()
    assert sorted(run.losses()) == [1, 2]
