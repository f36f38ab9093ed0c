"""Chats to fine-tune on, as Megatron-Bridge reads them: a line each, whose answers the loss counts.

Which tokens these are is computed by Bridge's own function, which the run calls too.
"""

import functools
import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Final

import numpy as np

from megatron_trainer.bridge.chat_tokens import AnswerError, tokenize
from megatron_trainer.data.chat import ConversationError, load_template
from megatron_trainer.data.left_out import check_left_out
from megatron_trainer.data.tool_arguments import as_template_reads

LEFT_OUT: Final = "null"
"""In place of a chat of which no answer begins within a sample."""


class LineEncoder:
    """Makes a line of bytes of each text, of no byte for a chat that is left out."""

    @property
    def dtype(self) -> np.dtype[Any]:
        """Bytes, as uint8."""
        return np.dtype(np.uint8)

    def encode(self, texts: Iterable[str]) -> Iterator[np.ndarray[Any, Any]]:
        """Yield the line of each text, an array of shape [bytes]."""
        for text in texts:
            line = b"" if text == LEFT_OUT else text.encode() + b"\n"
            yield np.frombuffer(line, dtype=self.dtype)


class ChatLines:
    """Makes the lines of one tokenizer for samples of `seq_length` tokens."""

    def __init__(self, folder: Path, seq_length: int, vocab_size: int | None) -> None:
        """Load tokenizer and template. Raises ConversationError if the folder lacks one."""
        self._render = load_template(folder)
        self._folder = folder
        self._seq_length = seq_length
        self._vocab_size = vocab_size

    @functools.cached_property
    def _tokenizer(self) -> Any:
        """Loaded with the first chat: Bridge's import takes seconds."""
        from megatron_trainer.weights import cpu_model

        cpu_model.import_bridge()
        from transformers import AutoTokenizer

        return AutoTokenizer.from_pretrained(
            str(self._folder), local_files_only=True, trust_remote_code=False
        )

    def line(self, messages: list[dict[str, Any]], tools: list[Any] | None) -> str:
        """Return the line of a chat, or LEFT_OUT. Raises ConversationError."""
        messages = as_template_reads(messages, tools, self._render)
        record: dict[str, Any] = {"messages": [{"content": None} | message for message in messages]}
        if tools:
            record["tools"] = tools
        try:
            ids, counted = tokenize(record, self._tokenizer)
        except AnswerError as error:
            raise ConversationError(str(error)) from error
        check_left_out(messages, tools, self._render)
        if self._vocab_size is not None and int(ids.max()) >= self._vocab_size:
            raise ConversationError(
                f"it has token id {int(ids.max()):,}, and the model {self._vocab_size:,} of them; name the "
                "model's own tokenizer"
            )
        # Bridge cuts what is longer; a label is the token after its place.
        if not bool(counted[1 : self._seq_length + 1].any()):
            return LEFT_OUT
        return json.dumps(record, ensure_ascii=False)
