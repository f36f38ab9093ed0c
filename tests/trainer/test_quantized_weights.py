"""Folders whose weights are in 8 or 4 bits, as published ones are: imported and exported as their values."""

import importlib.util
import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from megatron_trainer.weights import huggingface_folder
from megatron_trainer.weights.audit import AUDIT_FILE
from megatron_trainer.weights.tensors import records

from testkit.image_models import write_ministral3
from testkit.kimi import write_kimi_k25
from testkit.weights import few_bits
from testkit.weights.families import by_name, write_model
from testkit.weights.warm import WarmConverter

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("modelopt") is None,
    reason="what Megatron-Bridge imports is not installed: run make bridge-training",
)


def _family(name: str) -> Callable[[Path], Any]:
    return partial(write_model, by_name(name), dtype="bfloat16")


@pytest.mark.parametrize(
    ("kind", "write"),
    [
        pytest.param("blocks", _family("DeepSeek-V3"), id="DeepSeek-V3"),
        pytest.param("blocks", _family("Kimi-K2"), id="Kimi-K2"),
        pytest.param("blocks", _family("MiniMax-M2"), id="MiniMax-M2"),
        pytest.param("blocks", _family("Qwen3"), id="Qwen3"),
        pytest.param("one factor", write_ministral3, id="Ministral 3"),
        pytest.param("DeepSeek-V4", _family("DeepSeek-V4"), id="DeepSeek-V4"),
        pytest.param("mxfp4", _family("GPT-OSS"), id="GPT-OSS"),
        pytest.param("integers", write_kimi_k25, id="Kimi-K2.5"),
    ],
)
def test_weights_in_few_bits_are_imported_and_exported_as_their_values(
    converter: WarmConverter, tmp_path: Path, kind: str, write: Callable[[Path], Any]
) -> None:
    write(tmp_path / "model")
    values = few_bits.store(tmp_path / "model", tmp_path, kind)
    imported, exported = tmp_path / "imported", tmp_path / "exported"
    stored = tmp_path / "stored"
    ended = converter.convert("import", "--from", stored, "--to", imported, log=tmp_path / "log")
    assert (ended.code, "of them dequantized" in ended.output) == (0, True), ended.output
    audit = json.loads((imported / AUDIT_FILE).read_text())
    assert 4 <= len(audit["dequantized"]) < len(audit["tensors"])

    # By Megatron-Bridge's functions, as testkit.weights.few_bits has them.
    expected = records(huggingface_folder.read(values, "", weights=True).tensors())
    found = {name: (tensor["shape"], tensor["sha256"]) for name, tensor in audit["tensors"].items()}
    assert found == {name: (list(record.shape), record.sha256) for name, record in expected.items()}

    ended = converter.convert("export", "--from", imported, "--to", exported, log=tmp_path / "log")
    assert ended.code == 0, ended.output
    assert records(huggingface_folder.read(exported, "", weights=True).tensors()) == expected
    config = json.loads((exported / "config.json").read_text())
    assert "quantization_config" not in config | config.get("text_config", {})
