"""Encodes text with tiktoken where it gives the ids of a tokenizer of Hugging Face, several times faster.

Both libraries split text by a pattern and merge the bytes of each piece. They differ in how they choose a
merge: Hugging Face by a list of pairs, tiktoken by the rank of the token that a pair becomes. `_ranks`
decides for a vocabulary whether that is the same. It is, if

- each token whose own bytes Hugging Face merges to that one token has a rank, in the order of its merges;
- no other token has one, or only tokens whose own bytes Hugging Face leaves as three tokens or more.

Proof: let both have made the same merges of a text, and let two adjacent tokens be all of the bytes of a
token t with a rank. No merge has crossed the ends of these bytes, so the merges within were those, in the
same order, by which Hugging Face begins to merge the bytes of t alone. That passes through one pair only. If
it ends with t, the pair is its last merge, and so in the list. If it ends with three tokens or more, there is
no such pair. So both see the same pairs, in the same order.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from itertools import batched, chain, groupby
from pathlib import Path
from typing import Any, Final

import numpy as np

from megatron_trainer.errors import TrainerError

_GPT2: Final = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_CONTRACTION: Final = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_SPACES: Final = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_BEFORE: Final = r"[^\r\n\p{L}\p{N}]?"
_SIGNS: Final = r" ?[^\s\p{L}\p{N}]+"
PATTERNS: Final[Mapping[str, str]] = {
    "GPT-2": _GPT2,
    "Llama 3": rf"{_CONTRACTION}|{_BEFORE}\p{{L}}+|\p{{N}}{{1,3}}|{_SIGNS}[\r\n]*|{_SPACES}",
    "Qwen 2": rf"{_CONTRACTION}|{_BEFORE}\p{{L}}+|\p{{N}}|{_SIGNS}[\r\n]*|{_SPACES}",
    "Qwen 3.5": (
        rf"{_CONTRACTION}|{_BEFORE}[\p{{L}}\p{{M}}]+|\p{{N}}"
        rf"| ?[^\s\p{{L}}\p{{M}}\p{{N}}]+[\r\n]*|{_SPACES}"
    ),
    "GPT-4o": (
        rf"{_BEFORE}{_UPPER}*{_LOWER}+{_CONTRACTION}?|{_BEFORE}{_UPPER}+{_LOWER}*{_CONTRACTION}?"
        rf"|\p{{N}}{{1,3}}|{_SIGNS}[\r\n/]*|{_SPACES}"
    ),
    "Tekken": (
        rf"{_BEFORE}{_UPPER}*{_LOWER}+|{_BEFORE}{_UPPER}+{_LOWER}*|\p{{N}}|{_SIGNS}[\r\n/]*|{_SPACES}"
    ),
}
"""Patterns by a model that has them. Every character is part of a match: tiktoken drops what is not."""
_WINDOW: Final = 1 << 15
"""tiktoken's matcher gives up on runs of about a million characters; all runs of two windows are found."""
_NO_TEXT: Final = "<|megatron-prepare: no token|>"
# Planes without assigned characters differ in nothing, so one of 256 of their characters stands for all.
_CHARACTERS: Final = (
    range(0xD800),
    range(0xE000, 0x33480),
    range(0xE0000, 0xE1000),
    range(0x33480, 0x110000, 256),
)
_BATCH: Final = 4096


class ByteLevelError(TrainerError):
    """A tokenizer is not one whose ids tiktoken is known to give. The text names what it has."""


class ByteLevel:
    """A byte-level BPE of a tokenizer.json, encoded by tiktoken."""

    def __init__(self, path: Path, tokenizer: Any, dtype: np.dtype[Any]) -> None:
        """Read `path`, a tokenizer.json, which `tokenizer` is loaded from; ids will be of `dtype`.

        Raises ByteLevelError.
        """
        import tiktoken

        made = json.loads(path.read_text(encoding="utf-8"))
        pattern = _pattern(made.get("pre_tokenizer"))
        self._normalizer = tokenizer.normalizer if _is_nfc(made.get("normalizer")) else None
        self._added = self._pattern_of(made.get("added_tokens", []))
        ranks = _ranks(made.pop("model"))
        check_classes(pattern)
        self._ids = np.array(list(ranks.values()), dtype=dtype)
        self._encoding = tiktoken.Encoding(
            path.parent.name,
            pat_str=pattern,
            mergeable_ranks={token: rank for rank, token in enumerate(ranks)},
            special_tokens={_NO_TEXT: len(ranks)},  # with none its matcher stops at each character
        )

    def _pattern_of(self, added: Sequence[Mapping[str, Any]]) -> re.Pattern[str] | None:
        contents = {token["content"] for token in added} - {""}
        contents |= {self._normalized(each) for each in contents}
        return re.compile("|".join(map(re.escape, sorted(contents)))) if contents else None

    def _normalized(self, text: str) -> str:
        if self._normalizer is None or text.isascii():
            return text
        normalized: str = self._normalizer.normalize_str(text)
        return normalized

    def encode(self, text: str) -> np.ndarray[Any, Any] | None:
        """Return the ids, an array of shape [tokens]; None for a text that must be left to Hugging Face.

        That has an added token, or a run of characters that is too long for tiktoken.
        """
        normalized = self._normalized(text)
        for each in {text, normalized}:
            if self._added is not None and self._added.search(each):
                return None
        if _has_long_run(normalized):
            return None
        try:
            ranks = self._encoding.encode_to_numpy(normalized, disallowed_special=())
        except ValueError:  # its matcher gave up
            return None
        ids: np.ndarray[Any, Any] = self._ids[ranks]
        return ids


