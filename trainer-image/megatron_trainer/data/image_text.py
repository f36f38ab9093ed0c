"""Conversations about images, from the samples of a WebDataset: tar files of JSON and pictures.

A sample is the files of one name: `000012.json` has the conversation, `000012.png`, or `000012.0.jpg` and
`000012.1.jpg`, its images in the order of their names. In the text `<image>` is where an image goes; OpenAI's
form may have a part of type `image` or `image_url` instead.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from tarfile import BLOCKSIZE, ReadError, TarFile, TarInfo
from typing import Any, Final

from megatron_trainer.data.chat import ROLES, ConversationError

PLACEHOLDER: Final = "<image>"
SUFFIXES: Final = frozenset({"png", "jpg", "jpeg", "webp", "bmp", "gif", "tif", "tiff"})
"""Endings of images."""
RECORD: Final = "json"
"""Ending of a conversation."""
_END_BYTES: Final = 1 << 20
"""Bytes behind the last file that are read at once."""
_PICTURES: Final = frozenset({"image", "image_url"})


@dataclass(frozen=True)
class Sample:
    """A sample of a tar file: its name, the file of its conversation, and those of its images."""

    name: str
    record: TarInfo
    pictures: Sequence[TarInfo]


def read_samples(tar: TarFile) -> Iterator[Sample]:
    """Yield the samples of a tar file in their order.

    Raises ConversationError for one that is not whole, and ReadError for such an archive.
    """
    for name, group in groupby(_files(tar), key=_key):
        members: dict[str, TarInfo] = {}
        for member in group:
            if members.setdefault(_ending(member), member) is not member:
                raise ConversationError(f"{member.name} is there twice; give each sample a name of its own")
        record = members.pop(RECORD, None)
        if record is None:
            raise ConversationError(f"sample {name} has no {name}.{RECORD} beside its other files")
        pictures = [members[ending] for ending in sorted(members, key=_order)]
        for member in pictures:
            if member.name.rpartition(".")[2].lower() not in SUFFIXES:
                known = ", ".join(sorted(SUFFIXES))
                raise ConversationError(
                    f"{member.name} is neither {RECORD} nor an image ({known}); leave it out"
                )
        yield Sample(name, record, pictures)


def _files(tar: TarFile) -> Iterator[TarInfo]:
    yield from (member for member in tar if member.isfile())
    # tarfile takes what it cannot read behind the first header for the end of the archive, which is of zeros.
    raw = tar.fileobj
    assert raw is not None, "the file is open"
    raw.seek(tar.offset)
    end = raw.read(BLOCKSIZE)
    whole = len(end) == BLOCKSIZE
    while end and whole:
        whole = not any(end)
        end = raw.read(_END_BYTES)
    if not whole:
        raise ReadError(f"byte {tar.offset:,} begins neither a file nor the end of the archive")


def _key(member: TarInfo) -> str:
    """The name up to the first dot behind the last slash, as WebDataset has it."""
    folder, slash, name = member.name.rpartition("/")
    return f"{folder}{slash}{name.partition('.')[0]}"


def _order(ending: str) -> list[tuple[int, int, str]]:
    """Numbers by their value."""
    return [(0, int(part), "") if part.isdigit() else (1, 0, part) for part in ending.split(".")]


def _ending(member: TarInfo) -> str:
    return member.name.rpartition("/")[2].partition(".")[2].lower()


def to_messages(record: Any, tar: str, pictures: Sequence[TarInfo]) -> list[dict[str, Any]]:
    """Return the messages of a record, whose contents are parts of type `text` and `image`.

    The latter have the place of the image: `tar`, `offset` and `size` in bytes. Raises ConversationError.
    """
    if not isinstance(record, Mapping):
        raise ConversationError("the record is not an object")
    turns = record.get("messages", record.get("conversations"))
    if not isinstance(turns, list) or not turns:
        raise ConversationError('the record has neither "messages" nor "conversations"')
    messages = [_message(turn) for turn in turns]
    named = [part for message in messages for part in message["content"] if part["type"] == "image"]
    if len(named) != len(pictures):
        raise ConversationError(
            f"it names {len(named)} images ({PLACEHOLDER}, or parts of type image), and the sample has "
            f"{len(pictures)}"
        )
    for part, member in zip(named, pictures, strict=True):
        part |= {"tar": tar, "offset": member.offset_data, "size": member.size}
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
