"""Checks of `spec.data.tokenizer`."""

import difflib
from typing import Final

from megatron_operator.api.errors import FieldError, shown
from megatron_operator.catalog.resolved import ResolvedRecipe

TOKENIZER_TYPES: Final = (
    "HuggingFaceTokenizer",
    "SentencePieceTokenizer",
    "GPTSentencePieceTokenizer",
    "Llama2Tokenizer",
    "TikTokenizer",
    "GPT2BPETokenizer",
    "BertWordPieceLowerCase",
    "BertWordPieceCase",
    "NullTokenizer",
)
"""Types that Megatron builds and the trainer's data sets use (`build_tokenizer` of megatron-core 0.19.2)."""
OTHER_PROGRAMS: Final = ("SFTTokenizer", "MultimodalTokenizer", "NullMultimodalTokenizer")
"""Types that belong to programs of Megatron which the trainer does not run."""


def tokenizer_errors(resolved: ResolvedRecipe) -> list[FieldError]:
    """The error of a tokenizer type that the trainer cannot use."""
    tokenizer = resolved.data.tokenizer
    asked = tokenizer.tokenizer_type if tokenizer else None
    if asked is None or asked in TOKENIZER_TYPES:
        return []
    known = ", ".join(TOKENIZER_TYPES)
    if asked in OTHER_PROGRAMS:
        message, fix = f"{asked} belongs to a program that the trainer does not run", f"set one of {known}"
    else:
        near = difflib.get_close_matches(asked, TOKENIZER_TYPES, n=1)
        message = f"Megatron has no tokenizer type {shown(asked)}"
        fix = f"did you mean {near[0]}?" if near else f"set one of {known}"
    return [FieldError("spec.data.tokenizer.tokenizerType", message, fix)]
