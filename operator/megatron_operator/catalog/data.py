"""A recipe's data: what follows from what was said, and what is still missing."""

from collections.abc import Mapping
from typing import Any, Final

from megatron_contract.environment import DATA_DIR

from megatron_operator.api.errors import FieldError

DEFAULT_SPLIT: Final = "99,1,0"
PREPARED_TOKENIZER: Final = {
    "tokenizerType": "HuggingFaceTokenizer",
    "tokenizerModel": f"{DATA_DIR}/tokenizer",
}


def complete_data(
    data: dict[str, Any], model: dict[str, Any], origins: dict[str, str], notes: list[str]
) -> list[FieldError]:
    """Fill in what `prepare` or `mockData` decide (blend, tokenizer, vocabulary); return what is missing.

    What the recipe itself says is kept.
    """
    prepare = data.get("prepare")
    if prepare is not None:
        origin = origins["data.prepare"]
        if _is_overridden("data.blend", origin, origins):
            data["blend"] = [{"path": f"{prepare.get('name', 'corpus')}_text_document", "weight": 1.0}]
            origins["data.blend"] = "data.prepare"
        if _is_overridden("data.tokenizer", origin, origins):
            data["tokenizer"] = dict(PREPARED_TOKENIZER)
            origins["data.tokenizer"] = "data.prepare"
            if _is_overridden("model.vocabSize", origin, origins):
                before, after = model.get("vocabSize"), prepare["tokenizerVocabSize"]
                model["vocabSize"] = after
                origins["model.vocabSize"] = "data.prepare"
                if before not in (None, after):
                    notes.append(
                        f"vocabSize {before:,} becomes {after:,}: the tokenizer that data.prepare trains"
                    )
    if data.get("mockData") and _is_overridden("data.tokenizer", origins["data.mockData"], origins):
        data["tokenizer"] = {"tokenizerType": "NullTokenizer"}
        origins["data.tokenizer"] = "data.mockData"
    if data.get("tokenizer", {}).get("tokenizerType") == "GPT2BPETokenizer":
        notes.append(
            "GPT2BPETokenizer asks the model hub for gpt2 even with vocabFile and mergeFile; without"
            " internet in the pods use HuggingFaceTokenizer with a folder on the data volume"
        )
    if "split" not in data:
        data["split"] = DEFAULT_SPLIT
        origins["data.split"] = "default"
    return _missing(data)


def _is_overridden(path: str, origin: str, origins: Mapping[str, str]) -> bool:
    """Whether nothing of `origin`'s own layer is at `path`."""
    return origins.get(path) != origin


def _missing(data: Mapping[str, Any]) -> list[FieldError]:
    if data.get("mockData"):
        return []
    errors = []
    if not data.get("blend"):
        fix = (
            "give data.blend with data.volume, data.prepare for text to be tokenized, or data.mockData: true"
        )
        errors.append(FieldError("spec.data", "there is nothing to train on", fix))
    elif not data.get("volume"):
        fix = "set data.volume.claimName, or data.volume.size for a claim to be made"
        errors.append(FieldError("spec.data.volume", "no volume has the datasets of data.blend", fix))
    if not data.get("tokenizer", {}).get("tokenizerType"):
        fix = "set it, for example HuggingFaceTokenizer with tokenizerModel: /data/tokenizer"
        errors.append(FieldError("spec.data.tokenizer.tokenizerType", "is not set", fix))
    return errors
