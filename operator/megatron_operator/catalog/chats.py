"""`data.sources` of a recipe that fine-tunes: chats, or images or sound and text, which are prepared."""

import hashlib
import json
from collections.abc import Iterator, Mapping
from typing import Any, Final

from megatron_contract.environment import DATA_DIR

from megatron_operator.api.errors import FieldError, shown
from megatron_operator.catalog import data, sources
from megatron_operator.catalog.bridge_support import Media
from megatron_operator.catalog.validation_sets import has_validation_sets, validation_set_errors

_LEAVE: Final = "leave it out"
_KINDS: Final[Mapping[Media, str]] = {
    "images": "a vision-language model",
    "sound": "a model that takes sound",
    "media": "a model that takes images and sound",
}


def chat_errors(
    asked: Mapping[str, Any],
    tokenizer: str | None,
    tokenizer_field: str,
    *,
    media: Media,
    evaluates: bool,
) -> Iterator[FieldError]:
    """Errors of `data` with sources; `tokenizer` is its folder, which `tokenizer_field` names.

    `media`: the recipe reads samples with it instead of chats. `evaluates`: it reads those of validation.
    """
    what = "sample" if media else "chat"
    prepare = asked.get("prepare") or {}
    for number, source in enumerate(asked["sources"]):
        at = f"spec.data.sources[{number}]"
        yield from _sample_errors(source, at, media) if media else _format_errors(source, at)
        yield from sources.source_errors(source, at, media=media)
        if source.get("weight", 1.0) != 1.0:
            message = f"has no effect: an epoch has every {what} of every source once"
            yield FieldError(f"{at}.weight", message, "leave it out; documents takes fewer of a source")
    yield from sources.repeated_sources(sources.blend(asked["sources"], prepare, {}), "spec.data.sources")
    yield from _prepare_errors(prepare, f"{what}s")
    yield from data.workers_errors(asked)
    yield from sources.storage_errors(asked)
    if has_validation_sets(asked):
        yield from validation_set_errors(asked, split_asked="split" in asked, evaluates=evaluates)
    else:
        yield from _split_errors(asked.get("split", data.DEFAULT_SPLIT), what, evaluates=evaluates)
    if tokenizer is not None and not tokenizer.startswith(f"{DATA_DIR}/"):
        message = (
            f"{shown(tokenizer)} is not on the data volume, the only one of the pods that prepare {what}s"
        )
        fix = (
            f"copy the tokenizer there, and name its folder below {DATA_DIR} in data.tokenizer.tokenizerModel"
        )
        yield FieldError(f"spec.{tokenizer_field}", message, fix)


def _split_errors(split: str, what: str, *, evaluates: bool) -> Iterator[FieldError]:
    """Errors of a split that leaves nothing to a part that is read, or something to one that is not."""
    yield from data.split_errors(split)
    if evaluates and not data.validates(split):
        message = f"{split} leaves no {what} for the evaluations of the run"
        fix = "give a share to validation, for example 98,2,0, or set training.evalIters: 0"
        yield FieldError("spec.data.split", message, fix)
    if any(float(share) for share in split.split(",")[2:]):
        message = f"{split} gives a share to the test split, which fine-tuning does not read"
        yield FieldError(
            "spec.data.split", message, "give all to training and validation, for example 98,2,0"
        )


def _format_errors(source: Mapping[str, Any], at: str) -> Iterator[FieldError]:
    if source["format"] not in ("chat", "webdataset"):
        message = f"{source['format']} has no answers to fine-tune on: chat is read"
        fix = "convert it to chats (messages, or conversations), or set data.datasetRoot"
        yield FieldError(f"{at}.format", message, fix)


def _sample_errors(source: Mapping[str, Any], at: str, media: Media) -> Iterator[FieldError]:
    if source["format"] != "webdataset":
        kind = _KINDS[media]
        message = f"{source['format']} is not read by {kind}: webdataset is"
        fix = f"write tar files with a .json and the {media} of each sample (docs/fine-tuning.md)"
        yield FieldError(f"{at}.format", message, fix)
    if sources.in_object_storage(source):
        message = f"{shown(source['path'])} is in object storage, and the run itself reads the {media}"
        yield FieldError(f"{at}.path", message, "copy the tar files to the data volume")


def _prepare_errors(prepare: Mapping[str, Any], what: str) -> Iterator[FieldError]:
    for leaf in sorted({"include", "tokenizerVocabSize"} & prepare.keys()):
        yield FieldError(f"spec.data.prepare.{leaf}", f"has no effect on {what}", _LEAVE)
    if prepare.get("appendEod") is False:
        message = f"false has no effect on {what}: the chat template ends an answer"
        yield FieldError("spec.data.prepare.appendEod", message, _LEAVE)


def chat_root(
    asked: Mapping[str, Any], tokenizer: str | None, seq_length: int | None, *, media: Media
) -> str:
    """The folder of what is prepared, relative to the data volume. Its name is of what it depends on."""
    prepare = asked.get("prepare") or {}
    depends = [[each["path"], each.get("documents")] for each in asked["sources"]]
    endpoint = (prepare.get("objectStorage") or {}).get("endpointUrl")
    if endpoint and any(map(sources.in_object_storage, asked["sources"])):
        depends.append([endpoint])
    if has_validation_sets(asked):
        split: Any = [number for number, each in enumerate(asked["sources"]) if each.get("validation")]
    else:
        split = asked["split"]
    digest = hashlib.sha256(json.dumps([depends, tokenizer, seq_length, split]).encode()).hexdigest()
    return f"{sources.FOLDER}/{prepare.get('name', 'corpus')}-{digest[:12]}_{media or 'chats'}"
