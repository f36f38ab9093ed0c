"""Conversations about images or sound, from the samples of a WebDataset: tar files of JSON and media.

A sample is the files of one name: `000012.json` has the conversation, `000012.png`, or `000012.0.jpg` and
`000012.1.jpg`, its images in the order of their names. In the text `<image>` is where an image goes; OpenAI's
form may have a part of type `image` or `image_url` instead. Sound: see media.SOUND.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from tarfile import TarFile, TarInfo
from typing import Any, Final

from megatron_trainer.bridge.tar_files import files_of
from megatron_trainer.data.chat import ROLES, ConversationError, require_whole_weight, system_of
from megatron_trainer.data.media import IMAGES, Medium

RECORD: Final = "json"
"""Ending of a conversation."""
_NO_TOOLS: Final = "which samples of images or sound do not take; write them into a message"


@dataclass(frozen=True)
class Sample:
    """A sample of a tar file: its name, the file of its conversation, and those of its media."""

    name: str
    record: TarInfo
    files: Sequence[TarInfo]


def read_samples(tar: TarFile, media: Sequence[Medium] = IMAGES) -> Iterator[Sample]:
    """Yield the samples of a tar file in their order; beside conversations it has files of `media`.

    Raises ConversationError for one that is not whole, and tarfile.ReadError for such an archive.
    """
    for name, group in groupby(files_of(tar), key=_key):
        members: dict[str, TarInfo] = {}
        for member in group:
            if members.setdefault(_ending(member), member) is not member:
                raise ConversationError(f"{member.name} is there twice; give each sample a name of its own")
        record = members.pop(RECORD, None)
        if record is None:
            raise ConversationError(f"sample {name} has no {name}.{RECORD} beside its other files")
        files = [members[ending] for ending in sorted(members, key=_order)]
        for member in files:
            if not any(_is_of(member, medium) for medium in media):
                known = " or ".join(f"{x.one} ({', '.join(sorted(x.suffixes))})" for x in media)
                raise ConversationError(f"{member.name} is neither {RECORD} nor {known}; leave it out")
        yield Sample(name, record, files)


def _is_of(member: TarInfo, medium: Medium) -> bool:
    return member.name.rpartition(".")[2].lower() in medium.suffixes


def _key(member: TarInfo) -> str:
    """The name up to the first dot behind the last slash, as WebDataset has it."""
    folder, slash, name = member.name.rpartition("/")
    return f"{folder}{slash}{name.partition('.')[0]}"


def _order(ending: str) -> list[tuple[int, int, str]]:
    """Numbers by their value."""
    return [(0, int(part), "") if part.isdigit() else (1, 0, part) for part in ending.split(".")]


def _ending(member: TarInfo) -> str:
    return member.name.rpartition("/")[2].partition(".")[2].lower()


def to_messages(
    record: Any, tar: str, files: Sequence[TarInfo], media: Sequence[Medium] = IMAGES
) -> list[dict[str, Any]]:
    """Return the messages of a record, whose contents are parts of type `text` and those of `media`.

    The latter have the place of their file: `tar`, `offset` and `size` in bytes. The record may have the
    system's message in `system`. Raises ConversationError.
    """
    if not isinstance(record, Mapping):
        raise ConversationError("the record is not an object")
    turns = record.get("messages", record.get("conversations"))
    if not isinstance(turns, list) or not turns:
        raise ConversationError(
            'the record has neither "messages" nor "conversations"; write {"messages": [{"role": "user",'
            ' "content": "..."}, {"role": "assistant", "content": "..."}]}'
        )
    if record.get("tools"):
        raise ConversationError(f"it has tools, {_NO_TOOLS}")
    messages = [_message(turn, media) for turn in turns]
    if system := system_of(record, messages):
        messages.insert(0, {"role": "system", "content": list(_split(system, media))})
    for medium in media:
        named = [part for message in messages for part in message["content"] if part["type"] == medium.part]
        members = [member for member in files if _is_of(member, medium)]
        if len(named) != len(members):
            raise ConversationError(
                f"it names {len(named)} {medium.many} ({medium.placeholder}, or parts of type "
                f"{medium.part}), and the sample has {len(members)}"
            )
        for part, member in zip(named, members, strict=True):
            part |= {"tar": tar, "offset": member.offset_data, "size": member.size}
    return messages


def _message(turn: Any, media: Sequence[Medium]) -> dict[str, Any]:
    if not isinstance(turn, Mapping):
        raise ConversationError("a message is not an object")
    speaker, content = turn.get("role", turn.get("from")), turn.get("content", turn.get("value"))
    if turn.get("tool_calls"):
        raise ConversationError(f"the message of {speaker} has tool_calls, {_NO_TOOLS}")
    if speaker not in ROLES:
        raise ConversationError(f"a message is of {speaker!r}; use {', '.join(ROLES)}")
    require_whole_weight(turn)
    if isinstance(content, str):
        parts = list(_split(content, media))
    elif isinstance(content, list) and content:
        parts = [each for part in content for each in _part(part, media)]
    else:
        raise ConversationError(f"the message of {speaker} has no content")
    return {"role": ROLES[speaker], "content": parts}


def _part(part: Any, media: Sequence[Medium]) -> Iterator[dict[str, Any]]:
    kind = part.get("type") if isinstance(part, Mapping) else None
    found = next((medium for medium in media if kind in medium.named), None)
    if found is not None:
        yield {"type": found.part}
    elif kind == "text" and isinstance(part.get("text"), str):
        yield from _split(part["text"], media)
    else:
        known = ", ".join(medium.part for medium in media)
        raise ConversationError(f"a message has a part of type {kind!r}; text and {known} are read")


def _split(text: str, media: Sequence[Medium]) -> Iterator[dict[str, Any]]:
    placeholders = {medium.placeholder: medium.part for medium in media}
    for piece in re.split(f"({'|'.join(placeholders)})", text):
        if piece in placeholders:
            yield {"type": placeholders[piece]}
        elif piece:
            yield {"type": "text", "text": piece}
