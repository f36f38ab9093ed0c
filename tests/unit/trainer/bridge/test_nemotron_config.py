"""config.json of Nemotron Nano 2 VL and Nemotron 3 Nano Omni, as the published folders have it."""

import json
from pathlib import Path
from typing import Any

import pytest
from megatron_trainer.bridge import nemotron_config
from transformers import AutoConfig

TEXT = {"model_type": "nemotron_h", "hidden_size": 64, "hybrid_override_pattern": "MEM*ME", "auto_map": {}}
RADIO = {"args": {"model": "vit_huge_patch16_224"}, "auto_map": {"AutoModel": "radio.Code"}, "patch_size": 16}
SOUND = {"model_type": "parakeet", "hidden_size": 32, "num_mel_bins": 128, "projection_hidden_size": 48}
CODE = "raise AssertionError('code of the folder was run')\n"


def write(folder: Path, kind: str, **settings: Any) -> str:
    """Write a folder whose configuration is code, as published ones are."""
    auto_map = {"AutoConfig": "configuration.Code", "AutoModel": "modeling.Code"}
    parts = {"llm_config": TEXT, "vision_config": RADIO}
    known = {"model_type": kind, "architectures": [kind], "auto_map": auto_map, "img_context_token_id": 18}
    (folder / "config.json").write_text(json.dumps(known | parts | settings))
    (folder / "configuration.py").write_text(CODE)
    return str(folder)


@pytest.fixture(autouse=True)
def registered() -> None:
    nemotron_config.install()


@pytest.mark.parametrize("kind", [nemotron_config.OF_IMAGES, nemotron_config.OF_BOTH])
def test_settings_are_read_by_the_names_that_bridge_reads_and_no_code_is_run(
    kind: str, tmp_path: Path
) -> None:
    found = AutoConfig.from_pretrained(write(tmp_path, kind), trust_remote_code=True)

    assert type(found).__module__ == nemotron_config.__name__
    assert found.llm_config.hybrid_override_pattern == "MEM*ME"
    assert (found.img_context_token_id, found.sound_config) == (18, None)
    assert (found.vision_config.hidden_size, found.vision_config.num_hidden_layers) == (1280, 32)


def test_sound_is_read_whatever_type_its_part_has(tmp_path: Path) -> None:
    folder = write(tmp_path, nemotron_config.OF_BOTH, sound_config=SOUND, sound_context_token_id=27)
    found = AutoConfig.from_pretrained(folder)

    assert (found.sound_context_token_id, found.sound_config.projection_hidden_size) == (27, 48)
    assert (found.sound_config.attention_bias, found.sound_config.scale_input) == (False, False)


def test_settings_without_names_of_tensors_come_back(tmp_path: Path) -> None:
    found = AutoConfig.from_pretrained(write(tmp_path, nemotron_config.OF_BOTH, sound_config=SOUND))
    found.state = {"mlp1.0.weight": None}

    again = type(found).from_dict(found.to_dict())

    assert again.sound_config.num_mel_bins == 128
    assert "state" not in found.to_dict()
