"""What samples of a WebDataset have beside text: images, sound, or both."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True)
class Medium:
    """A kind of file beside a conversation, and how the conversation names it."""

    part: str
    """Type of a part of a message, as processors of transformers take it."""
    placeholder: str
    """Where it goes in a text."""
    suffixes: frozenset[str]
    """Endings of its files."""
    named: frozenset[str]
    """Types of its parts in OpenAI's form."""
    one: str
    many: str


IMAGE: Final = Medium(
    "image",
    "<image>",
    frozenset({"png", "jpg", "jpeg", "webp", "bmp", "gif", "tif", "tiff"}),
    frozenset({"image", "image_url"}),
    "an image",
    "images",
)
SOUND: Final = Medium(
    "audio",
    "<audio>",
    frozenset({"wav", "flac", "mp3"}),
    frozenset({"audio", "audio_url", "input_audio"}),
    "a sound",
    "sounds",
)
IMAGES: Final = (IMAGE,)
MEDIA: Final[Mapping[str, tuple[Medium, ...]]] = {
    "images": IMAGES,
    "sound": (SOUND,),
    "media": (IMAGE, SOUND),
}
"""Option of `megatron-prepare` -> what its samples have."""
