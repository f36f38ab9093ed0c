"""Why vision-language models are refused: what Megatron-Bridge or transformers lacks."""

import re

import pytest
from megatron_operator.catalog import bridge_support

from tests.bridge.packages import folder


def test_published_nemotrons_of_images_and_sound_have_a_type_that_transformers_does_not_know() -> None:
    models = folder("transformers") / "models"
    own = models / "nemotron_h_omni" / "configuration_nemotron_h_omni.py"
    bridge = folder("megatron.bridge") / "models" / "nemotron_omni" / "nemotron_omni_bridge.py"
    assert 'model_type = "nemotron_h_omni"' in own.read_text()
    assert '"llm_config": "text_config"' in own.read_text()
    assert "llm_config = hf_config.llm_config" in bridge.read_text()
    for architecture in ("NemotronH_Nano_VL_V2", "NemotronH_Nano_Omni_Reasoning_V3"):
        assert not [file for file in models.glob("*/*.py") if f'"{architecture}"' in file.read_text()]


@pytest.mark.parametrize("mode", ["sft", "peft"])
def test_functions_that_train_the_embedder_of_videos_of_nemotron_omni_are_not_started(mode: str) -> None:
    name = f"nemotron_omni_valor32k_{mode}_4gpu_h100_bf16_config"
    recipe = folder("megatron.bridge") / "recipes" / "nemotron_omni" / "h100" / "nemotron_omni.py"
    body = recipe.read_text().partition(f"def {name}(")[2].partition("return cfg")[0]
    assert "cfg.model.separate_video_embedder = True" in body
    assert "embedder of videos" in bridge_support.OF_FUNCTION[name]


def test_bridge_takes_the_vision_tower_of_kimi_from_the_models_folder_and_transformers_has_one() -> None:
    model = folder("megatron.bridge") / "models" / "kimi_vl" / "modeling_kimi_k25_vl.py"
    of_transformers = folder("transformers") / "models" / "kimi_k25" / "modeling_kimi_k25.py"
    assert "vision components require loading custom HuggingFace model code" in model.read_text()
    assert "class Kimi_K25VisionModel(" in of_transformers.read_text()


@pytest.mark.parametrize("processor", ["Exaone4_5_Processor", "MiniMaxM3VLProcessor", "Step3p7Processor"])
def test_bridge_has_no_collator_for_processors_whose_batches_are_the_trainers(processor: str) -> None:
    registry = (folder("megatron.bridge") / "data" / "collators" / "registry.py").read_text()
    assert '"Gemma3Processor"' in registry
    assert processor not in registry


@pytest.mark.parametrize("family", ["qwen3_vl", "qwen35_vl"])
def test_the_functions_that_pretrain_a_qwen_with_a_tower_train_its_projector_on_images_that_are_replaced(
    family: str,
) -> None:
    text = (folder("megatron.bridge") / "recipes" / "qwen_vl" / "h100" / f"{family}.py").read_text()
    functions = dict(re.findall(r"^def (\w+_pretrain_\w+)\(.*?$(.*?)^    return cfg$", text, re.M | re.S))

    assert functions
    for name, body in functions.items():
        assert name.endswith("_mock_config")
        assert "to_megatron_provider(load_weights=False)" in body
        assert "cfg.dataset = MockVLMSFTDatasetConfig(" in body
        frozen = {part: value == "True" for part, value in re.findall(r"model\.freeze_(\w+) = (\w+)", body)}
        assert frozen == {"language_model": True, "vision_model": True, "vision_projection": False}
        assert bridge_support.aligns_projector(name)
        # Bridge copies both over those of `validation`; the trainer clears them.
        assert "cfg.train.eval_interval = 500" in body
        assert "cfg.train.eval_iters = 32" in body
