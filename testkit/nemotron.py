"""Small random models of Nemotron Nano 2 VL and Nemotron 3 Nano Omni, in the published folders' form."""

import json
import tempfile
from pathlib import Path
from typing import Any, Final

from testkit import image_text, sound_text
from testkit.image_models import ImageFamily
from testkit.image_text import VOCABULARY
from testkit.weights.disturbed import disturb_vectors
from testkit.weights.hybrid import NEMOTRON_3, NEMOTRON_H

OF_IMAGES: Final = "NemotronH_Nano_VL_V2"
OF_BOTH: Final = "NemotronH_Nano_Omni_Reasoning_V3"
SIDE: Final = 64
"""Pixels of a side of a tile, of which Nemotron Nano 2 VL has two in the small model; it has 12 of 512."""
_MEAN, _STD = [0.48, 0.46, 0.41], [0.27, 0.26, 0.28]


def write_vl(folder: Path, dtype: str = "bfloat16") -> Any:
    """Write a Nemotron Nano 2 VL of six layers of text and two of vision; return transformers' model."""
    tokenizer = image_text.write_tokenizer(folder, _OF_VL, "<SPECIAL_12>", "<pad>", _VL)
    own = {"vision": {"num_cls_tokens": 3, "num_registers": 13}, "force_image_size": SIDE}
    model = _write(folder, dtype, OF_IMAGES, NEMOTRON_H, tokenizer, own)
    settings = {"image_size": SIDE, "max_num_tiles": 2, "norm_mean": _MEAN, "norm_std": _STD}
    (folder / "preprocessor_config.json").write_text(json.dumps(settings))
    return model


def write_omni(folder: Path, dtype: str = "bfloat16") -> Any:
    """Write a Nemotron 3 Nano Omni of six layers of text and two each of vision and sound; return it."""
    tokenizer = image_text.write_tokenizer(folder, _OF_OMNI, "<|im_end|>", "<pad>", _OMNI)
    sound = {
        **{"model_type": "parakeet", "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2},
        **{"intermediate_size": 64, "num_mel_bins": sound_text.BINS, "subsampling_factor": 8},
        **{"projection_hidden_size": 48, "projection_bias": False, "convolution_bias": False},
        **{"conv_kernel_size": 9, "sampling_rate": sound_text.RATE},
    }
    own = {"vision": {"video_temporal_patch_size": 2, "separate_video_embedder": True}, "sound": sound}
    model = _write(folder, dtype, OF_BOTH, NEMOTRON_3, tokenizer, own)
    sizes = {"min_num_patches": 4, "max_num_patches": 24, "max_model_len": 2048}
    settings = {**sizes, "norm_mean": _MEAN, "norm_std": _STD, "patch_size": 16}
    (folder / "preprocessor_config.json").write_text(json.dumps(settings))
    return model


def _write(
    folder: Path, dtype: str, kind: str, text: dict[str, Any], tokenizer: Any, own: dict[str, Any]
) -> Any:
    """Write a model as the published folders have it: their names of settings and of weights."""
    import torch

    text = {**text, "vocab_size": VOCABULARY, "eos_token_id": tokenizer.eos_token_id}
    radio = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "mlp_ratio": 2.0}
    settings: dict[str, Any] = {
        **{"model_type": kind, "architectures": [kind], "torch_dtype": dtype},
        "auto_map": {"AutoConfig": "configuration.Code", "AutoModel": "modeling.Code"},
        "llm_config": {"model_type": "nemotron_h", "architectures": ["NemotronHForCausalLM"], **text},
        "vision_config": {
            **{"auto_map": {"AutoModel": "radio.Code"}, "args": {}, "patch_size": 16, "max_resolution": 2048},
            **radio,
            **own["vision"],
        },
        **{"vit_hidden_size": 32, "projector_hidden_size": 96, "downsample_ratio": 0.5, "ps_version": "v2"},
        "force_image_size": own.get("force_image_size", 512),
        "img_context_token_id": tokenizer.convert_tokens_to_ids("<image>"),
    }
    if sound := own.get("sound"):
        settings["sound_config"] = sound
        settings["sound_context_token_id"] = tokenizer.convert_tokens_to_ids("<so_embedding>")
    (folder / "config.json").write_text(json.dumps(settings))
    torch.manual_seed(0)
    of_transformers, config = _in_transformers(folder)
    model = of_transformers._from_config(config, attn_implementation="eager")
    disturb_vectors(model)
    with torch.no_grad():
        for name, value in model.named_parameters():
            # Published folders have none: that of transformers is to be the identity.
            if "layer_scale" in name:
                value.fill_(1)
            # Else pictures and tones would change logits by less than roundings do.
            elif not name.startswith("language_model.") and value.dim() > 1:
                value.normal_(std=0.15)
    model = model.to(getattr(torch, dtype)).eval()
    _save(model, folder)
    return model


