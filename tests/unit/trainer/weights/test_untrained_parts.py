"""Tensors that a model in Megatron does not have, and that an export takes from the base's folder."""

import json
from pathlib import Path

import pytest
from megatron_trainer.weights import checkpoint, conversion, untrained_parts
from megatron_trainer.weights.conversion_error import ConversionError
from megatron_trainer.weights.huggingface_folder import HuggingFaceFolder
from megatron_trainer.weights.tensors import Header

OMNI = "Qwen3OmniMoeForConditionalGeneration"
NAMES = ("code2wav.decoder.weight", "talker.model.norm.weight", "thinker.model.norm.weight")


def folder(architecture: str = OMNI, *, weights: bool = True, **config: bool) -> HuggingFaceFolder:
    file = Path("model.safetensors") if weights else None
    headers = {name: Header(file, (4,), "bfloat16") for name in NAMES}
    return HuggingFaceFolder(Path("model"), {"architectures": [architecture], **config}, headers)


def test_what_speaks_is_left_out_of_what_is_converted() -> None:
    assert set(untrained_parts.without(folder()).headers) == {"thinker.model.norm.weight"}


def test_layers_of_prediction_of_step_3_7_are_left_out_of_what_is_converted() -> None:
    names = ["model.layers.1.mlp.up_proj.weight", *(f"model.layers.{n}.enorm.weight" for n in (2, 3))]
    headers = {name: Header(Path("model.safetensors"), (4,), "bfloat16") for name in names}
    text = {"num_hidden_layers": 2, "num_nextn_predict_layers": 2}
    config = {"architectures": ["Step3p7ForConditionalGeneration"], "text_config": text}
    model = HuggingFaceFolder(Path("model"), config, headers)

    assert list(untrained_parts.without(model).headers) == names[:1]
    with pytest.raises(ConversionError, match=r"model.layers.2 and model.layers.3 of .*: --base FOLDER"):
        untrained_parts.require(HuggingFaceFolder(Path("model"), config, {}))


def test_radios_normalization_is_left_out_beside_its_layers() -> None:
    names = ("vision_model.radio_model.input_conditioner.norm_mean", "vision_model.radio_model.model.norm")
    headers = {name: Header(Path("model.safetensors"), (3, 1, 1), "float32") for name in names}
    read = HuggingFaceFolder(Path("model"), {"architectures": ["NemotronH_Nano_VL_V2"]}, headers)

    assert list(untrained_parts.without(read).headers) == ["vision_model.radio_model.model.norm"]


def test_other_models_are_converted_whole() -> None:
    whole = folder("Qwen3ForCausalLM")
    assert untrained_parts.without(whole) == whole
    assert list(untrained_parts.tensors(whole)) == []


def test_an_export_requires_the_weights_of_what_speaks() -> None:
    untrained_parts.require(folder())
    with pytest.raises(ConversionError, match=r"talker and code2wav of .*: --base FOLDER"):
        untrained_parts.require(folder(weights=False))


def test_an_export_of_a_model_that_does_not_speak_requires_none() -> None:
    untrained_parts.require(folder(weights=False, enable_audio_output=False))
    untrained_parts.require(folder("Qwen3ForCausalLM", weights=False))


@pytest.mark.parametrize("with_base", [False, True])
def test_an_audit_of_an_export_asks_for_the_base_that_the_export_took(
    with_base: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpoint, "find", lambda folder, _flag: folder)
    source, base, target = (tmp_path / name for name in ("checkpoint", "base", "exported"))
    for each in (source / checkpoint.SOURCE_FOLDER, base, target):
        each.mkdir(parents=True)
        (each / "config.json").write_text(json.dumps({"architectures": [OMNI]}))
    with pytest.raises(ConversionError, match=r"talker and code2wav of .*: --base FOLDER"):
        conversion.audit(source, target, base if with_base else None)
