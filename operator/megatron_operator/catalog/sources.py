"""The datasets that `data.sources` become."""

import hashlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import PurePosixPath
from typing import Any, Final

from megatron_contract.environment import DATA_DIR

from megatron_operator.api.errors import FieldError, shown
from megatron_operator.api.recipe import MegatronRecipeSpec, SourceSpec
from megatron_operator.catalog.bridge_support import Media

FOLDER: Final = "prepared"
"""Folder of the data volume with all prepared datasets."""
SCHEME: Final = "s3://"
"""Begins the path of objects."""
_PATTERN: Final = re.compile(r"[*?\[]")
_BUCKET: Final = re.compile(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]")
_NAMED_BY: Final = {"jsonl": "key", "parquet": "column", "hf": "column"}
"""Format -> the field that names where its text is."""
_COMPRESSED: Final = (".gz", ".zst")
_NOT_DECOMPRESSED: Final = {
    ".bz2": "compress it with gzip or zstd",
    ".xz": "compress it with gzip or zstd",
    ".lz4": "compress it with gzip or zstd",
    ".zip": "unpack it",
}
"""Suffixes that the preparation refuses in any file, with the fix."""


def with_formats(
    spec: MegatronRecipeSpec, *, fine_tunes: bool, media: Media = ""
) -> tuple[MegatronRecipeSpec, list[FieldError]]:
    """The recipe with the format of each source, and the errors of sources whose suffix leaves it open.

    Recipes that fine-tune take lines for chats unless `key` is set, or read samples with `media`.
    """
    if spec.data is None or not spec.data.sources:
        return spec, []
    errors = []
    completed = []
    for number, source in enumerate(spec.data.sources):
        kind = source.format or _format_of(source, fine_tunes=fine_tunes)
        unread = None if kind else _suffix_error(source.path, kind, f"spec.data.sources[{number}]")
        if unread is not None:
            errors.append(unread)
        elif kind is None:
            message = f"is not set, and the suffix of {shown(source.path)} leaves it open"
            fix = "set jsonl, chat, text, parquet, hf or webdataset"
            if fine_tunes:
                fix = "set chat, if each line is a conversation, or jsonl, if it has text"
                fix = "set webdataset, for tar files" if media else fix
            errors.append(FieldError(f"spec.data.sources[{number}].format", message, fix))
        completed.append(source.model_copy(update={"format": kind}))
    data = spec.data.model_copy(update={"sources": completed})
    return spec.model_copy(update={"data": data}), errors


def _format_of(source: SourceSpec, *, fine_tunes: bool) -> str | None:
    path = PurePosixPath(source.path)
    if path.suffix == ".parquet":
        return "parquet"
    suffix = PurePosixPath(path.stem).suffix if path.suffix in _COMPRESSED else path.suffix
    if suffix == ".txt":
        return "text"
    if suffix == ".tar":
        return "webdataset"
    # A line of .jsonl has text under a key, or is a conversation.
    if suffix == ".jsonl" and source.key is not None:
        return "jsonl"
    return "chat" if suffix == ".jsonl" and fine_tunes else None


def text_name(source: Mapping[str, Any]) -> str:
    """Where the text of a record is: the name of a key or column."""
    return str(source.get("key") or source.get("column") or "text")


def blend(
    sources: Sequence[Mapping[str, Any]], prepare: Mapping[str, Any], tokenizer: Mapping[str, Any]
) -> list[dict[str, Any]]:
    """The dataset of each source, with its weight.

    Its path names what the dataset depends on: recipes with the same source and tokenizer have it in common.
    """
    name = prepare.get("name", "corpus")
    endpoint = (prepare.get("objectStorage") or {}).get("endpointUrl")
    parts = []
    for source in sources:
        depends = [source["path"], source["format"], text_name(source), source.get("documents")]
        depends += [tokenizer.get("tokenizerModel"), prepare.get("appendEod", True)]
        if tokenizer.get("tokenizerType", "HuggingFaceTokenizer") != "HuggingFaceTokenizer":
            depends.append(tokenizer["tokenizerType"])
        depends += [endpoint] if endpoint and in_object_storage(source) else []
        digest = hashlib.sha256(json.dumps(depends).encode()).hexdigest()[:12]
        path = f"{FOLDER}/{name}-{digest}_text_document"
        part = {"path": path, "weight": source.get("weight", 1.0)}
        parts.append(part | ({"validation": True} if source.get("validation") else {}))
    return parts


def source_errors(source: Mapping[str, Any], at: str, *, media: Media = "") -> list[FieldError]:
    """Errors of one source: a path that no pod has, a field without effect, media that nothing reads."""
    found: list[FieldError] = []
    path, kind = source["path"], source["format"]
    if kind == "webdataset" and not media:
        message = "webdataset has images or sound, which only recipes of models that take them read"
        fix = "choose a recipe that fine-tunes such a model, or name files of text"
        found.append(FieldError(f"{at}.format", message, fix))
    if "://" in path:
        found += _object_errors(path, kind, at)
    elif not path.startswith("/"):
        fix = f"write it from the root, for example /data/{path}"
        found.append(FieldError(f"{at}.path", f"{shown(path)} is not a path in the pod", fix))
    elif not path.startswith(f"{DATA_DIR}/"):
        fix = f"copy the files to the data volume, which the pods mount at {DATA_DIR}"
        found.append(FieldError(f"{at}.path", f"{shown(path)} is not on the data volume", fix))
    if unread := _suffix_error(path, kind, at):
        found.append(unread)
    for field in ("key", "column"):
        if source.get(field) is not None and _NAMED_BY.get(kind) != field:
            fix = f"use {_NAMED_BY[kind]}" if kind in _NAMED_BY else "leave it out"
            found.append(FieldError(f"{at}.{field}", f"has no effect with format: {kind}", fix))
    return found