def read(folder: Path, **options: Any) -> Any:
    """Return the model of a folder in transformers."""
    kind, config = _in_transformers(folder)
    return kind.from_pretrained(folder, config=config, attn_implementation="eager", **options).eval()


def _in_transformers(folder: Path) -> tuple[Any, Any]:
    """Return transformers' class of such models, and its configuration, which has another type."""
    import transformers
    from megatron_trainer.bridge.nemotron_config import NemotronOmniConfig

    settings = NemotronOmniConfig.from_pretrained(folder).to_dict()
    kept = {name: value for name, value in settings.items() if name not in ("model_type", "auto_map")}
    return transformers.NemotronH_Omni_Reasoning_V3, transformers.NemotronH_Omni_Reasoning_V3_Config(**kept)


def _save(model: Any, folder: Path) -> None:
    """Write the weights by the names of the published folders, with those that are no part of the model.

    They are in transformers' order, which has the names of the folders, and layers that they lack.
    """
    import torch
    from safetensors.torch import load_file, save_file

    with tempfile.TemporaryDirectory() as other:
        model.save_pretrained(other)
        weights = load_file(Path(other) / "model.safetensors")
    takes_sound = model.audio_tower is not None
    left_out = ("layer_scale",) if takes_sound else ("layer_scale", "video_embedder")
    weights = {name: value for name, value in weights.items() if not any(x in name for x in left_out)}
    radio = "vision_model.radio_model.input_conditioner"
    for name, values in ((f"{radio}.norm_mean", _MEAN), (f"{radio}.norm_std", _STD)):
        weights[name] = torch.tensor(values).view(3, 1, 1)
    if takes_sound:
        weights["sound_encoder.encoder.feature_extractor.featurizer.window"] = torch.hann_window(400)
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})


_OF_VL: Final = (
    *("<pad>", "<SPECIAL_10>", "<SPECIAL_11>", "<SPECIAL_12>", "<image>", "<img>", "</img>"),
    *("<think>", "</think>"),
)
_VL: Final = (
    "{% for m in messages %}{% if m['role'] == 'assistant' %}<SPECIAL_11>Assistant\n<think></think>"
    "{{ m['content'] }}\n<SPECIAL_12>\n{% else %}<SPECIAL_11>User\n{{ m['content'] }}\n{% endif %}"
    "{% endfor %}"
)
_OF_OMNI: Final = (
    *("<pad>", "<|im_start|>", "<|im_end|>", "<image>", "<img>", "</img>", "<think>", "</think>"),
    *("<so_embedding>", "<so_start>", "<so_end>"),
)
_OMNI: Final = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n"
    "{% if m['role'] == 'assistant' %}<think></think>{% endif %}{{ m['content'] }}<|im_end|>\n{% endfor %}"
)
FAMILIES: Final = {
    family.name: family
    for family in (
        ImageFamily("Nemotron Nano 2 VL", OF_IMAGES, write_vl, "\n<SPECIAL_12>"),
        ImageFamily("Nemotron 3 Nano Omni", OF_BOTH, write_omni, "<|im_end|>\n"),
    )
}
"""By name."""
