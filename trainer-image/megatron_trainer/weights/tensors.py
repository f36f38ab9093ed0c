"""What identifies a tensor: name, shape, dtype and a checksum of its bytes."""

import hashlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

type TensorSource = Callable[[str], Any]
"""Makes or reads the tensor of a name of Megatron's model, of any shape, each time it is called."""


@dataclass(frozen=True)
class TensorRecord:
    """One tensor. `dtype` is torch's name without the prefix; the checksum covers the bytes in C order."""

    shape: tuple[int, ...]
    dtype: str
    sha256: str

    @property
    def bytes(self) -> int:
        """Bytes in memory."""
        size = dtype_of(self.dtype).itemsize
        for length in self.shape:
            size *= length
        return int(size)

    def to_json(self) -> dict[str, Any]:
        """The record as an object for the audit's file."""
        return {"shape": list(self.shape), "dtype": self.dtype, "sha256": self.sha256}


@dataclass(frozen=True)
class Header:
    """A tensor without its values. `file` is the one that has it, None if that is not there any more."""

    file: Path | None
    shape: tuple[int, ...]
    dtype: str


def dtype_of(name: str) -> Any:
    """Return torch's dtype of a name such as bfloat16."""
    import torch

    return getattr(torch, name)


def name_of(dtype: Any) -> str:
    """Return the name of a dtype: bfloat16 for torch.bfloat16."""
    return str(dtype).removeprefix("torch.")


def record(tensor: Any) -> TensorRecord:
    """Compute the record of a tensor of any shape."""
    data = tensor.detach().cpu().contiguous()
    return TensorRecord(tuple(data.shape), name_of(data.dtype), hashlib.sha256(bytes_of(data)).hexdigest())


def bytes_of(data: Any) -> memoryview:
    """Return the bytes of a contiguous tensor on the CPU, without a copy."""
    import torch

    # NumPy has no bfloat16: the bytes are read as integers.
    view = data.reshape(-1).view(torch.uint8) if data.numel() else data.new_empty(0, dtype=torch.uint8)
    return memoryview(view.numpy())


def records(tensors: Iterable[tuple[str, Any]]) -> dict[str, TensorRecord]:
    """Compute the records of named tensors of any shape, by name, one tensor in memory at a time."""
    return {name: record(tensor) for name, tensor in tensors}
