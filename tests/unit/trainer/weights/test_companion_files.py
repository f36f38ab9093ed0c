"""What a folder that exists must have beside its weights to be taken for the same model."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from megatron_trainer.weights import companion_files


@pytest.fixture
def base(tmp_path: Path) -> Path:
    folder = tmp_path / "base"
    folder.mkdir()
    config = {"vocab_size": 8, "torch_dtype": "float32", "text_config": {"rope_theta": 1e4}}
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "tokenizer.json").write_text("{}")
    (folder / "README.md").write_text("a model card")
    (folder / "model.safetensors").write_bytes(b"weights")
    return folder


def converted(base: Path, **config: Any) -> Path:
    folder = base.with_name("converted")
    shutil.copytree(base, folder)
    described = json.loads((folder / "config.json").read_text()) | config
    (folder / "config.json").write_text(json.dumps(described, indent=2))
    return folder


def test_what_a_conversion_writes_itself_may_differ(base: Path) -> None:
    written = {"torch_dtype": "bfloat16", "quantization_config": {"quant_method": "fp8"}}
    folder = converted(base, **written)
    (folder / "README.md").write_text("another card")
    (folder / "model.safetensors").write_bytes(b"other weights, which the audit compares")
    (folder / "generation_config.json").write_text("{}")
    assert companion_files.differing(base, folder) == []


@pytest.mark.parametrize("value", [{"vocab_size": 9}, {"text_config": {"rope_theta": 1e6}}, {"added": 1}])
def test_another_configuration_is_named(base: Path, value: dict[str, Any]) -> None:
    assert companion_files.differing(base, converted(base, **value)) == ["config.json"]


def test_another_tokenizer_and_a_missing_template_are_named(base: Path) -> None:
    folder = converted(base)
    (base / "chat_template.jinja").write_text("{{ messages }}")
    (folder / "tokenizer.json").write_text('{"added_tokens": []}')
    assert companion_files.differing(base, folder) == ["chat_template.jinja", "tokenizer.json"]
