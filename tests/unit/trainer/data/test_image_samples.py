"""Samples of a WebDataset: which files belong together, and where in a conversation their media go."""

import io
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from megatron_trainer.data.chat import ConversationError
from megatron_trainer.data.image_text import read_samples, to_messages
from megatron_trainer.data.media import MEDIA

from testkit.image_text import add_file


def shard(*names: str) -> tarfile.TarFile:
    """A tar file in memory with files that hold their names."""
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w") as tar:
        for name in names:
            add_file(tar, name, name.encode())
    stream.seek(0)
    return tarfile.open(fileobj=stream)


def texts(messages: list[dict[str, Any]]) -> list[list[str]]:
    return [[part.get("text", part["type"]) for part in each["content"]] for each in messages]


def test_files_of_one_name_are_a_sample_with_images_by_their_numbers() -> None:
    tar = shard("a/1.json", "a/1.10.jpg", "a/1.2.JPG", "b/1.png", "b/1.json")
    first, second = read_samples(tar)

    assert (first.name, second.name) == ("a/1", "b/1")
    assert [member.name for member in first.files] == ["a/1.2.JPG", "a/1.10.jpg"]
    assert [member.name for member in second.files] == ["b/1.png"]


ONE = 2 * tarfile.BLOCKSIZE
"""Bytes of a small file with its header."""


def with_bit(data: bytes, at: int) -> bytes:
    return data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]


@pytest.mark.parametrize(
    "damage",
    [
        pytest.param(lambda data: data[: 2 * ONE], id="cut between files"),
        pytest.param(lambda data: data[: 2 * ONE + 100], id="cut in a header"),
        pytest.param(lambda data: with_bit(data, 2 * ONE + 150), id="a damaged header"),
        pytest.param(lambda data: data + data, id="two archives in one file"),
    ],
)
def test_an_archive_that_ends_early_loses_no_sample_silently(damage: Callable[[bytes], bytes]) -> None:
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w") as tar:
        for name in ("0.json", "1.json", "2.json"):
            add_file(tar, name, name.encode())
    damaged = io.BytesIO(damage(stream.getvalue()))
    expected = r"byte [\d,]+ begins neither a file nor the end"
    with tarfile.open(fileobj=damaged, mode="r:") as tar, pytest.raises(tarfile.ReadError, match=expected):
        list(read_samples(tar))


def test_the_place_of_an_image_is_that_of_its_bytes(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "0.tar", "w") as tar:
        add_file(tar, "0.json", b"{}")
        add_file(tar, "0.png", b"pixels")
    with tarfile.open(tmp_path / "0.tar") as tar:
        (sample,) = read_samples(tar)
    record = {"messages": [{"role": "user", "content": "<image>"}]}
    ((part,),) = [each["content"] for each in to_messages(record, "0.tar", sample.files)]

    assert part["tar"] == "0.tar"
    data = (tmp_path / "0.tar").read_bytes()
    assert data[part["offset"] : part["offset"] + part["size"]] == b"pixels"


@pytest.mark.parametrize(
    ("names", "problem"),
    [
        (["0.png", "1.json"], "sample 0 has no 0.json"),
        (["0.json", "0.png", "0.png"], "0.png is there twice"),
        (["0.json", "0.txt"], "0.txt is neither json nor an image"),
    ],
)
def test_a_sample_that_is_not_whole_is_named(names: list[str], problem: str) -> None:
    with pytest.raises(ConversationError, match=problem):
        list(read_samples(shard(*names)))


@pytest.mark.parametrize(
    "record",
    [
        {"messages": [{"role": "user", "content": "see <image> and<image>."}]},
        {"conversations": [{"from": "human", "value": "see <image> and<image>."}]},
        {
            "messages": [
                {
                    "role": "user",
                    "content": [
                        {"type": "text", "text": "see "},
                        {"type": "image_url", "image_url": {"url": "1.png"}},
                        {"type": "text", "text": " and<image>."},
                    ],
                }
            ]
        },
    ],
)
def test_all_forms_of_a_conversation_become_the_same_parts(record: dict[str, Any]) -> None:
    (sample,) = read_samples(shard("0.json", "0.0.png", "0.1.png"))
    messages = to_messages(record, "0.tar", sample.files)

    assert [each["role"] for each in messages] == ["user"]
    assert texts(messages) == [["see ", "image", " and", "image", "."]]


@pytest.mark.parametrize(
    "record",
    [
        {"messages": [{"role": "user", "content": "<image>"}], "system": "be brief"},
        {"conversations": [{"from": "human", "value": "<image>"}], "system": "be brief"},
        {"messages": [{"role": "system", "content": "be brief"}, {"role": "user", "content": "<image>"}]},
    ],
)
def test_the_message_of_the_system_may_be_beside_the_others(record: dict[str, Any]) -> None:
    (sample,) = read_samples(shard("0.json", "0.png"))
    messages = to_messages(record, "0.tar", sample.files)

    assert [each["role"] for each in messages] == ["system", "user"]
    assert texts(messages) == [["be brief"], ["image"]]


@pytest.mark.parametrize(
    ("record", "problem"),
    [
        ([], "not an object"),
        ({"text": "a"}, 'neither "messages" nor "conversations"'),
        ({"messages": [{"role": "user", "content": "no image"}]}, "it names 0 images"),
        ({"messages": [{"role": "robot", "content": "<image>"}]}, "a message is of 'robot'"),
        ({"messages": [{"role": "user", "content": [{"type": "video"}]}]}, "a part of type 'video'"),
        ({"messages": [{"role": "user", "content": None}]}, "has no content"),
        ({"messages": [{"role": "user", "content": "<image>"}], "system": 1}, '"system" is of type int'),
        ({"messages": [{"role": "system", "content": "a"}], "system": "b"}, 'it has "system", and a message'),
        (
            {"messages": [{"role": "user", "content": "<image>"}], "tools": [{}]},
            "it has tools, which samples of",
        ),
        (
            {"messages": [{"role": "assistant", "content": "<image>", "tool_calls": [{}]}]},
            "the message of assistant has tool_calls, which samples",
        ),
        (
            {"messages": [{"role": "assistant", "content": "<image>", "weight": 0}]},
            'a message of assistant has "weight": 0',
        ),
    ],
)
def test_a_record_that_is_no_conversation_about_its_images_is_refused(record: Any, problem: str) -> None:
    (sample,) = read_samples(shard("0.json", "0.png"))
    with pytest.raises(ConversationError, match=problem):
        to_messages(record, "0.tar", sample.files)


@pytest.mark.parametrize(
    "content",
    [
        "hear <audio> and <image>.",
        [
            {"type": "text", "text": "hear "},
            {"type": "input_audio", "input_audio": {"data": "", "format": "wav"}},
            {"type": "text", "text": " and <image>."},
        ],
    ],
)
def test_a_sample_of_sound_has_sounds_and_names_of_images_are_text(content: Any) -> None:
    (sample,) = read_samples(shard("0.json", "0.FLAC"), MEDIA["sound"])
    messages = to_messages(
        {"messages": [{"role": "user", "content": content}]}, "0.tar", sample.files, MEDIA["sound"]
    )

    assert texts(messages) == [["hear ", "audio", " and <image>."]]
    assert messages[0]["content"][1] | {"offset": 0} == {
        **{"type": "audio", "tar": "0.tar", "offset": 0, "size": len("0.FLAC")},
    }


def test_a_sample_of_sound_has_no_image() -> None:
    with pytest.raises(ConversationError, match=r"0\.png is neither json nor a sound"):
        list(read_samples(shard("0.json", "0.png"), MEDIA["sound"]))
