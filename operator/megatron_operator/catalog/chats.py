"""`data.sources` of a recipe that fine-tunes: chats and documents, or images or sound and text."""

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
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
        if media:
            yield from _sample_errors(source, at, media)
        yield from sources.source_errors(source, at, media=media)
    yield from _media_weight_errors(asked["sources"]) if media else _weight_errors(asked["sources"])
    yield from sources.repeated_sources(sources.blend(asked["sources"], prepare, {}), "spec.data.sources")
    yield from _prepare_errors(prepare, f"{what}s", any(map(is_text, asked["sources"])))
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


def is_blended(weights: Iterable[float]) -> bool:
    """Whether sources are read by weight. With 1 for all, the default, an epoch has each sample once."""
    return any(weight != 1.0 for weight in weights)


def is_text(source: Mapping[str, Any]) -> bool:
    """Whether a source has documents, all of whose tokens the loss counts."""
    return source["format"] not in ("chat", "webdataset")


def _weight_errors(listed: Sequence[Mapping[str, Any]]) -> Iterator[FieldError]:
    """Errors of a weight beside which there is no other: of sources to train on, or for validation alone."""
    for validation, use in ((False, "to train on"), (True, "for validation alone")):
        numbers = [number for number, each in enumerate(listed) if bool(each.get("validation")) == validation]
        if len(numbers) == 1 and (weight := listed[numbers[0]].get("weight", 1.0)) != 1.0:
            message = f"{weight:g} has no effect: it is the only source {use}"
            fix = "leave it out, or list the sources that it is mixed with"
            yield FieldError(f"spec.data.sources[{numbers[0]}].weight", message, fix)


def _media_weight_errors(listed: Sequence[Mapping[str, Any]]) -> Iterator[FieldError]:
    for number, source in enumerate(listed):
        if source.get("weight", 1.0) != 1.0:
            message = "has no effect: an epoch has every sample of every source once"
            fix = "leave it out; documents takes fewer of a source"
            yield FieldError(f"spec.data.sources[{number}].weight", message, fix)


def _sample_errors(source: Mapping[str, Any], at: str, media: Media) -> Iterator[FieldError]:
    if source["format"] != "webdataset":
        kind = _KINDS[media]
        message = f"{source['format']} is not read by {kind}: webdataset is"
        fix = f"write tar files with a .json and the {media} of each sample (docs/fine-tuning.md)"
        yield FieldError(f"{at}.format", message, fix)
    if sources.in_object_storage(source):
        message = f"{shown(source['path'])} is in object storage, and the run itself reads the {media}"
        yield FieldError(f"{at}.path", message, "copy the tar files to the data volume")


def _prepare_errors(prepare: Mapping[str, Any], what: str, has_text: bool) -> Iterator[FieldError]:
    for leaf in sorted({"include", "tokenizerVocabSize"} & prepare.keys()):
        yield FieldError(f"spec.data.prepare.{leaf}", f"has no effect on {what}", _LEAVE)
    if prepare.get("appendEod") is False:
        message = f"false has no effect on {what}: the chat template ends an answer"
        message += ", and each document has its end token" if has_text else ""
        yield FieldError("spec.data.prepare.appendEod", message, _LEAVE)


def chat_root(
    asked: Mapping[str, Any], tokenizer: str | None, seq_length: int | None, *, media: Media
) -> str:
    """The folder of what is prepared, relative to the data volume. Its name is of what it depends on."""
    prepare = asked.get("prepare") or {}
    depends = [[each["path"], each.get("documents"), *_read_as(each)] for each in asked["sources"]]
    if is_blended(weights := [each.get("weight", 1.0) for each in asked["sources"]]):
        depends.append([weights])
    endpoint = (prepare.get("objectStorage") or {}).get("endpointUrl")
    if endpoint and any(map(sources.in_object_storage, asked["sources"])):
        depends.append([endpoint])
    if has_validation_sets(asked):
        split: Any = [number for number, each in enumerate(asked["sources"]) if each.get("validation")]
    else:
        split = asked["split"]
    digest = hashlib.sha256(json.dumps([depends, tokenizer, seq_length, split]).encode()).hexdigest()
    return f"{sources.FOLDER}/{prepare.get('name', 'corpus')}-{digest[:12]}_{media or 'chats'}"


def _read_as(source: Mapping[str, Any]) -> tuple[str, ...]:
    return (source["format"], sources.text_name(source)) if is_text(source) else ()
