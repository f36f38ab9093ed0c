"""Towers that Megatron-Bridge builds of Megatron's own layers have the catalog's number of parameters."""

from typing import Any

import torch
import transformers
from megatron.core.models.vision.multimodal_projector import MultimodalProjector
from megatron.core.models.vision.radio import RADIOViTModel
from megatron.core.models.vision.vit_layer_specs import get_vit_layer_with_local_spec
from megatron.core.tensor_parallel import ColumnParallelLinear, RowParallelLinear
from megatron.core.transformer.mlp import MLPSubmodules
from megatron.core.transformer.transformer_config import TransformerConfig
from megatron_operator import catalog
from megatron_operator.catalog.architecture import Architecture, TowerSpec
from stages import Megatron
from test_hybrid_sizes import start

CATALOG = catalog.load()
PIXEL_SHUFFLE = 4
"""Patches whose features the projector reads at once."""


def counted(module: torch.nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


def config(**sizes: Any) -> TransformerConfig:
    return TransformerConfig(
        **sizes,
        perform_initialization=False,
        use_cpu_initialization=True,
        gradient_accumulation_fusion=False,
        persist_layer_norm=False,
    )


def radio(tower: TowerSpec, **options: Any) -> int:
    """Of RADIO as `NemotronVLModelProvider` builds it."""
    own = config(
        num_layers=tower.layers,
        hidden_size=tower.hidden_size,
        ffn_hidden_size=tower.ffn_hidden_size,
        num_attention_heads=tower.num_attention_heads,
    )
    layers = get_vit_layer_with_local_spec()
    return counted(RADIOViTModel(own, layers, img_h=512, img_w=512, patch_dim=16, **options))


def projector(inputs: int, width: int, outputs: int) -> int:
    """Two products without biases behind a norm, which Transformer Engine has in the first product."""
    own = config(
        num_layers=1,
        hidden_size=outputs,
        ffn_hidden_size=width,
        num_attention_heads=1,
        add_bias_linear=False,
    )
    products = MLPSubmodules(linear_fc1=ColumnParallelLinear, linear_fc2=RowParallelLinear)
    return inputs + counted(MultimodalProjector(own, products, "mlp", inputs))


def vision(model: Architecture, **options: Any) -> tuple[int, int]:
    """Parameters of RADIO, and of its projector."""
    assert model.tower is not None
    assert model.hidden_size is not None
    features = PIXEL_SHUFFLE * model.tower.hidden_size
    return radio(model.tower, **options), projector(features, 20480, model.hidden_size)


def test_radio_of_nemotron_nano_2_vl(megatron: Megatron) -> None:
    start(megatron)
    model = CATALOG.get("nemotron-nano2-vl-12b-sft").model
    with torch.device("meta"):
        parts = vision(model, class_token_len=16)
    assert model.tower is not None
    assert model.tower.parameters == sum(parts)
    assert model.tower.trained_parameters is None


def test_radio_and_parakeet_of_nemotron_3_nano_omni(megatron: Megatron) -> None:
    """The encoders are frozen and the projectors trained; frames of a video are encoded in pairs."""
    start(megatron)
    model = CATALOG.get("nemotron3-nano-omni-30b-a3b-sft").model
    tower, sound = model.tower, model.sound_tower
    assert tower is not None
    assert sound is not None
    assert model.hidden_size is not None
    parakeet = transformers.ParakeetEncoderConfig(
        hidden_size=sound.hidden_size,
        num_hidden_layers=sound.layers,
        num_attention_heads=sound.num_attention_heads,
        intermediate_size=sound.ffn_hidden_size,
        num_mel_bins=128,
        attention_bias=False,
        convolution_bias=False,
    )
    with torch.device("meta"):
        encoder, projected = vision(
            model, class_token_len=10, temporal_patch_dim=2, separate_video_embedder=True
        )
        heard = counted(transformers.ParakeetEncoder(parakeet))
        spoken = projector(sound.hidden_size, 4096, model.hidden_size)
    assert (tower.parameters, tower.trained_parameters) == (encoder + projected, projected)
    assert (sound.parameters, sound.trained_parameters) == (heard + spoken, spoken)
