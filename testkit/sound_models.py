"""Small random models that take sound, with their processors: one of each family that is trained."""

from testkit import sound_text
from testkit.image_models import ImageFamily

FAMILIES = {
    "Qwen2-Audio": ImageFamily(
        "Qwen2-Audio", sound_text.ARCHITECTURE, sound_text.write_model, "<|im_end|>\n"
    ),
}
"""By name."""
