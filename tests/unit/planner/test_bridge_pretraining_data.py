"""Data of recipes of engine bridge that pretrain: what is prepared, checked, and read by their function."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from megatron_contract.bridge_run import VALIDATION_DATA, BridgeRun
from megatron_contract.exit_codes import ExitCode
from megatron_operator import manifests
from megatron_operator.planner import PlannedRun
from megatron_operator.planner.dataset_args import bridge_dataset_arguments, bridge_index_arguments
from megatron_trainer.data import check, tokenizer
from megatron_trainer.data.prepare import _run

from tests.unit.planner.bridge_pretraining_runs import (
    BLEND,
    INIT,
    SOURCES,
    TOKENIZER,
    VOLUME,
    overrides,
    planned,
    refusals,
)


def prepare_arguments(run: PlannedRun) -> list[str]:
    job = manifests.build(run, "").prepare_job
    assert job is not None
    (container,) = job["spec"]["template"]["spec"]["containers"]
    return [str(word) for word in container["args"]]


def test_a_blend_reaches_the_function_as_megatrons_datasets() -> None:
    found = overrides(data=BLEND | {"split": "90,9,1", "dataloaderType": "cyclic", "numWorkers": 3})
    assert found["dataset.data_path"] == [
        *("0.7", "/data/web_text_document"),
        *("0.3", "/data/code_text_document"),
    ]
    assert (found["dataset.split"], found["dataset.dataloader_type"]) == ("90,9,1", "cyclic")
    assert found["dataset.num_workers"] == 3
    assert found["dataset.path_to_cache"] == "/checkpoints/run/data-cache"
    assert found["tokenizer.tokenizer_model"] == "/data/tokenizer"
    assert found["hub.path"] == "/data/model"


def test_datasets_for_validation_reach_the_function_and_the_check() -> None:
    blend = [{"path": "web_text_document"}, {"path": "held_out_text_document", "validation": True}]
    run = planned(data=BLEND | {"blend": blend})
    found = BridgeRun.from_arguments(run.arguments).overrides
    assert found["dataset.data_path"] == ["/data/web_text_document"]
    assert found[VALIDATION_DATA] == ["/data/held_out_text_document"]
    assert "dataset.split" not in found
    needs = check.parse_needs(bridge_dataset_arguments(BridgeRun.from_arguments(run.arguments)), None, 1)
    assert needs is not None
    assert (needs.weights, needs.validation, needs.split) == (
        {"/data/web_text_document": 1.0},
        ("/data/held_out_text_document",),
        "100,0,0",
    )
    assert VALIDATION_DATA in " ".join(bridge_index_arguments(BridgeRun.from_arguments(run.arguments)))


def test_one_dataset_has_no_weight() -> None:
    found = overrides(data=BLEND | {"blend": [{"path": "web_text_document"}]})
    assert found["dataset.data_path"] == ["/data/web_text_document"]


def test_sources_are_prepared_with_the_tokenizer_of_the_model_and_checked_against_the_run() -> None:
    run = planned(data=SOURCES, training={"trainIters": 4000, "evalIters": 0})
    found = BridgeRun.from_arguments(run.arguments).overrides
    words = prepare_arguments(run)
    assert found["tokenizer.tokenizer_model"] == "/data/model"
    assert words[words.index("--tokenizer-dir") + 1] == "/data/model"
    paths = found["dataset.data_path"]
    assert isinstance(paths, list)
    assert all(str(path) in " ".join(words) for path in paths[1::2])
    needs = check.parse_needs(words[words.index("--") + 1 :], None, 1)
    assert needs is not None
    assert "--vocab-size" not in words
    assert (needs.seq_length, needs.samples, needs.evaluates) == (4096, 4000 * 512, False)
    assert list(needs.weights.values()) == [0.75, 0.25]


@pytest.mark.parametrize("data", [BLEND, SOURCES | {"tokenizer": TOKENIZER}], ids=["check", "prepare"])
def test_the_job_before_the_run_builds_the_index_of_its_samples(data: dict[str, Any]) -> None:
    def index(**training: Any) -> BridgeRun:
        built = manifests.build(planned(data=data, training={"trainIters": 4000} | training), "")
        job = built.prepare_job if built.check_job is None else built.check_job
        assert job is not None
        (container,) = job["spec"]["template"]["spec"]["containers"]
        words = [str(word) for word in container["args"]]
        own = words[: words.index("--")]
        assert "--index" in own or "--index-dir" in own
        return BridgeRun.from_arguments(json.loads(own[own.index("--index-of") + 1]))

    run = BridgeRun.from_arguments(planned(data=data, training={"trainIters": 4000}).arguments)
    found = index()
    assert found.function == run.function
    assert found.overrides.items() <= run.overrides.items()
    assert {"dataset.data_path", "dataset.path_to_cache", "train.train_iters"} <= found.overrides.keys()
    assert index(lr=1e-4) == found, "what is learned of the samples does not change them"
    assert index(seqLength=2048) != found


def dataset(prefix: Path, largest: int) -> None:
    """A dataset of Megatron with 200 documents of 32 tokens, with one id that is `largest`."""
    import torch
    from megatron.core.datasets.indexed_dataset import IndexedDatasetBuilder

    builder = IndexedDatasetBuilder(f"{prefix}.bin", dtype=np.int32)
    for number in range(200):
        builder.add_document(torch.tensor([*range(31), largest if number == 100 else 0]), [32])
    builder.finalize(f"{prefix}.idx")


def test_the_datasets_of_a_blend_are_checked_against_the_tokenizer_of_the_run(tmp_path: Path) -> None:
    """The arguments are those of the Job, with `tmp_path` for both volumes."""
    training = {"seqLength": 64, "globalBatchSize": 4, "microBatchSize": 1, "trainIters": 4, "evalIters": 0}
    training |= {"lrWarmupIters": 1, "lrDecayIters": 4}
    sizes = {"tensorModelParallelSize": 1, "expertModelParallelSize": 2, "sequenceParallel": False}
    cpu = {"type": "cpu", "count": 2}
    job = manifests.build(planned(accelerator=cpu, parallelism=sizes, training=training), "").check_job
    assert job is not None
    (container,) = job["spec"]["template"]["spec"]["containers"]
    words = [str(word).replace("/data/", f"{tmp_path}/") for word in container["args"]]
    words = [word.replace("/checkpoints/", f"{tmp_path}/") for word in words]
    words[words.index("--progress-port") : words.index("--progress-port") + 2] = []

    dataset(tmp_path / "web_text_document", largest=50)
    dataset(tmp_path / "code_text_document", largest=9000)
    (tmp_path / "tokenizer").mkdir()
    code, text, _ = _run(words)
    assert (code, text.partition(" cannot load ")[0]) == (
        ExitCode.BAD_DATA,
        "data.tokenizer.tokenizerModel: transformers",
    )
    tokenizer.train(iter(["some text to train on"]), 260, tmp_path / "tokenizer")
    code, text, _ = _run(words)
    assert code == ExitCode.BAD_DATA, text
    assert text.startswith(
        f"data.blend[1].path: {tmp_path}/code_text_document.bin has token id 9,000, and the"
    )
    dataset(tmp_path / "code_text_document", largest=50)
    code, text, _ = _run(words)
    assert code == ExitCode.OK, text


def test_random_tokens_replace_data_and_tokenizer() -> None:
    found = overrides(data={"mockData": True, **VOLUME})
    assert found["dataset.mock"] is True
    assert (found["tokenizer.tokenizer_type"], found["tokenizer.tokenizer_model"]) == ("NullTokenizer", None)
    assert "dataset.data_path" not in found


@pytest.mark.parametrize(
    ("field", "init", "named"),
    [
        ("init.from.huggingFace.path", {"from": {"huggingFace": {"path": "/checkpoints/base"}}}, {}),
        ("init.modelFolder", {"modelFolder": "/checkpoints/base"}, {}),
        ("data.tokenizer.tokenizerModel", INIT, {"tokenizer": {"tokenizerModel": "/checkpoints/base"}}),
    ],
)
def test_sources_are_not_prepared_with_a_tokenizer_that_the_preparing_pods_do_not_mount(
    field: str, init: dict[str, Any], named: dict[str, Any]
) -> None:
    (refused,) = refusals(init=init, data=SOURCES | named)
    assert refused == (
        f"spec.{field}: '/checkpoints/base' is not on the data volume, the only one of the pods that prepare "
        "data; copy the tokenizer there, and name its folder below /data in data.tokenizer.tokenizerModel"
    )
    assert overrides(init=init, data=BLEND | named)["dataset.split"]


def test_a_tokenizer_folder_needs_no_type_because_there_is_one_only() -> None:
    folder = {"tokenizerModel": "/data/tokenizer"}
    assert overrides(data=BLEND | {"tokenizer": folder}) == overrides(data=BLEND)
