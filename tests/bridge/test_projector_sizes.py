"""Sizes of projectors in the catalog: those of the towers that transformers builds."""

import pytest
import torch
import transformers
from sizes import CATALOG, architecture, qwen_vision
from transformers.models.qwen3_5.modeling_qwen3_5 import Qwen3_5VisionModel
from transformers.models.qwen3_vl.modeling_qwen3_vl import Qwen3VLVisionModel

ALIGNED = [entry.name for entry in CATALOG if entry.aligns_projector]


@pytest.mark.parametrize("name", ALIGNED)
def test_a_recipe_that_trains_the_projector_knows_its_parameters(name: str) -> None:
    model = architecture(name)
    tower = model.tower
    assert tower is not None
    vision = qwen_vision(model)
    if tower.deepstack_layers:
        vision |= {"deepstack_visual_indexes": [8, 16, 24]}
        config = transformers.Qwen3VLConfig(vision_config=vision).vision_config
    else:
        config = transformers.Qwen3_5Config(vision_config=vision).vision_config
    with torch.device("meta"):
        built = (Qwen3VLVisionModel if tower.deepstack_layers else Qwen3_5VisionModel)._from_config(config)
    sizes = {part: weight.numel() for part, weight in built.named_parameters()}

    assert sum(sizes.values()) == tower.parameters
    assert sum(size for part, size in sizes.items() if "merger" in part) == tower.projector_parameters
