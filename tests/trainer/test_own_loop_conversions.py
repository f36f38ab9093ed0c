"""Recipes of Megatron's own loop, as the operator renders them, from and to Hugging Face weights.

The logits of the model that the run has trained, built of the run's arguments, are those of transformers with
the exported folder.
"""

import importlib.util
import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from megatron_trainer.weights import huggingface_folder
from megatron_trainer.weights.tensors import records

from testkit.own_loop import CASES, IMPORTED, LLAMA
from testkit.own_loop import OwnLoopCase as Case
from testkit.weights.families import by_name, write_model
from testkit.weights.warm import WarmConverter
from tests.trainer.bridge_run import LENGTH, rendered_objects
from tests.trainer.own_loop_runs import SIZES, OwnLoopGang
from tests.trainer.warm_process import WarmProcess

ITERATIONS = 3
CLOSE = 1e-5
"""Of logits above 0.5, in float32; rounding to bfloat16 changes them by 4e-3."""
pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("modelopt") is None or "MEGATRON_BRIDGE_TRAINING" not in os.environ,
    reason="takes minutes: run make bridge-training",
)


def spec_of(case: Case) -> dict[str, Any]:
    """The recipe of a case, from /data/model to /data/out."""
    return {
        "recipe": case.recipe,
        "accelerator": {"type": "cpu", "count": 4, "perNode": 4},
        "parallelism": case.parallelism,
        "model": {name: value for name, value in (SIZES | case.model).items() if value is not None},
        "init": {"from": {"huggingFace": {"path": "/data/model"}}},
        "data": {"volume": {"claimName": "data"}, "mockData": True},
        "training": {
            **{"seqLength": LENGTH, "globalBatchSize": 4, "microBatchSize": 1, "trainIters": ITERATIONS},
            **{"lr": 0.01, "lrWarmupIters": 1, "evalIters": 0, "bf16": False},
        },
        "checkpoint": {"saveInterval": ITERATIONS, "volume": {"size": "100Ti"}},
        "export": {"huggingFace": {"path": "/data/out"}},
        **({"megatronArgs": case.arguments} if case.arguments else {}),
    }


def write_case(case: Case, folder: Path) -> Path:
    """Write the small model of a case as the data volume's folder `model`; return the volume."""
    family = by_name(case.family)
    write_model(replace(family, sizes={**family.sizes, **case.config}), folder / "model")
    return folder


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.recipe)
def test_logits_of_the_exported_model_are_those_of_the_run(
    case: Case, converter: WarmConverter, warm: WarmProcess, tmp_path: Path
) -> None:
    data, objects = write_case(case, tmp_path), rendered_objects(spec_of(case))
    run = OwnLoopGang(tmp_path, warm, data, objects)
    imported = run.convert(converter, objects.import_job)
    assert imported.code == 0, imported.output
    run.start()
    assert run.wait() == [0], run.log()[-3000:]
    exported = run.convert(converter, objects.export_job)
    assert exported.code == 0, exported.output

    assert sorted(run.losses()) == list(range(1, ITERATIONS + 1))
    before, after = (
        records(huggingface_folder.read(data / name, "", weights=True).tensors()) for name in ("model", "out")
    )
    assert before.keys() == after.keys()
    assert all(after[name] != before[name] for name in before), "every tensor has learned"
    compared = converter.logits_of_run(run.arguments(), run.save, data / "out", tmp_path / "logits")
    print(case.recipe, compared)
    assert compared["difference"] < CLOSE < 0.5 < compared["largest"], compared


