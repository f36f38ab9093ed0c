"""Reads and writes the folder of a Hugging Face model: config.json, tokenizer, safetensors."""

import json
import re
import shutil
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from megatron_trainer.weights import quantized
from megatron_trainer.weights.audit import AUDIT_FILE
from megatron_trainer.weights.conversion_error import ConversionError
from megatron_trainer.weights.quantized import CONFIG_FIELD, StoredTensor
from megatron_trainer.weights.safetensors_file import DTYPES, SafetensorsFile
from megatron_trainer.weights.tensors import Header, dtype_of, name_of

CONFIG = "config.json"
SINGLE = "model.safetensors"
"""The weights of a model that has no index."""
INDEX = "model.safetensors.index.json"
DOWNLOAD_FILE = "hub-download.json"
"""Name, revision and commit of a model that was downloaded from a hub; written when it is complete."""
SHARD_BYTES = 4 << 30
_HUB_NAME = re.compile(r"[\w.-]+/[\w.-]+")
_WEIGHT_SUFFIXES = {".safetensors", ".bin", ".pt", ".pth", ".gguf", ".h5", ".msgpack", ".onnx"}


@dataclass(frozen=True)
class HuggingFaceFolder:
    """A model's folder. `headers` is empty if it has a configuration only."""

    path: Path
    config: Mapping[str, Any]
    headers: Mapping[str, Header]
    stored: Mapping[str, StoredTensor] = field(default_factory=dict)
    """Those of the tensors that are stored in few bits; `headers` has their values."""

    @property
    def architecture(self) -> str:
        """The first of `architectures` in config.json."""
        return str(self.config["architectures"][0])

    @property
    def has_weights(self) -> bool:
        """Whether the tensors themselves are there."""
        return any(header.file is not None for header in self.headers.values())

    @property
    def has_other_layout(self) -> bool:
        """Whether there are weights that `headers` leaves out, and no index that does so too."""
        if (self.path / INDEX).is_file():
            return False
        return set(_shards(self.path)) < set(self.path.glob("*.safetensors"))

    @property
    def tied(self) -> bool:
        """Whether config.json ties the output layer to the embedding; transformers' default is by family."""
        for settings in _parts(self.config).values():
            if (tied := settings.get("tie_word_embeddings")) is not None:
                return bool(tied)
        import transformers

        # Classes of models that also read images need not have it.
        return bool(getattr(transformers.AutoConfig.from_pretrained(self.path), "tie_word_embeddings", False))

    @property
    def dtype(self) -> str:
        """The dtype of most of the floating-point weights."""
        sizes: dict[str, int] = {}
        for header in self.headers.values():
            size = 1
            for length in header.shape:
                size *= length
            sizes[header.dtype] = sizes.get(header.dtype, 0) + size
        return max(sizes, key=lambda name: sizes[name])

    def tensors(self) -> Iterator[tuple[str, Any]]:
        """Yield names and tensors, one file after the other."""
        for name, header in sorted(self.headers.items(), key=lambda item: str(item[1].file)):
            if header.file is not None:
                yield name, self.tensor(name)

    def tensor(self, name: str) -> Any:
        """Read a tensor of `headers`, whose file is there."""
        if name not in self.stored:
            return _read_tensor(name, self.headers[name])
        found = self.stored[name]
        return found.values(*(_read_tensor(part, header) for part, header in found.parts.items()))


def _read_tensor(name: str, header: Header) -> Any:
    from safetensors import safe_open

    # Opened for each: pages that were read stay mapped until the file is closed.
    with safe_open(header.file, framework="pt") as opened:
        return opened.get_tensor(name)


def is_folder(path: Path) -> bool:
    """Whether a Hugging Face model is there, not a checkpoint of Megatron."""
    return (path / CONFIG).is_file()


def read(path: Path, flag: str, *, weights: bool) -> HuggingFaceFolder:
    """Check a folder and read its headers; with `weights` it must have some.

    Raises ConversionError for a hub name, a folder without config.json or weights, and torn files.
    """
    if not path.is_dir():
        if _HUB_NAME.fullmatch(str(path)) and not path.exists():
            raise ConversionError(
                f"{flag} {path} is not a folder. If it is a name on the Hugging Face hub: conversion is "
                f"offline; download the model first (hf download {path} --local-dir FOLDER), then give FOLDER"
            )
        raise ConversionError(f"{flag} {path} is not a folder; mount or download the model there")
    config = _read_config(path, flag)
    headers = {} if not weights and not _shards(path) else _read_headers(path, flag)
    if weights and not headers:
        others = sorted(file.name for file in path.iterdir() if file.suffix in _WEIGHT_SUFFIXES)
        found = f"; it has {', '.join(others[:3])}: save it as safetensors" if others else ""
        raise ConversionError(f"{flag} {path} has no *.safetensors file{found}")
    quantization = next(iter(_quantizations(config).values()), {})
    stored = quantized.find(headers, quantization, path)
    return HuggingFaceFolder(path, config, quantized.as_values(headers, stored), stored)


def _read_config(path: Path, flag: str) -> Mapping[str, Any]:
    file = path / CONFIG
    if not file.is_file():
        raise ConversionError(
            f"{flag} {path} has no {CONFIG}; give the folder that `save_pretrained` of transformers wrote"
        )
    try:
        config = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConversionError(f"{file} is not JSON: {error}; download it again") from error
    names = config.get("architectures") if isinstance(config, dict) else None
    if not isinstance(names, list) or not names or not isinstance(names[0], str):
        raise ConversionError(f'{file} has no architectures; add for example ["LlamaForCausalLM"]')
    for place, quantization in _quantizations(config).items():
        quantized.require_readable(quantization, f"{file}: {place}")
    return dict(config)


