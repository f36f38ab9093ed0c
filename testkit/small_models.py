"""The small model that stands for each recipe which the operator starts by Megatron-Bridge.

Layers, widths, experts and vocabulary are few; the parts of a layer, ties, prediction and towers are those of
the recipe's family.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Final

from megatron_operator.catalog import Entry

from testkit import image_models, image_text, nemotron, omni_text, pretrained, small_diffusion, sound_models
from testkit.image_models import ImageFamily
from testkit.weights.families import OLMOE_OF_BRIDGE, VOCABULARY, by_name, write_model
from testkit.weights.hybrid import HYBRID_OF_BRIDGE

type Overrides = Mapping[str, Any]


@dataclass(frozen=True)
class SmallModel:
    """A model by its name among the small ones."""

    name: str
    write: Callable[[Path], Any] | None = None
    """Writes the model that a run starts from, or the configuration that its function reads."""
    overrides: Overrides = field(default_factory=dict)
    """Of Bridge's configuration, of a function that has the architecture itself."""
    sizes: Overrides = field(default_factory=dict)
    """`model` of the recipe, of a function that leaves the architecture to it."""


_OLMOE: Final = {**OLMOE_OF_BRIDGE, "model.vocab_size": VOCABULARY}
_FINE_TUNED: Final[tuple[tuple[str, str, Overrides], ...]] = (
    (r"llama3\.\d-nemotron", "Llama-Nemotron", {}),
    (r"llama", "Llama", {}),
    (r"qwen2-audio", "Qwen2-Audio", {}),
    (r"qwen2\.5-vl", "Qwen2.5-VL", {}),
    (r"qwen2", "Qwen2", {}),
    (r"qwen3-next", "Qwen3-Next", {}),
    (r"qwen3-omni", "Qwen3-Omni", {}),
    (r"qwen3-vl-.*-a\d+b", "Qwen3-VL-MoE", {}),
    (r"qwen3-vl", "Qwen3-VL", {}),
    (r"qwen3\.5-vl-.*-a\d+b", "Qwen3.5-VL-MoE", {}),
    (r"qwen3\.5-vl", "Qwen3.5-VL", {}),
    (r"qwen3-.*-a\d+b", "Qwen3-MoE", {}),
    (r"qwen3", "Qwen3", {}),
    (r"gpt-oss", "GPT-OSS", {}),
    (r"gemma2", "Gemma 2", {}),
    (r"gemma3-vl", "Gemma 3 VL", {}),
    (r"gemma3", "Gemma 3", {}),
    (r"gemma4-vl-31b", "Gemma 4 VL, dense", {}),
    (r"gemma4-vl", "Gemma 4 VL", {}),
    (r"glm4\.5v", "GLM-4.5V", {}),
    (r"glm4\.5", "GLM-4.5 without MTP", {}),
    (r"glm5\.1", "GLM-5", {}),
    (r"glm5\.2", "GLM-5.2", {}),
    (r"exaone4\.5", "EXAONE 4.5 VL", {}),
    (r"exaone4", "EXAONE 4.0", {}),
    (r"k-exaone2", "K-EXAONE 2.0", {}),
    (r"k-exaone", "K-EXAONE", {}),
    (r"olmoe", "OLMoE", _OLMOE),
    (r"deepseek-v4-flash-no-mtp", "DeepSeek-V4 without MTP", {}),
    (r"deepseek-v4", "DeepSeek-V4", {}),
    (r"moonlight", "Moonlight", {}),
    (r"nemotron-nano2-vl", "Nemotron Nano 2 VL", {}),
    (r"nemotron3-nano-omni", "Nemotron 3 Nano Omni", {}),
    (r"nemotron-", "Nemotron-H", HYBRID_OF_BRIDGE),
    (r"nemotron3-nano-4b", "Nemotron-H", {**HYBRID_OF_BRIDGE, "model.vocab_size": VOCABULARY}),
    (r"nemotron3-nano", "Nemotron 3 Nano", {}),
    (r"nemotron3-", "Nemotron 3 Super", {}),
    (r"nemotron3\.5", "Nemotron 3.5 Lightning", {}),
    (r"ministral3", "Ministral 3", {}),
    (r"minimax-m3", "MiniMax-M3", {}),
    (r"kimi-k2\.5", "Kimi-K2.5", {}),
    (r"step3\.7", "Step-3.7", {}),
)
"""Pattern of a recipe, family, and overrides of a function that has the architecture itself."""
_PRETRAINED: Final = (
    (r"deepseek-v4", "deepseek-v4-flash"),
    (r"gemma2", "gemma2-2b"),
    (r"falcon-h1", "falcon-h1-7b"),
    (r"nemotron-h-", "nemotron-h-4b"),
    (r"nemotron-nano2|nemotron3-nano-4b", "nemotron-nano2-9b"),
)
"""Pattern of a recipe that pretrains, and the one of testkit.pretrained with its small model."""
_OF_BOTH_TIES: Final = ("Llama", "Qwen2", "Qwen3")
"""Families of text whose smaller models have their output tied to their embedding, and the others not."""
_TIED: Final = ", tied embedding"
_MEDIA: Final[Mapping[str, ImageFamily]] = {
    **image_models.FAMILIES,
    **sound_models.FAMILIES,
    **omni_text.FAMILIES,
    **nemotron.FAMILIES,
    f"Qwen2.5-VL{_TIED}": ImageFamily(
        f"Qwen2.5-VL{_TIED}", image_text.ARCHITECTURE, partial(image_text.write_model, tied=True), ""
    ),
}

