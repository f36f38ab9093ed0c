"""Encodes documents with tiktoken as long as its ids are those of the Hugging Face tokenizer."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import chain
from pathlib import Path
from typing import Any, Final

import numpy as np

from megatron_trainer.data.byte_level import ByteLevel, ByteLevelError
from megatron_trainer.data.shards import Encoder, batches

TRICKY: Final = (
    "",
    " ",
    "\n",
    "  two  three   four    \n\n\n  \t \r\n\r\n   x\u00a0\u00a0y\u2003\u3000z \u0085\u200b\ufeff ",
    "I'm you'RE he'S we'Ve they'lL o'D don't 'tis '\u017fharp \u212aelvin K\u0130\u0131",
    "0 12 345 6789 10111213 3.14159 1e-9 0x7F \u0663\u0664 \u2167\u00bd\u00b2 12th 4x4",
    "def f(x): return {'a': [1, -2], \"b\": x**2}  # comment\n\treturn None;;; ==== !=\n",
    "Stra\u00dfe caf\u00e9 cafe\u0301 \u1e9b\u0323 \u01c5 \uac00 \u1100\u1161 \u0f71\u0f72 \u0344",
    "\u65e5\u672c\u8a9e\u306e\u6587\u7ae0\u3002\u4e2d\u6587\uff0c\ud55c\uad6d\uc5b4",
    "\u0627\u0644\u0639\u0631\u0628\u064a\u0629",
    "\u0939\u093f\u0928\u094d\u0926\u0940 \u0e44\u0e17\u0e22 \U00010400\U0001d7d8\U000e0041",
    "\U0001f600\U0001f468\u200d\U0001f469\u200d\U0001f467 \U0001f1e9\U0001f1ea \u2764\ufe0f",
    "\x00\x01\x1c\x1d\x1e\x1f\x7f\x85 \ufffd\uffff\U0010ffff \ue000\u0378\u1e9e",
    "<|endoftext|> <s></s> <|im_start|>user\nhi<|im_end|>[INST] <unk> <pad>",
    "a" * 300 + " " * 300 + "ab" * 300 + "\n" * 300 + "=" * 300 + "0" * 300 + "A" * 300,
    "CamelCaseWORDS andSOMEmore XMLHttpRequest \u00c9COLE\u00e9cole /path/to//x\r\n/ ...\n\n/",
)
"""Texts in which tokenizers differ."""
_FIRST: Final = 256 << 10
"""Characters of the first documents that both encode."""


class FastEncoder:
    """An Encoder that uses tiktoken where it may. `log` takes a line that names what is used, and why."""

    def __init__(self, exact: Encoder, folder: Path, threads: int, log: Callable[[str], None]) -> None:
        """Encode as `exact` does, the tokenizer of `folder`, with this many threads."""
        self._exact, self._threads, self._log = exact, threads, log
        self._fast: ByteLevel | None = None
        self._is_compared = False
        try:
            self._fast = ByteLevel(folder / "tokenizer.json", exact.tokenizer, exact.dtype)
        except ByteLevelError as error:
            self._log(f"encoding with Hugging Face tokenizers, not with tiktoken: {error}")
            return
        self._compare(list(TRICKY))
        if self._fast is not None:
            self._log("encoding with tiktoken, whose ids are those of Hugging Face tokenizers")

    @property
    def vocabulary(self) -> int:
        """The smallest number that is larger than all ids."""
        return self._exact.vocabulary

    @property
    def eod(self) -> int | None:
        """The id that is appended to each document; None for none."""
        return self._exact.eod

    @property
    def dtype(self) -> np.dtype[Any]:
        """The type that Megatron gives ids of a vocabulary of this size."""
        return self._exact.dtype

    def encode(self, texts: Iterable[str]) -> Iterator[np.ndarray[Any, Any]]:
        """Yield the ids of each text that has some, an array of shape [tokens]."""
        if self._fast is None:
            yield from self._exact.encode(texts)
            return
        with ThreadPoolExecutor(self._threads) as pool:
            for batch in batches(texts):
                if not self._is_compared:
                    self._compare(list(_first(batch, _FIRST)))
                    self._is_compared = True
                if self._fast is None:
                    yield from self._exact.encode(batch)
                    continue
                parts = [batch]
                if self._threads > 1:
                    # A few parts for each thread, as documents differ in length.
                    size = -(-len(batch) // (4 * self._threads))
                    parts = [batch[start : start + size] for start in range(0, len(batch), size)]
                encode = pool.map if len(parts) > 1 else map
                yield from chain.from_iterable(encode(self._encode, parts))

    def _encode(self, texts: Sequence[str]) -> list[np.ndarray[Any, Any]]:
        assert self._fast is not None, "the ids were equal"
        end = np.array([] if self.eod is None else [self.eod], dtype=self.dtype)
        made: list[np.ndarray[Any, Any]] = []
        for text in texts:
            ids = self._fast.encode(text)
            if ids is None:
                made += self._exact.encode([text])
            elif len(ids):
                made.append(np.concatenate([ids, end]) if len(end) else ids)
        return made

    def _compare(self, texts: list[str]) -> None:
        """Encode no more with tiktoken if its ids of these texts differ."""
        expected = self._exact.tokenizer.encode_batch_fast(texts, add_special_tokens=False)
        assert self._fast is not None, "there is something to compare"
        for text, encoding in zip(texts, expected, strict=True):
            ids = self._fast.encode(text)
            if ids is not None and ids.tolist() != encoding.ids:
                self._log(f"encoding with Hugging Face tokenizers: ids of tiktoken differ in {text[:80]!r}")
                self._fast = None
                return


def _first(texts: Sequence[str], characters: int) -> Iterator[str]:
    """The first texts, with so many characters in all; the last is cut."""
    for text in texts:
        if characters <= 0:
            return
        yield text[:characters]
        characters -= len(text)
