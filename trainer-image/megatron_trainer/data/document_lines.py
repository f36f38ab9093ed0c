"""Documents among chats to fine-tune on: lines of token ids, all of which the loss counts."""

import json
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
from megatron_contract.exit_codes import ExitCode

from megatron_trainer.bridge.chat_tokens import IDS
from megatron_trainer.data.preparation_error import PreparationError
from megatron_trainer.data.shards import Encoder


class DocumentLines:
    """Makes the lines of the documents of a source, for samples of `seq_length` tokens.

    A longer document becomes several lines, each of which begins with the last token of the one before. So
    the loss counts every token of a document once, but its first.
    """

    def __init__(self, encoder: Encoder, seq_length: int, vocab_size: int | None) -> None:
        """`encoder` is the tokenizer, which ends each document with its end token."""
        self._encoder, self._seq_length, self._vocab_size = encoder, seq_length, vocab_size

    @property
    def dtype(self) -> np.dtype[Any]:
        """Bytes, as uint8."""
        return np.dtype(np.uint8)

    def encode(self, texts: Iterable[str]) -> Iterator[np.ndarray[Any, Any]]:
        """Yield the lines of each text, an array of shape [bytes]. Raises PreparationError."""
        for ids in self._encoder.encode(texts):
            if self._vocab_size is not None and int(ids.max()) >= self._vocab_size:
                raise self._refused(int(ids.max()))
            pieces = (
                ids[first : first + self._seq_length + 1].tolist()
                for first in range(0, len(ids) - 1, self._seq_length)
            )
            lines = "".join(f"{json.dumps({IDS: piece}, separators=(',', ':'))}\n" for piece in pieces)
            yield np.frombuffer(lines.encode(), dtype=self.dtype)

    def _refused(self, largest: int) -> PreparationError:
        token = self._encoder.tokenizer.id_to_token(largest)
        text = (
            f"a document has {token!r}, token id {largest:,}, and the model has {self._vocab_size:,} of them"
        )
        fix = "remove it from the documents, or name the model's own tokenizer"
        return PreparationError(ExitCode.BAD_DATA, f"data.sources: {text}; {fix}")