def _has_long_run(text: str) -> bool:
    """Return whether there is a run of two windows, or of some less, of white space or without it."""
    for start in range(0, len(text) - _WINDOW + 1, _WINDOW):
        window = text[start : start + _WINDOW]
        if window.isspace() or len(window.split(maxsplit=1)[0]) == _WINDOW:
            return True
    return False


def _is_nfc(normalizer: Mapping[str, Any] | None) -> bool:
    """Whether text is normalized, to NFC."""
    kinds = [] if normalizer is None else [normalizer["type"]]
    if kinds == ["Sequence"] and normalizer is not None:
        kinds = [each["type"] for each in normalizer["normalizers"]]
    if kinds not in ([], ["NFC"]):
        raise ByteLevelError(f"its normalizer is {' and '.join(kinds)}")
    return bool(kinds)


def _pattern(pre_tokenizer: Mapping[str, Any] | None) -> str:
    """The pattern by which text is split before its bytes are merged."""
    if pre_tokenizer is None:
        raise ByteLevelError("it has no pre_tokenizer")
    steps = pre_tokenizer["pretokenizers"] if pre_tokenizer["type"] == "Sequence" else [pre_tokenizer]
    kinds = [step["type"] for step in steps]
    if kinds not in (["ByteLevel"], ["Split", "ByteLevel"]):
        raise ByteLevelError(f"its pre_tokenizer is {' and '.join(kinds) or 'empty'}")
    split, last = steps[0], steps[-1]
    if last.get("add_prefix_space", True):
        raise ByteLevelError("it adds a space before each text")
    own = bool(last.get("use_regex", True))
    if kinds == ["ByteLevel"] and own:
        return _GPT2
    pattern: str | None = split["pattern"].get("Regex") if kinds[0] == "Split" else None
    if own:
        raise ByteLevelError("text is split by two patterns")
    if pattern is None or pattern not in PATTERNS.values():
        raise ByteLevelError(f"text is split by {pattern!r}, which is not one of {', '.join(PATTERNS)}")
    if split["behavior"] != "Isolated" or split["invert"]:
        raise ByteLevelError(f"text is split with {split['behavior']}, invert {split['invert']}")
    return pattern


def byte_characters() -> dict[str, int]:
    """Return which byte each character of a byte-level vocabulary stands for (bytes_to_unicode of GPT-2)."""
    shown = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in shown]
    characters = {chr(byte): byte for byte in shown}
    return characters | {chr(256 + number): byte for number, byte in enumerate(others)}


def _ranks(model: dict[str, Any]) -> dict[bytes, int]:
    """Id of each token that tiktoken may make, in the order of its ranks. See the module for why it suffices.

    `model` loses its merges: there may be half a million.
    """
    if model.get("type") != "BPE":
        raise ByteLevelError(f"its model is {model.get('type')}")
    for name in ("dropout", "continuing_subword_prefix", "end_of_word_suffix", "byte_fallback"):
        if model.get(name):
            raise ByteLevelError(f"its model has {name} {model[name]!r}")
    characters = byte_characters()
    # Text has no other characters by then, so no other tokens.
    vocabulary = {
        token: number
        for token, number in model["vocab"].items()
        if token and not set(token) - characters.keys()
    }
    if missing := [byte for character, byte in characters.items() if character not in vocabulary]:
        raise ByteLevelError(f"its vocabulary lacks {len(missing)} of the 256 bytes")
    merges: list[tuple[str, str]] = [
        tuple(pair.split(" ") if isinstance(pair, str) else pair) for pair in model.pop("merges")
    ]
    merged = list(dict.fromkeys(map("".join, merges)))
    if len(merged) != sum(1 for _ in groupby(merges, key="".join)):
        raise ByteLevelError("merges to the same token are not next to each other")
    alone = dict(zip(vocabulary, _merged_alone(model["vocab"], merges, list(vocabulary)), strict=True))
    order = [*characters, *(token for token in merged if alone.get(token) == 1)]
    if model.get("ignore_merges"):
        unreachable = [token for token, count in alone.items() if count > 1]
        if pairs := [token for token in unreachable if alone[token] == 2]:
            raise ByteLevelError(
                f"{len(pairs)} tokens, as {pairs[0]!r}, are only made of whole pieces of text"
            )
        order += unreachable
    return {bytes(characters[each] for each in token): vocabulary[token] for token in order}


def _merged_alone(
    vocabulary: dict[str, int], merges: Sequence[tuple[str, str]], tokens: Sequence[str]
) -> Iterator[int]:
    """Number of tokens to which Hugging Face merges the bytes of each token."""
    from tokenizers import Tokenizer, models

    model = Tokenizer(models.BPE(vocab=vocabulary, merges=merges))
    for some in batched(tokens, _BATCH):
        yield from (len(each.ids) for each in model.encode_batch_fast(list(some)))


@cache
def check_classes(pattern: str) -> None:
    """Raise ByteLevelError unless the matchers of both libraries mean the same characters by its classes.

    They have tables of Unicode of their own.
    """
    import tiktoken
    from tokenizers import Regex, pre_tokenizers

    characters = "".join(map(chr, chain(*_CHARACTERS)))
    classes = {*re.findall(r"\\p\{\w+\}", pattern), r"\s"}
    if "(?i:" in pattern:
        classes.add("(?i:[sdmtlvre])")
    for each in sorted(classes):
        encoding = tiktoken.Encoding(
            each,
            pat_str=f"{each}+",
            mergeable_ranks={bytes([byte]): byte for byte in range(256)},
            special_tokens={},
        )
        theirs = bytes(encoding.encode_ordinary(characters)).decode()
        split = pre_tokenizers.Split(Regex(f"{each}+"), "removed", invert=True)
        if theirs != "".join(piece for piece, _ in split.pre_tokenize_str(characters)):
            raise ByteLevelError(f"tiktoken and Hugging Face differ in the characters of {each}")
