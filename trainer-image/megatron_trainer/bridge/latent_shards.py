"""Samples of latents in the tar files of a WebDataset, as datasets of Megatron-Energon for diffusion have.

A sample is two files of one name: KEY.pth, a tensor of latents, and KEY.pickle, the embeddings of its text.
Others, such as KEY.json, are not read. A pickle may run any code; here it may name tensors only.

A volume that cannot be read for a while raises OSError, and not SampleLineError.
"""

import io
import pickle
import tarfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import torch

from megatron_trainer.bridge.sample_files import SampleLineError
from megatron_trainer.bridge.tar_files import files_of
from megatron_trainer.read_errors import is_temporary

SUFFIX: Final = "*.tar"
_PARTS: Final = ("pth", "pickle")
_TENSORS: Final = {
    ("collections", "OrderedDict"): dict,
    ("torch._utils", "_rebuild_tensor_v2"): torch._utils._rebuild_tensor_v2,
    ("torch._utils", "_rebuild_tensor"): torch._utils._rebuild_tensor,
}
"""What a pickle of tensors names, beside the bytes of their storage."""


@dataclass(frozen=True)
class Place:
    """Where a sample is: the tar file, its key, and of both files the first byte and the bytes."""

    tar: Path
    key: str
    latents: tuple[int, int]
    text: tuple[int, int]

    def __str__(self) -> str:
        return f"{self.tar}: {self.key}"


@dataclass(frozen=True)
class Latents:
    """A sample: `latents` [channels, ...], `text` [tokens, channels], `pooled` [channels] where there is."""

    latents: torch.Tensor
    text: torch.Tensor
    pooled: torch.Tensor | None = None


def find(folder: Path) -> list[Place]:
    """Return the samples of all tar files of a folder, in the order of their names.

    Reads the headers alone. Raises SampleLineError for what is no tar file, or not a whole one, for half a
    sample, for a file that is there twice, and for one of a sample with a dot in its key.
    """
    return [place for tar in sorted(folder.glob(SUFFIX)) for place in _places(tar)]


def first(folder: Path) -> Place | None:
    """Return the first sample of a folder; None if there is none. Raises SampleLineError."""
    return next((places[0] for tar in sorted(folder.glob(SUFFIX)) if (places := _places(tar))), None)


def _places(tar: Path) -> list[Place]:
    found: dict[str, dict[str, tuple[int, int]]] = {}
    try:
        with tarfile.open(tar, "r:") as members:
            for member in files_of(members):
                folder, _, name = member.name.rpartition("/")
                stem, _, suffix = name.partition(".")
                key = f"{folder}/{stem}" if folder else stem
                if suffix not in _PARTS:
                    _check_unread(tar, member.name, suffix)
                elif suffix in (parts := found.setdefault(key, {})):
                    problem = f"{member.name} is there twice; give each sample a name of its own"
                    raise SampleLineError(f"{tar}: {problem}")
                else:
                    parts[suffix] = (member.offset_data, member.size)
    except (OSError, tarfile.TarError) as error:
        if is_temporary(error):
            raise
        raise SampleLineError(f"{tar}: {error}") from error
    for key, parts in found.items():
        for missing in {*_PARTS} - parts.keys():
            raise SampleLineError(f"{tar}: {key}: there is no {key}.{missing}")
    return [Place(tar, key, parts["pth"], parts["pickle"]) for key, parts in found.items()]


def _check_unread(tar: Path, name: str, suffix: str) -> None:
    """Raise SampleLineError for half a sample that would be left out: a key ends at the first dot."""
    if suffix.endswith(tuple(f".{part}" for part in _PARTS)):
        fix = "rename its files without the dot, or this one with another ending"
        raise SampleLineError(f"{tar}: {name}: the key of a sample ends at the first dot; {fix}")


def read(place: Place) -> Latents:
    """Return a sample. Raises SampleLineError for files that are not the tensors of one."""
    try:
        with place.tar.open("rb") as stream:
            latents = torch.load(io.BytesIO(_bytes(stream, place.latents)), "cpu", weights_only=True)
            text = _TensorUnpickler(io.BytesIO(_bytes(stream, place.text))).load()
        return _checked(place, latents, text)
    except SampleLineError:
        raise
    except Exception as error:  # a pickle raises anything
        if is_temporary(error):
            raise
        reason = " ".join(str(error).split())[:300]
        raise SampleLineError(f"{place}: {type(error).__name__}: {reason}") from error


def _bytes(stream: Any, at: tuple[int, int]) -> bytes:
    stream.seek(at[0])
    return bytes(stream.read(at[1]))


def _checked(place: Place, latents: Any, text: Any) -> Latents:
    pooled = None
    if isinstance(text, dict):
        pooled = text.get("pooled_prompt_embeds", text.get("clip_embeds"))
        text = text.get("prompt_embeds", text.get("t5_embeds"))
    parts = [("pth", latents), ("pickle", text)]
    for part, value in [*parts, *([] if pooled is None else [("pickle: pooled_prompt_embeds", pooled)])]:
        if not isinstance(value, torch.Tensor) or not value.is_floating_point():
            raise SampleLineError(f"{place}.{part} is not a tensor of numbers, but {type(value).__name__}")
        if not value.isfinite().all():
            raise SampleLineError(f"{place}.{part} has values that are not finite")
    return Latents(latents, text, pooled)


class _TensorUnpickler(pickle.Unpickler):
    """Loads tensors, and what holds them, and refuses everything else that a pickle may call."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) == ("torch.storage", "_load_from_bytes"):
            return _storage
        if (module, name) in _TENSORS:
            return _TENSORS[module, name]
        raise pickle.UnpicklingError(f"{module}.{name} is refused: the file may hold tensors only")


def _storage(data: bytes) -> Any:
    """Return the storage of a tensor, which torch itself would load with whatever a pickle calls."""
    return torch.load(io.BytesIO(data), "cpu", weights_only=True)


def shapes(samples: Sequence[Latents]) -> set[tuple[int, ...]]:
    """Return the shapes of the latents of some samples."""
    return {tuple(sample.latents.shape) for sample in samples}