def _suffix_error(path: str, kind: str | None, at: str) -> FieldError | None:
    """The error of files whose suffix no reader of the format takes; of a format that is not set, of any."""
    if kind == "hf":
        return None
    name = PurePosixPath(path.lower())
    suffix, inner = name.suffix, PurePosixPath(name.stem).suffix
    is_compressed = suffix in _COMPRESSED or suffix in _NOT_DECOMPRESSED
    is_archive = suffix == ".tgz" or (is_compressed and inner == ".tar")
    if is_archive and kind not in (None, "webdataset"):
        return _archive_error(path, at)
    if is_archive or (is_compressed and kind == "webdataset"):
        fix = "decompress it, and name the .tar files"
        return FieldError(
            f"{at}.path", f"{shown(path)} is compressed: samples are read within tar files", fix
        )
    if is_compressed and (kind == "parquet" or inner == ".parquet"):
        fix = "decompress it, and name the .parquet files"
        return FieldError(
            f"{at}.path", f"{shown(path)} is compressed as a whole, which no Parquet file is", fix
        )
    if suffix in _NOT_DECOMPRESSED:
        return FieldError(f"{at}.path", f"{shown(path)} is not plain, .gz or .zst", _NOT_DECOMPRESSED[suffix])
    if suffix == ".parquet" and kind == "chat":
        fix = "write the conversations as JSON lines (to_json of datasets)"
        return FieldError(f"{at}.path", f"{shown(path)} is Parquet, and chats are JSON lines", fix)
    if suffix == ".parquet" and kind in ("jsonl", "text"):
        return FieldError(f"{at}.format", f"{kind} does not read {shown(path)}", "set parquet")
    return None


def archive_errors(found: Sequence[SourceSpec]) -> Iterator[FieldError]:
    """Errors of tar files whose format is that of single files.

    A run that an earlier release admitted may have prepared them.
    """
    for number, source in enumerate(found):
        if source.format not in (None, "webdataset", "hf") and source.path.lower().endswith(".tar"):
            yield _archive_error(source.path, f"spec.data.sources[{number}]")


def _archive_error(path: str, at: str) -> FieldError:
    fix = "unpack it, and name the files in it"
    return FieldError(f"{at}.path", f"{shown(path)} is an archive", fix)


def in_object_storage(source: Mapping[str, Any]) -> bool:
    """Whether the path of a source is of objects."""
    return str(source["path"]).startswith(SCHEME)


def _object_errors(path: str, kind: str, at: str) -> Iterator[FieldError]:
    bucket, _, key = path.removeprefix(SCHEME).partition("/")
    if not path.startswith(SCHEME):
        message = f"{shown(path)} is in a store whose protocol is not read"
        fix = "copy the files to a store with the S3 protocol (s3://bucket/...), or to the data volume"
        yield FieldError(f"{at}.path", message, fix)
    elif not _BUCKET.fullmatch(bucket):
        message = f"{shown(path)} has no bucket's name after s3://"
        fix = "write s3://bucket/name; a bucket cannot be a pattern"
        if bucket and not _PATTERN.search(bucket):
            message = f"{shown(bucket)} of {shown(path)} is not a bucket's name"
            fix = (
                "write 3 to 63 lower-case letters, digits, dots and dashes, the first and last no dot or dash"
            )
        yield FieldError(f"{at}.path", message, fix)
    elif not key:
        fix = f"name its objects, for example {SCHEME}{bucket}/*.jsonl"
        yield FieldError(f"{at}.path", f"{shown(path)} is a whole bucket", fix)
    elif any("**" in part and part != "**" for part in key.split("/")):
        yield FieldError(f"{at}.path", f"{shown(path)} is not a pattern", "write ** alone between slashes")
    if path.startswith(SCHEME) and kind == "hf":
        message = "hf is read from volumes only"
        fix = "write Parquet to the bucket (to_parquet of datasets) and set format: parquet"
        yield FieldError(f"{at}.format", message, fix)


def storage_errors(data: Mapping[str, Any]) -> list[FieldError]:
    """The error of an object store of which no source reads."""
    storage = (data.get("prepare") or {}).get("objectStorage")
    if storage is None or any(in_object_storage(source) for source in data.get("sources") or []):
        return []
    message = f"has no effect without a path in data.sources that begins with {SCHEME}"
    return [FieldError("spec.data.prepare.objectStorage", message, "leave it out, or name objects")]


def repeated_sources(parts: Sequence[Mapping[str, Any]], at: str) -> list[FieldError]:
    """Errors of sources that become the same dataset as an earlier one; `parts` is what `blend` returns."""
    first: dict[str, int] = {}
    found = []
    for number, part in enumerate(parts):
        other = first.setdefault(part["path"], number)
        if other != number:
            message = f"is the same as sources[{other}]"
            same = bool(part.get("validation")) == bool(parts[other].get("validation"))
            fix = "leave one out, and add its weight to the other" if same else "leave one of the two out"
            found.append(FieldError(f"{at}[{number}]", message, fix))
    return found