def _quantizations(config: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """Return how weights are quantized, by the path of the field."""
    found = {place + CONFIG_FIELD: part.get(CONFIG_FIELD) for place, part in _parts(config).items()}
    return {place: each for place, each in found.items() if isinstance(each, Mapping)}


def _parts(config: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """Return the settings of a model and of its text's parts, by the path before their names.

    The order is that in which they count: the whole, then the text of a model that also reads images.
    """
    thinker = _settings(config, "thinker_config")
    return {
        "": config,
        "text_config.": _settings(config, "text_config"),
        "llm_config.": _settings(config, "llm_config"),
        "thinker_config.": thinker,
        "thinker_config.text_config.": _settings(thinker, "text_config"),
    }


def _settings(config: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    found = config.get(name)
    return found if isinstance(found, Mapping) else {}


def _shards(path: Path) -> list[Path]:
    # Some models have the weights a second time, in another layout.
    if (path / SINGLE).is_file():
        return [path / SINGLE]
    return sorted(file for file in path.glob("*.safetensors") if file.is_file())


def _read_headers(path: Path, flag: str) -> dict[str, Header]:
    from safetensors import SafetensorError, safe_open

    files = _shards(path)
    if (path / INDEX).is_file():
        try:
            placed = json.loads((path / INDEX).read_text(encoding="utf-8"))["weight_map"]
            files = [path / name for name in sorted(set(placed.values()))]
        except (OSError, ValueError, KeyError, AttributeError, TypeError) as error:
            raise ConversionError(f"{path / INDEX} is not an index of safetensors: {error!r}") from error
        if absent := [file.name for file in files if not file.is_file()]:
            raise ConversionError(
                f"{flag} {path} lacks {', '.join(absent[:3])}, named in {INDEX}: {len(absent)} of "
                f"{len(files)} files are missing; download them"
            )
    headers: dict[str, Header] = {}
    for file in files:
        try:
            with safe_open(file, framework="pt") as opened:
                for name in opened.keys():  # noqa: SIM118 -- not a mapping
                    part = opened.get_slice(name)
                    dtype = DTYPES.get(part.get_dtype(), part.get_dtype())
                    headers[name] = Header(file, tuple(part.get_shape()), dtype)
        except (OSError, SafetensorError) as error:
            raise ConversionError(
                f"{file} is damaged or truncated ({file.stat().st_size:,} bytes): {error}; download it again"
            ) from error
    return headers


def copy_small_files(source: Path, target: Path) -> None:
    """Copy configuration, tokenizer and licence: all files but weights.

    They stay as they are, but that config.json loses how weights are quantized: what is written is not.
    """
    target.mkdir(exist_ok=True)
    for file in small_files(source):
        shutil.copyfile(file, target / file.name)
    _forget_quantization(target / CONFIG)


def small_files(folder: Path) -> list[Path]:
    """Return the files of a model but its weights, in order."""
    own = (INDEX, AUDIT_FILE, DOWNLOAD_FILE)
    return [
        file
        for file in sorted(folder.iterdir())
        if file.is_file() and file.suffix not in _WEIGHT_SUFFIXES and file.name not in own
    ]


def _forget_quantization(file: Path) -> None:
    config = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
    parts = [part for part in _parts(config).values() if isinstance(part, dict) and CONFIG_FIELD in part]
    for part in parts:
        del part[CONFIG_FIELD]
    if parts:
        file.write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")


def set_dtype(folder: Path, dtype: str) -> None:
    """Have config.json name the dtype of the weights, if it names one."""
    file = folder / CONFIG
    config = json.loads(file.read_text(encoding="utf-8"))
    fields = [name for name in ("dtype", "torch_dtype") if config.get(name, dtype) != dtype]
    if fields:
        config |= dict.fromkeys(fields, dtype)
        file.write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")


def write_weights(folder: Path, tensors: Iterable[tuple[str, Any]], shard_bytes: int = SHARD_BYTES) -> None:
    """Write files of at most `shard_bytes`, one tensor in memory, and the index if there are several."""
    names: list[list[str]] = []
    total = 0
    open_file: SafetensorsFile | None = None

    def finish(file: SafetensorsFile) -> None:
        nonlocal total
        file.finish()
        names.append(file.names)
        total += file.bytes

    for name, tensor in tensors:
        if open_file is not None and open_file.bytes + tensor.nbytes > shard_bytes:
            finish(open_file)
            open_file = None
        open_file = open_file or SafetensorsFile(folder / f"{len(names) + 1:05}.partial")
        open_file.add(name, tensor)
    if open_file is not None:
        finish(open_file)
    placed: dict[str, str] = {}
    for number, inside in enumerate(names, 1):
        single = len(names) == 1
        file = SINGLE if single else f"model-{number:05}-of-{len(names):05}.safetensors"
        (folder / f"{number:05}.partial").rename(folder / file)
        placed |= dict.fromkeys(inside, file)
    if len(names) > 1:
        index = {"metadata": {"total_size": total}, "weight_map": placed}
        (folder / INDEX).write_text(json.dumps(index, indent=2) + "\n", encoding="utf-8")


def conform(tensors: Iterable[tuple[str, Any]], headers: Mapping[str, Header]) -> Iterator[tuple[str, Any]]:
    """Yield the tensors in the dtypes of `headers`, where the values stay the same.

    Megatron keeps some in float32, such as the bias of a router, whatever the source has.
    """
    for name, tensor in tensors:
        wanted = headers[name].dtype if name in headers else name_of(tensor.dtype)
        if wanted == name_of(tensor.dtype):
            yield name, tensor
            continue
        cast = tensor.to(dtype_of(wanted))
        same = bool((cast.to(tensor.dtype) == tensor).all())
        yield name, cast if same else tensor
