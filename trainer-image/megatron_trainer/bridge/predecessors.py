"""Configurations of MiMo and Kimi-K2, of which transformers has the layers under the names of others.

The classes of the published folders are code, which is not run. MiMo is a Qwen2 with layers of multi-token
prediction, Kimi-K2 a DeepSeek-V3.
"""

from typing import Any

from huggingface_hub.dataclasses import strict
from transformers import AutoConfig, DeepseekV3Config, Qwen2Config


@strict
class MiMoConfig(Qwen2Config):
    """config.json of MiMo-7B."""

    model_type = "mimo"

    num_nextn_predict_layers: int = 0

    def __post_init__(self, **settings: Any) -> None:
        # By this Bridge finds its class, where transformers has none.
        names = {"AutoModelForCausalLM": "modeling_mimo.MiMoForCausalLM"}
        super().__post_init__(**settings | {"auto_map": (settings.get("auto_map") or {}) | names})


@strict
class KimiK2Config(DeepseekV3Config):
    """config.json of Kimi-K2, which names DeepSeek-V3's class in `architectures`."""

    model_type = "kimi_k2"


def install() -> None:
    """Have transformers read both; call it once in a process."""
    for config in (MiMoConfig, KimiK2Config):
        AutoConfig.register(config.model_type, config, exist_ok=True)
