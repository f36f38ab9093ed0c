"""A recipe function that asks for code of a model's folder gets the class of transformers."""

import json
from pathlib import Path

import pytest
import transformers
from megatron_trainer.bridge import configuration


def test_code_of_the_models_folder_is_not_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = {"model_type": "minimax_m3_vl", "auto_map": {"AutoConfig": "configuration.Code"}}
    (tmp_path / "config.json").write_text(json.dumps(settings))
    (tmp_path / "configuration.py").write_text("raise AssertionError('code of the folder was run')\n")
    monkeypatch.setattr(transformers.AutoConfig, "from_pretrained", transformers.AutoConfig.from_pretrained)
    configuration._answer_from(tmp_path)

    found = transformers.AutoConfig.from_pretrained("a name of the hub", trust_remote_code=True)

    assert isinstance(found, transformers.MiniMaxM3VLConfig)