ON_SEVERAL_RANKS: Final[Mapping[str, str]] = {
    "moonlight_16b_sft_8gpu_h100_bf16_tp1_config": "no layout that fits has EP above 1"
}
"""Functions that the operator refuses to start on one rank, and the reason that it states.

tests/trainer/test_bridge_recipes.py trains all others that it starts."""


def of_recipe(entry: Entry) -> SmallModel:
    """The small model of a recipe. Raises StopIteration for one of a family that has none."""
    if entry.reads_latents:
        name = entry.name.split("-")[0]
        return SmallModel(name, overrides={**small_diffusion.SMALL[name], **small_diffusion.TEXT})
    if entry.fine_tunes or entry.media:
        return _fine_tuned(entry)
    wanted = next((found for pattern, found in _PRETRAINED if re.match(pattern, entry.name)), entry.name)
    case = next(case for case in pretrained.CASES if case.recipe == wanted)
    if "text_config" not in case.sizes:
        tied = not entry.model.untie_embeddings_and_output_weights
        # A function of Nemotron 3 Super takes the model's vocabulary, which has to hold the tokenizer's.
        larger = {"vocab_size": 1024} if wanted.startswith("nemotron3-super") else {}
        case = replace(case, sizes={**case.sizes, "tie_word_embeddings": tied, **larger})
    return SmallModel(
        wanted, case.write_config if case.config_class else None, case.overrides, dict(case.model)
    )


def _fine_tuned(entry: Entry) -> SmallModel:
    name, overrides = next(
        (found, overrides) for pattern, found, overrides in _FINE_TUNED if re.match(pattern, entry.name)
    )
    tied = not entry.model.untie_embeddings_and_output_weights
    if name in _OF_BOTH_TIES:
        family = by_name(name)
        sizes = {**family.sizes, "tie_word_embeddings": tied}
        return SmallModel(
            name + _TIED * tied,
            partial(write_model, replace(family, sizes=sizes), dtype="bfloat16"),
            overrides,
        )
    if entry.media:
        name = name + _TIED if tied and name + _TIED in _MEDIA else name
        return SmallModel(name, _MEDIA[name].write, overrides)
    return SmallModel(name, partial(write_model, by_name(name), dtype="bfloat16"), overrides)
