"""Lines of prepared samples of images, or sound, and text: their text, and where their media are.

Tokens are counted by the processor of the model and the collator of Megatron-Bridge that the run calls too.
"""

import functools
import hashlib
import json
from pathlib import Path
from typing import Any, Final

from megatron_trainer.data.answers import LEFT_OUT
from megatron_trainer.data.chat import ConversationError
from megatron_trainer.read_errors import is_temporary

PROCESSOR_FILES: Final = (
    "preprocessor_config.json",
    "processor_config.json",
    "video_preprocessor_config.json",
)
"""Files of a model's folder on which the tokens of an image or a sound depend."""
_NO_ANSWER: Final = "the loss would count none of its tokens: it has no answer of the assistant"


def digest_of_processor(folder: Path) -> str:
    """Return the digest of what makes pixels of images, and features of sound."""
    files = [folder / name for name in PROCESSOR_FILES]
    return hashlib.sha256(b"".join(each.read_bytes() for each in files if each.is_file())).hexdigest()


class SampleLines:
    """Makes the lines of one model's folder for samples of `seq_length` tokens."""

    def __init__(self, folder: Path, seq_length: int, vocab_size: int | None) -> None:
        """Check that the folder has a processor. Raises ConversationError."""
        if not any((folder / name).is_file() for name in PROCESSOR_FILES):
            raise ConversationError(f"{folder} has no {PROCESSOR_FILES[0]}; copy it from the model's folder")
        self._folder, self._seq_length, self._vocab_size = folder, seq_length, vocab_size

    @functools.cached_property
    def _processor(self) -> Any:
        """Loaded with the first sample: Bridge's import takes seconds."""
        from megatron_trainer.weights import cpu_model

        cpu_model.import_bridge()
        from megatron_trainer.bridge import image_text

        try:
            return image_text.load_processor(str(self._folder))
        except (OSError, ValueError, ImportError) as error:
            if is_temporary(error):
                raise
            raise ConversationError(f"transformers cannot load the processor: {error}") from error

    def line(self, messages: list[dict[str, Any]], _tools: object = None) -> str:
        """Return the line of a sample, or LEFT_OUT for one that is too long.

        Raises ConversationError, and what a volume raises that cannot be read for a while.
        """
        if all(message["role"] != "assistant" for message in messages):
            raise ConversationError(_NO_ANSWER)
        processor = self._processor
        from megatron_trainer.bridge import image_text

        try:
            for part in (part for message in messages for part in message["content"]):
                if "tar" in part:
                    part["crc32"] = image_text.checksum(part)
            tokens = image_text.count_tokens({"conversation": image_text.load_media(messages)}, processor)
        except Exception as error:  # whatever a template or a file of the user raises
            if is_temporary(error):
                raise
            raise ConversationError(" ".join(str(error).split())) from error
        if tokens.counted == 0:
            raise ConversationError(_NO_ANSWER)
        if self._vocab_size is not None and tokens.largest >= self._vocab_size:
            raise ConversationError(
                f"it has token id {tokens.largest:,}, and the model {self._vocab_size:,} of them; name the "
                "model's own folder"
            )
        # The tokens of an image or a sound cannot be cut.
        return LEFT_OUT if tokens.all > self._seq_length else json.dumps({"messages": messages})
