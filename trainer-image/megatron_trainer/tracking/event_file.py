"""TensorBoard's event files: records of the protocol buffer `tensorflow.Event`, as its readers expect them.

Written here rather than by the package tensorboard, which Megatron imports in every rank where it is
installed (docs/decisions/0027-trackers-beside-the-ranks.md). A record is its length (8 bytes), the masked
CRC-32C of these, the message and the masked CRC-32C of the message
(tensorflow/core/lib/io/record_writer.h).
"""

import os
import socket
import struct
import time
from functools import cache
from pathlib import Path
from typing import Final

from megatron_trainer.tracking.scalar_log import Position, Scalars

_POLYNOMIAL: Final = 0x82F63B78
_MASK: Final = 0xA282EAD8
_START: Final = 1
"""SessionLog.START: a reader drops what it has from the step of the event on."""
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5


class EventFiles:
    """Writes one event file in `folder` for each start; readers take them in the order of their names."""

    rewrites = True
    settle_seconds = 0.0
    run = ""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._path: Path | None = None
        self._size = 0

    def open(self, _position: Position) -> None:
        """Create the file of this start, one file however often it is tried."""
        self._folder.mkdir(parents=True, exist_ok=True)
        now = time.time()
        if self._path is None:
            name = f"events.out.tfevents.{int(now * 1e6):016d}.{socket.gethostname()}.{os.getpid()}"
            self._path = self._folder / name
        if self._size == 0:
            self._append(_event(now, 0, _field(3, _BYTES, b"brain.Event:2")))

    def rewind(self, iteration: int) -> None:
        """Have readers drop `iteration` and all later ones."""
        session = _field(7, _BYTES, _field(1, _VARINT, _START))
        self._append(_event(time.time(), iteration, session))

    def write(self, scalars: list[Scalars]) -> None:
        """Append one event for each iteration."""
        self._append(b"".join(_event(each.time, each.iteration, _summary(each.values)) for each in scalars))

    def close(self, _ending: str) -> None:
        """Nothing to do: each write is complete."""

    def _append(self, records: bytes) -> None:
        assert self._path is not None, "not open"
        with self._path.open("ab") as file:
            # A full volume may have left a part of the last write, behind which nothing is read.
            file.truncate(self._size)
            file.write(records)
        self._size += len(records)


def _event(seconds: float, step: int, content: bytes) -> bytes:
    message = _field(1, _FIXED64, struct.pack("<d", seconds)) + _field(2, _VARINT, step) + content
    length = struct.pack("<Q", len(message))
    return length + _masked_crc(length) + message + _masked_crc(message)


def _summary(values: dict[str, float]) -> bytes:
    parts = [
        _field(1, _BYTES, _field(1, _BYTES, name.encode()) + _field(2, _FIXED32, _float32(value)))
        for name, value in values.items()
    ]
    return _field(5, _BYTES, b"".join(parts))


def _float32(value: float) -> bytes:
    try:
        return struct.pack("<f", value)
    except OverflowError:
        return struct.pack("<f", float("inf") if value > 0 else float("-inf"))


def _field(number: int, kind: int, value: int | bytes) -> bytes:
    """A field of a protocol buffer message: its tag and its value in the encoding of `kind`."""
    tag = _varint(number << 3 | kind)
    if isinstance(value, int):
        return tag + _varint(value)
    return tag + (_varint(len(value)) if kind == _BYTES else b"") + value


def _varint(value: int) -> bytes:
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


@cache
def _table() -> list[int]:
    table = []
    for byte in range(256):
        remainder = byte
        for _ in range(8):
            remainder = remainder >> 1 ^ (_POLYNOMIAL if remainder & 1 else 0)
        table.append(remainder)
    return table


def _masked_crc(data: bytes) -> bytes:
    table, crc = _table(), 0xFFFFFFFF
    for byte in data:
        crc = table[(crc ^ byte) & 0xFF] ^ crc >> 8
    crc ^= 0xFFFFFFFF
    return struct.pack("<I", ((crc >> 15 | crc << 17) + _MASK) & 0xFFFFFFFF)
