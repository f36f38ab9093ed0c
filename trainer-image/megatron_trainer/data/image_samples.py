"""Lines of prepared samples of images, or sound, and text: their text, and where their media are.

Tokens are counted by the processor of the model and the collator of Megatron-Bridge that the run calls too.
"""

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


def _load_processor(folder: Path) -> Any:
    if not any((folder / name).is_file() for name in PROCESSOR_FILES):
        raise ConversationError(f"{folder} has no {PROCESSOR_FILES[0]}; copy it from the model's folder")
    from megatron_trainer.weights import cpu_model

    cpu_model.import_bridge()
    from megatron_trainer.bridge import image_batches, image_text

    try:
        processor = image_text.load_processor(str(folder))
        image_batches.collator(type(processor).__name__)
    except Exception as error:  # of many kinds
        if is_temporary(error):
            raise
        reason = " ".join(str(error).split())
        problem = f"the processor of {folder} cannot be used: {reason}"
        raise ConversationError(f"{problem}; copy the model's whole folder") from error
    owners = (processor, getattr(processor, "tokenizer", None))
    if not any(getattr(owner, "chat_template", None) for owner in owners):
        raise ConversationError(
            f"{folder} has no chat template; add chat_template.jinja there, for example that of the model's "
            "instruct version"
        )
    return processor


class SampleLines:
    """Makes the lines of one model's folder for samples of `seq_length` tokens."""

    def __init__(self, folder: Path, seq_length: int, vocab_size: int | None) -> None:
        """Load the processor of the folder, and see that batches can be made with it.

        Raises ConversationError, and what a volume raises that cannot be read for a while.
        """
        self._processor = _load_processor(folder)
        self._seq_length, self._vocab_size = seq_length, vocab_size

    def line(self, messages: list[dict[str, Any]], _tools: object = None) -> str:
        """Return the line of a sample, or LEFT_OUT for one that is too long.

        Raises ConversationError, and what a volume raises that cannot be read for a while.
        """
        if all(message["role"] != "assistant" for message in messages):
            raise ConversationError(_NO_ANSWER)
        from megatron_trainer.bridge import image_text

        try:
            for part in (part for message in messages for part in message["content"]):
                if "tar" in part:
                    part["crc32"] = image_text.checksum(part)
            tokens = image_text.count_tokens(
                {"conversation": image_text.load_media(messages)}, self._processor
            )
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
