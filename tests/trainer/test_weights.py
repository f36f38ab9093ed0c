"""`megatron-convert`: small random models in, the same logits, out again bit for bit."""

import importlib.util
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from megatron_trainer.bridge.weights_record import digest
from megatron_trainer.weights import huggingface_folder
from megatron_trainer.weights.audit import AUDIT_FILE
from megatron_trainer.weights.tensors import records
from safetensors.torch import load_file, save_file

from testkit.weights.large import write_experts, write_llama
from testkit.weights.warm import WarmConverter

CLOSE = 1e-6
"""Of logits up to 1, in float32. One weight that is changed by 0.1 changes them by 1e-2."""
pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("modelopt") is None,
    reason="what Megatron-Bridge imports is not installed: run make bridge-training",
)


@pytest.fixture(scope="module")
def proven(converter: WarmConverter, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folders of a Llama's proof: source, imported, exported."""
    folder = tmp_path_factory.mktemp("llama")
    proof = converter.prove("Llama, tied embedding", "float32", folder)
    assert proof.get("largest_difference", 1.0) < CLOSE, proof
    assert proof["identical_files"]
    assert_complete(proof["progress"])
    return folder


def assert_complete(progress: list[list[Any]]) -> None:
    """Each step of import and export has counted all tensors and bytes, and no more, when it ends."""
    assert [step for step, *_ in progress] == ["convert", "audit"] * 2
    for _, tensors, all_tensors, size, all_bytes in progress:
        assert (tensors, size) == (all_tensors, all_bytes)
        assert tensors > 1


def test_experts_convert_with_the_same_logits_and_back_bit_for_bit(
    converter: WarmConverter, tmp_path: Path
) -> None:
    proof = converter.prove("Qwen3-MoE", "float32", tmp_path)
    assert proof.get("largest_difference", 1.0) < CLOSE, proof
    assert proof["identical_files"]
    assert_complete(proof["progress"])


def test_weights_in_bfloat16_stay_in_bfloat16(converter: WarmConverter, tmp_path: Path) -> None:
    proof = converter.prove("DeepSeek-V3 without MTP", "bfloat16", tmp_path)
    assert proof.get("identical_files"), proof
    audit = json.loads((tmp_path / "imported" / AUDIT_FILE).read_text())
    dtypes = {tensor["dtype"] for tensor in audit["tensors"].values()}
    assert "bfloat16" in dtypes


def test_a_tied_output_layer_is_recorded_once(proven: Path) -> None:
    for name in ("imported", "exported"):
        audit = json.loads((proven / name / AUDIT_FILE).read_text())
        assert audit["passed"]
        assert audit["tied"] == {"expected": True, "found": True}
    assert "lm_head.weight" not in huggingface_folder.read(proven / "exported", "", weights=True).headers


def test_the_checkpoint_describes_bridge_s_model_and_not_the_machine_that_converted(proven: Path) -> None:
    text = (proven / "imported" / "release" / "run_config.yaml").read_text()
    assert "transformer_impl: transformer_engine" in text
    assert "use_cpu_initialization: false" in text
    assert str(proven) not in text


def test_transformers_files_come_back_byte_for_byte(proven: Path) -> None:
    for file in ("config.json", "tokenizer.json", "tokenizer_config.json"):
        assert (proven / "exported" / file).read_bytes() == (proven / "source" / file).read_bytes()


@pytest.mark.parametrize(
    ("command", "source", "target"), [("import", "source", "imported"), ("export", "imported", "exported")]
)
def test_a_destination_that_exists_is_kept_if_it_is_the_same_model(
    converter: WarmConverter, proven: Path, tmp_path: Path, command: str, source: str, target: str
) -> None:
    before = {path: path.stat().st_mtime_ns for path in (proven / target).rglob("*")}
    words = [command, "--from", proven / source, "--to", proven / target, "--reuse"]
    ended = converter.convert(*words, log=tmp_path / "log")
    assert (ended.code, "audit passed" in ended.output) == (0, True), ended.output
    assert {path: path.stat().st_mtime_ns for path in (proven / target).rglob("*")} == before


def test_an_import_is_kept_where_the_model_s_folder_has_a_chat_template_since(
    converter: WarmConverter, proven: Path, tmp_path: Path
) -> None:
    shutil.copytree(proven / "source", tmp_path / "model")
    (tmp_path / "model" / "chat_template.jinja").write_text("{{ messages }}")
    words = ["import", "--from", tmp_path / "model", "--to", proven / "imported", "--reuse"]
    ended = converter.convert(*words, log=tmp_path / "log")
    assert (ended.code, "audit passed" in ended.output) == (0, True), ended.output


def test_the_weights_of_another_layout_beside_those_of_transformers_are_not_imported(
    converter: WarmConverter, proven: Path, tmp_path: Path
) -> None:
    shutil.copytree(proven / "source", tmp_path / "model")
    others = load_file(tmp_path / "model" / "model.safetensors")
    others = {name: tensor + 1 for name, tensor in others.items()} | {"norm.weight": torch.ones(2)}
    save_file(others, tmp_path / "model" / "consolidated.safetensors")
    words = ["import", "--from", tmp_path / "model", "--to", tmp_path / "imported"]
    ended = converter.convert(*words, log=tmp_path / "log")
    assert (ended.code, "audit passed" in ended.output) == (0, True), ended.output
    assert digest(tmp_path / "imported") == digest(proven / "imported")


def test_an_import_that_is_repeated_has_the_digest_that_runs_have_recorded(
    converter: WarmConverter, proven: Path, tmp_path: Path
) -> None:
    words = ["import", "--from", proven / "source", "--to", tmp_path / "again"]
    ended = converter.convert(*words, log=tmp_path / "log")
    assert ended.code == 0, ended.output
    assert digest(tmp_path / "again") == digest(proven / "imported")


def test_a_destination_that_exists_with_another_model_is_refused(
    converter: WarmConverter, proven: Path, tmp_path: Path
) -> None:
    changed, name = load_file(proven / "source" / "model.safetensors"), "model.layers.1.mlp.up_proj.weight"
    changed[name][0, 0] += 0.1
    shutil.copytree(proven / "source", tmp_path / "model")
    save_file(changed, tmp_path / "model" / "model.safetensors", metadata={"format": "pt"})
    words = ["import", "--from", tmp_path / "model", "--to", proven / "imported", "--reuse"]
    ended = converter.convert(*words, log=tmp_path / "log")
    assert ended.code == 2
    assert "holds other weights than" in ended.output
    assert name in ended.output


def test_the_audit_finds_one_changed_value(converter: WarmConverter, proven: Path, tmp_path: Path) -> None:
    changed, name = load_file(proven / "source" / "model.safetensors"), "model.layers.1.mlp.up_proj.weight"
    changed[name][3, 5] += 0.001
    huggingface_folder.copy_small_files(proven / "source", tmp_path / "changed")
    save_file(changed, tmp_path / "changed" / "model.safetensors")

    for source, target in (
        (tmp_path / "changed", proven / "imported"),
        (tmp_path / "changed", proven / "exported"),
    ):
        ended = converter.convert("audit", "--from", source, "--to", target, log=tmp_path / "log")
        assert (ended.code, f"{name} has other values" in ended.output) == (1, True), ended.output
    unchanged = converter.convert(
        "audit", "--from", proven / "imported", "--to", proven / "exported", log=tmp_path / "log"
    )
    assert (unchanged.code, "audit passed" in unchanged.output) == (0, True), unchanged.output
    damaged = converter.convert(
        "audit", "--from", proven / "imported", "--to", tmp_path / "changed", log=tmp_path / "log"
    )
    # In Megatron's layout gate and up are one tensor.
    assert "decoder.layers.1.mlp.linear_fc1.weight has other values" in damaged.output


def test_weights_that_do_not_fit_the_configuration_leave_nothing(
    converter: WarmConverter, proven: Path, tmp_path: Path
) -> None:
    source = tmp_path / "source"
    huggingface_folder.copy_small_files(proven / "source", source)
    tensors = load_file(proven / "source" / "model.safetensors")
    del tensors["model.layers.0.mlp.down_proj.weight"]
    save_file(tensors, source / "model.safetensors")

    ended = converter.convert("import", "--from", source, "--to", tmp_path / "out", log=tmp_path / "log")

    assert ended.code == 2, ended.output
    assert "do not fit its config.json" in ended.output
    assert sorted(path.name for path in tmp_path.iterdir()) == ["log", "source"]


def test_a_weight_that_is_not_a_number_is_refused_while_the_checkpoint_is_written(
    converter: WarmConverter, proven: Path, tmp_path: Path
) -> None:
    source = tmp_path / "source"
    huggingface_folder.copy_small_files(proven / "source", source)
    tensors = load_file(proven / "source" / "model.safetensors")
    tensors["model.layers.1.mlp.down_proj.weight"][2, 3] = float("nan")
    save_file(tensors, source / "model.safetensors")

    ended = converter.convert("import", "--from", source, "--to", tmp_path / "out", log=tmp_path / "log")

    assert ended.code == 2, ended.output
    assert "decoder.layers.1.mlp.linear_fc2.weight would have values that are not numbers" in ended.output
    assert sorted(path.name for path in tmp_path.iterdir()) == ["log", "source"]


@pytest.mark.parametrize(
    ("setting", "problem"),
    [
        (
            {"vocab_size": 300},
            "embedding.word_embeddings.weight has shape [256, 64], config.json needs [300, 64]",
        ),
        (
            {"num_hidden_layers": 1},
            "decoder.layers.mlp.linear_fc2.weight has shape [2, 64, 128], config.json needs [1, 64, 128]",
        ),
    ],
    ids=["fewer rows of vocabulary", "a deeper model"],
)
def test_a_checkpoint_of_another_size_than_its_base_is_refused(
    setting: dict[str, int], problem: str, converter: WarmConverter, proven: Path, tmp_path: Path
) -> None:
    base = tmp_path / "base"
    huggingface_folder.copy_small_files(proven / "source", base)
    config = json.loads((base / "config.json").read_text())
    (base / "config.json").write_text(json.dumps(config | setting))

    ended = converter.convert(
        *("export", "--from", proven / "imported", "--to", tmp_path / "out", "--base", base),
        log=tmp_path / "log",
    )

    assert ended.code == 2, ended.output
    assert ended.output.count(problem) == 1
    assert not (tmp_path / "out").exists()


def test_a_truncated_checkpoint_is_refused(converter: WarmConverter, proven: Path, tmp_path: Path) -> None:
    broken = tmp_path / "broken"
    shutil.copytree(proven / "imported", broken)
    shard = next((broken / "release").glob("*.distcp"))
    shard.write_bytes(shard.read_bytes()[:-100])

    ended = converter.convert("export", "--from", broken, "--to", tmp_path / "out", log=tmp_path / "log")

    assert ended.code == 2, ended.output
    assert "is not a complete checkpoint in the format torch_dist" in ended.output
    assert not (tmp_path / "out").exists()


def test_a_vocabulary_that_a_run_pads_comes_back_without_padding(
    converter: WarmConverter, tmp_path: Path
) -> None:
    ended = converter.prove_padded(tmp_path)
    assert ended.code == 0, ended.output


def test_an_exported_folder_has_the_source_s_tensors(proven: Path) -> None:
    source, exported = (
        records(huggingface_folder.read(proven / name, "", weights=True).tensors())
        for name in ("source", "exported")
    )
    assert exported == source


@pytest.mark.parametrize("family", ["Qwen3-MoE", "GPT-OSS"])
def test_an_imported_checkpoint_is_what_megatron_writes_byte_for_byte(
    converter: WarmConverter, tmp_path: Path, family: str
) -> None:
    ended = converter.prove_written(family, tmp_path)
    assert ended.code == 0, ended.output


def test_conversions_hold_some_tensors_in_memory_and_not_the_model(
    converter: WarmConverter, tmp_path: Path
) -> None:
    source, imported, exported = (tmp_path / name for name in ("source", "imported", "exported"))
    size = write_llama(source, hidden=1024, layers=16, file_bytes=100 << 20)
    commands = {
        "import": ("import", "--from", source, "--to", imported),
        "export": ("export", "--from", imported, "--to", exported),
        "audit of the import": ("audit", "--from", source, "--to", imported),
        "audit of the export": ("audit", "--from", imported, "--to", exported),
        "audit of two folders": ("audit", "--from", source, "--to", exported),
    }
    peaks = {name: converter.peak(*words, log=tmp_path / "log") / size for name, words in commands.items()}
    assert max(peaks.values()) < 0.4, peaks


def test_adapters_are_merged_one_after_the_other(converter: WarmConverter, tmp_path: Path) -> None:
    source, imported, run = (tmp_path / name for name in ("source", "imported", "run"))
    write_llama(source, hidden=512, layers=40)
    assert converter.convert("import", "--from", source, "--to", imported, log=tmp_path / "log").code == 0
    size = converter.write_adapters(imported, run, 384)
    words = ("export", "--from", run, "--to", tmp_path / "exported", "--base", source)
    assert size == 300 << 20
    assert converter.peak(*words, log=tmp_path / "log") / size < 0.4


def test_experts_that_share_a_tensor_take_the_memory_of_their_layer(
    converter: WarmConverter, tmp_path: Path
) -> None:
    source, imported = tmp_path / "source", tmp_path / "imported"
    size = write_experts(
        source,
        hidden=512,
        layers=16,
        vocabulary=256,
        experts=8,
        width=1024,
        file_bytes=100 << 20,
        joined=True,
    )
    commands = {
        "import": ("import", "--from", source, "--to", imported),
        "export": ("export", "--from", imported, "--to", tmp_path / "exported"),
    }
    peaks = {name: converter.peak(*words, log=tmp_path / "log") / size for name, words in commands.items()}
    assert max(peaks.values()) < 0.4, peaks
