"""Configuration of Nemotron Nano 2 VL and Nemotron 3 Nano Omni, of which the published folders have code.

That code is not run. transformers 5.23 has a class for the same settings under another type
(`nemotron_h_omni`), from which these read what the published config.json has.
"""

from collections.abc import Mapping
from typing import Any, Final

from transformers import AutoConfig, NemotronH_Omni_Reasoning_V3_Config

OF_IMAGES: Final = "NemotronH_Nano_VL_V2"
OF_BOTH: Final = "NemotronH_Nano_Omni_Reasoning_V3"
"""Architecture, and `model_type`, of the model that takes sound too."""
_OF_CODE: Final = ("model_type", "auto_map", "architectures", "torch_dtype", "dtype")
"""Settings of parts that name classes of the folder's code, or types of transformers' older releases."""


def _settings(part: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in part.items() if name not in _OF_CODE}


class NemotronVLConfig(NemotronH_Omni_Reasoning_V3_Config):
    """config.json of Nemotron Nano 2 VL."""

    model_type = OF_IMAGES

    def __post_init__(self, **settings: Any) -> None:
        for name in ("llm_config", "sound_config"):
            if isinstance(part := settings.get(name), Mapping):
                settings[name] = _settings(part)
        tower: Any = vars(self).get("vision_config")
        if isinstance(tower, Mapping):
            # transformers requires both to be equal, whether there is an embedder of videos or not.
            frames = {"video_temporal_patch_size": self.video_temporal_patch_size}
            self.vision_config = frames | _settings(tower)
        # By this Bridge finds its class, where transformers has none.
        names = {"AutoModelForCausalLM": f"modeling.{self.model_type}"}
        super().__post_init__(**settings | {"auto_map": (settings.get("auto_map") or {}) | names})

    @property
    def llm_config(self) -> Any:
        """Bridge reads it; transformers has it as `text_config`."""
        return self.text_config

    @property
    def sound_config(self) -> Any:
        """The same of `audio_config`."""
        return self.audio_config

    @property
    def img_context_token_id(self) -> Any:
        """The same of `image_token_id`."""
        return self.image_token_id

    @property
    def sound_context_token_id(self) -> Any:
        """The same of `audio_token_id`."""
        return self.audio_token_id

    def to_dict(self) -> dict[str, Any]:
        """The settings alone: conversions keep names of tensors beside them (`cpu_model.make_bridge`)."""
        return {name: value for name, value in super().to_dict().items() if name != "state"}


class NemotronOmniConfig(NemotronVLConfig):
    """config.json of Nemotron 3 Nano Omni."""

    model_type = OF_BOTH


def install() -> None:
    """Call it once in a process."""
    for kind in (NemotronVLConfig, NemotronOmniConfig):
        AutoConfig.register(kind.model_type, kind, exist_ok=True)
