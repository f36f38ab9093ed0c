"""Writes a file of safetensors tensor by tensor, the same bytes as the library, which needs all at once.

The format: 8 bytes with the length of the header, little-endian; the header, JSON padded with spaces to a
multiple of 8 bytes; the data.
"""

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from megatron_trainer.weights.tensors import bytes_of, name_of

DTYPES = {
    "I64": "int64",
    "F64": "float64",
    "F32": "float32",
    "I32": "int32",
    "BF16": "bfloat16",
    "F16": "float16",
    "I16": "int16",
    "F8_E4M3": "float8_e4m3fn",
    "F8_E5M2": "float8_e5m2",
    "I8": "int8",
    "U8": "uint8",
    "BOOL": "bool",
}
"""safetensors' names of dtypes -> torch's, in the order in which the library writes tensors of them."""
_CODES = {name: code for code, name in DTYPES.items()}
_ORDER = list(DTYPES)
_ALIGNMENT = 8
_COPY_BYTES = 1 << 30


@dataclass(frozen=True)
class _Spooled:
    """A tensor in the temporary file, of `bytes` from `start` on."""

    name: str
    dtype: str
    shape: list[int]
    start: int
    bytes: int


class SafetensorsFile:
    """A file in the making: until `finish` its tensors are in a temporary file beside it."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._spool_path = path.with_name(f"{path.name}.spool")
        self._spool: IO[bytes] = self._spool_path.open("w+b")
        self._tensors: list[_Spooled] = []
        self.bytes = 0
        """Bytes of the tensors that were added."""

    @property
    def names(self) -> list[str]:
        """Names of the tensors that were added, in that order."""
        return [each.name for each in self._tensors]

    def add(self, name: str, tensor: Any) -> None:
        """Add a tensor of any shape."""
        data = tensor.detach().cpu().contiguous()
        self._spool.write(bytes_of(data))
        code = _CODES[name_of(data.dtype)]
        self._tensors.append(_Spooled(name, code, list(data.shape), self.bytes, data.nbytes))
        self.bytes += data.nbytes

    def finish(self) -> None:
        """Write the file and remove the temporary one."""
        self._spool.flush()
        ordered = sorted(self._tensors, key=lambda each: (_ORDER.index(each.dtype), each.name))
        header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
        end = 0
        for each in ordered:
            offsets = [end, end + each.bytes]
            header[each.name] = {"dtype": each.dtype, "shape": each.shape, "data_offsets": offsets}
            end += each.bytes
        text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
        text += b" " * (-len(text) % _ALIGNMENT)
        with self._path.open("wb") as file:
            file.write(len(text).to_bytes(8, "little") + text)
            file.flush()
            for each in ordered:
                _copy(self._spool, each.start, each.bytes, file)
        self._spool.close()
        self._spool_path.unlink()


def _copy(source: IO[bytes], start: int, count: int, target: IO[bytes]) -> None:
    """Append `count` bytes of `source` to `target` within the kernel, so that they take no memory here."""
    while count:
        done = os.sendfile(target.fileno(), source.fileno(), start, min(count, _COPY_BYTES))
        if not done:
            raise OSError(f"{source.name} ends {count} bytes early")
        start, count = start + done, count - done
