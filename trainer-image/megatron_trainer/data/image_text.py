"""Conversations about images, from the samples of a WebDataset: tar files of JSON and pictures.

A sample is the files of one name: `000012.json` has the conversation, `000012.png`, or `000012.0.jpg` and
`000012.1.jpg`, its images in the order of their names. In the text `<image>` is where an image goes; OpenAI's form
may have a part of type `image` or `image_url` instead.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from megatron_trainer.data.chat import ROLES, ConversationError

PLACEHOLDER: Final = "<image>"
SUFFIXES: Final = frozenset({"png", "jpg", "jpeg", "webp", "bmp", "gif", "tif", "tiff"})
"""Endings of images."""
_PICTURES: Final = frozenset({"image", "image_url"})


@dataclass(frozen=True)
class Picture:
    """An image in a tar file: `size` bytes from byte `offset` on."""

    name: str
    offset: int
    size: int


def to_messages(record: Any, pictures: int) -> list[dict[str, Any]]:
    """Return the messages of a record, whose contents are parts of type `image` and `text`.

    `pictures` is the number of images of its sample. Raises ConversationError.
    """
    if not isinstance(record, Mapping):
        raise ConversationError("the record is not an object")
    turns = record.get("messages", record.get("conversations"))
    if not isinstance(turns, list) or not turns:
        raise ConversationError('the record has neither "messages" nor "conversations"')
    messages = [_message(turn) for turn in turns]
    named = sum(part["type"] == "image" for message in messages for part in message["content"])
    if named != pictures:
        raise ConversationError(
            f"it names {named} images ({PLACEHOLDER}, or parts of type image), and the sample has {pictures}"
        )
    return messages


def _message(turn: Any) -> dict[str, Any]:
    if not isinstance(turn, Mapping):
        raise ConversationError("a message is not an object")
    speaker, content = turn.get("role", turn.get("from")), turn.get("content", turn.get("value"))
    if speaker not in ROLES:
        raise ConversationError(f"a message is of {speaker!r}; use {', '.join(ROLES)}")
    if isinstance(content, str):
        parts = list(_split(content))
    elif isinstance(content, list) and content:
        parts = [each for part in content for each in _part(part)]
    else:
        raise ConversationError(f"the message of {speaker} has no content")
    return {"role": ROLES[speaker], "content": parts}


def _part(part: Any) -> Iterator[dict[str, Any]]:
    kind = part.get("type") if isinstance(part, Mapping) else None
    if kind in _PICTURES:
        yield {"type": "image"}
    elif kind == "text" and isinstance(part.get("text"), str):
        yield from _split(part["text"])
    else:
        raise ConversationError(f"a message has a part of type {kind!r}; text and image are read")


def _split(text: str) -> Iterator[dict[str, Any]]:
    for piece in re.split(f"({PLACEHOLDER})", text):
        if piece == PLACEHOLDER:
            yield {"type": "image"}
        elif piece:
            yield {"type": "text", "text": piece}


def with_images(messages: Sequence[Mapping[str, Any]], images: Sequence[Any]) -> list[dict[str, Any]]:
    """Return the messages with each part of type `image` holding its image."""
    left = iter(images)
    return [
        {
            "role": message["role"],
            "content": [
                {"type": "image", "image": next(left)} if part["type"] == "image" else dict(part)
                for part in message["content"]
            ],
        }
        for message in messages
    ]