@pytest.mark.parametrize("case", IMPORTED, ids=lambda case: case.recipe)
def test_the_model_of_a_run_has_the_logits_of_the_weights_that_it_starts_from(
    case: Case, converter: WarmConverter, tmp_path: Path
) -> None:
    data, objects = write_case(case, tmp_path), rendered_objects(spec_of(case))
    run = OwnLoopGang(tmp_path, None, data, objects)
    imported = run.convert(converter, objects.import_job)
    assert imported.code == 0, imported.output
    compared = converter.logits_of_run(
        run.arguments(), data / "model-megatron", data / "model", tmp_path / "logits"
    )
    print(case.recipe, compared)
    assert compared["difference"] < CLOSE < 0.5 < compared["largest"], compared


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"rotaryBase": 500000}, "rotary_base is 10000.0 there and 500000 in the run (model.rotaryBase)"),
        ({"useRopeScaling": False, "ropeScalingFactor": None}, "(model.useRopeScaling)"),
        ({"ropeScalingFactor": 32}, "rope_scaling_factor is 8.0 there and 32.0 in the run"),
        ({"normEpsilon": 1e-6}, "layernorm_epsilon is 1e-05 there and 1e-06 in the run (model.normEpsilon)"),
        ({"untieEmbeddingsAndOutputWeights": False}, "(model.untieEmbeddingsAndOutputWeights)"),
        ({"vocabSize": 256}, "vocab_size is 250 there and 256 in the run (model.vocabSize)"),
        ({"numQueryGroups": 4}, "num_query_groups is 2 there and 4 in the run (model.numQueryGroups)"),
        ({"ffnHiddenSize": 192}, "ffn_hidden_size is 128 there and 192 in the run (model.ffnHiddenSize)"),
        ({"swiglu": False}, "activation_func is 'silu' there and 'gelu' in the run (model.swiglu)"),
        ({"disableBiasLinear": False}, "add_bias_linear is False there and True in the run"),
        ({"addQkvBias": True}, "add_qkv_bias is False there and True in the run (model.addQkvBias)"),
        ({"qkLayernorm": True}, "qk_layernorm is False there and True in the run (model.qkLayernorm)"),
        ({"normalization": "LayerNorm"}, "normalization is 'RMSNorm' there and 'LayerNorm' in the run"),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, dict) else "",
)
def test_a_model_that_config_json_does_not_describe_is_refused_before_training(
    changes: dict[str, Any],
    text: str,
    small_llama: Path,
    converter: WarmConverter,
    warm: WarmProcess,
    tmp_path: Path,
) -> None:
    model = {name: value for name, value in {**LLAMA.model, **changes}.items() if value is not None}
    objects = rendered_objects(spec_of(replace(LLAMA, model=model)))
    run = OwnLoopGang(tmp_path, warm, small_llama, objects)
    refused = run.convert(converter, objects.import_job)
    assert refused.code == 2, refused.output
    assert text in refused.output
    assert not (small_llama / "model-megatron").exists()


@pytest.fixture(scope="module")
def small_llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A volume with the model of the first case."""
    return write_case(LLAMA, tmp_path_factory.mktemp("llama"))


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (
            {"rope_parameters": {**LLAMA.config["rope_parameters"], "low_freq_factor": 2.0}},
            "low_freq_factor 2.0",
        ),
        (
            {"rope_parameters": {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e4}},
            "rope_type 'dynamic'",
        ),
    ],
)
def test_positions_that_megatron_does_not_have_are_refused(
    change: dict[str, Any], text: str, converter: WarmConverter, small_llama: Path, tmp_path: Path
) -> None:
    model = tmp_path / "model"
    model.mkdir()
    for file in (small_llama / "model").iterdir():
        (model / file.name).write_bytes(file.read_bytes())
    config = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps(config | change))
    refused = converter.convert("import", "--from", model, "--to", tmp_path / "out", log=tmp_path / "log")
    assert refused.code == 2, refused.output
    assert text in refused.output


def test_an_export_is_refused_for_a_base_that_is_another_model(
    converter: WarmConverter, warm: WarmProcess, small_llama: Path, tmp_path: Path
) -> None:
    spec = spec_of(LLAMA)
    del spec["init"]
    spec["export"]["huggingFace"]["base"] = "/data/model"
    spec["model"]["rotaryBase"] = 20000
    objects = rendered_objects(spec)
    run = OwnLoopGang(tmp_path, warm, small_llama, objects)
    run.save.mkdir()
    refused = run.convert(converter, objects.export_job)
    assert refused.code == 2, refused.output
    assert "rotary_base is 10000.0 there and 20000 in the run (model.rotaryBase)" in refused.output
