"""`data.sources` of a recipe that fine-tunes: chats, prepared as the folder that Megatron-Bridge reads."""

import hashlib
import json
from collections.abc import Iterator, Mapping
from typing import Any, Final

from megatron_contract.environment import DATA_DIR

from megatron_operator.api.errors import FieldError, shown
from megatron_operator.catalog import data, sources

_LEAVE: Final = "leave it out"


def chat_errors(asked: Mapping[str, Any], tokenizer: str | None) -> Iterator[FieldError]:
    """Errors of `data` with sources; `tokenizer` is its folder, of the recipe or of the model."""
    prepare = asked.get("prepare") or {}
    for number, source in enumerate(asked["sources"]):
        at = f"spec.data.sources[{number}]"
        if source["format"] != "chat":
            message = f"{source['format']} has no answers to fine-tune on: chat is read"
            fix = "convert it to chats (messages, or conversations), or set data.datasetRoot"
            yield FieldError(f"{at}.format", message, fix)
        yield from sources.source_errors(source, at)
        if source.get("weight", 1.0) != 1.0:
            message = "has no effect: an epoch has every chat of every source once"
            yield FieldError(f"{at}.weight", message, "leave it out; documents takes fewer of a source")
    yield from sources.repeated_sources(sources.blend(asked["sources"], prepare, {}), "spec.data.sources")
    yield from _prepare_errors(prepare)
    yield from data.workers_errors(asked)
    yield from sources.storage_errors(asked)
    shares = [float(share) for share in asked.get("split", data.DEFAULT_SPLIT).split(",")]
    if any(shares[2:]):
        message = f"{asked['split']} gives a share to the test split, which fine-tuning does not read"
        yield FieldError(
            "spec.data.split", message, "give all to training and validation, for example 98,2,0"
        )
    if tokenizer is not None and not tokenizer.startswith(f"{DATA_DIR}/"):
        field = "data.tokenizer.tokenizerModel" if asked.get("tokenizer") else "init.modelFolder"
        message = f"{shown(tokenizer)} is not on the data volume, the only one of the pods that prepare chats"
        fix = (
            f"copy the tokenizer there, and name its folder below {DATA_DIR} in data.tokenizer.tokenizerModel"
        )
        yield FieldError(f"spec.{field}", message, fix)


def _prepare_errors(prepare: Mapping[str, Any]) -> Iterator[FieldError]:
    for leaf in sorted({"include", "tokenizerVocabSize"} & prepare.keys()):
        yield FieldError(f"spec.data.prepare.{leaf}", "has no effect on chats", _LEAVE)
    if prepare.get("appendEod") is False:
        message = "false has no effect on chats: the chat template ends an answer"
        yield FieldError("spec.data.prepare.appendEod", message, _LEAVE)


def chat_root(asked: Mapping[str, Any], tokenizer: str | None, seq_length: int | None) -> str:
    """The folder of the prepared chats, relative to the data volume. Its name is of what they depend on."""
    prepare = asked.get("prepare") or {}
    depends = [[each["path"], each.get("documents")] for each in asked["sources"]]
    endpoint = (prepare.get("objectStorage") or {}).get("endpointUrl")
    if endpoint and any(map(sources.in_object_storage, asked["sources"])):
        depends.append([endpoint])
    digest = hashlib.sha256(json.dumps([depends, tokenizer, seq_length, asked["split"]]).encode()).hexdigest()
    return f"{sources.FOLDER}/{prepare.get('name', 'corpus')}-{digest[:12]}_chats"
