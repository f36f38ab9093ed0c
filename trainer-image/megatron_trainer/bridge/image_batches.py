"""Batches for processors of images and text for which Megatron-Bridge has no collator of their own."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import torch
from megatron.bridge.data.collators.sequence import prepare_sequence_batch
from megatron.bridge.data.collators.sequence_padding import use_processor_right_padding
from megatron.bridge.data.conversation_processing import (
    assistant_mask_boundary_config_from_markers,
    build_assistant_loss_mask,
    shared_chat_template_kwargs_from_examples,
    tokenize_text_without_special_tokens,
)
from megatron.bridge.data.datasets.utils import IGNORE_INDEX
from megatron.bridge.data.token_utils import extract_skipped_token_ids
from megatron.bridge.models.kimi_vl.data.collate_fn import _kimi_assistant_mask_boundary_config
from megatron.bridge.training.utils.visual_inputs import GenericVisualInputs

from megatron_trainer.bridge import nemotron_batches, omni_batches, sound_batches

type Collator = Callable[..., dict[str, Any]]

_KIMI: Final = "Kimi_K25Processor"
_STEP: Final = "Step3p7Processor"
_PIXELS: Final[Mapping[str, tuple[str, ...]]] = {
    "Exaone4_5_Processor": ("pixel_values", "image_grid_thw"),
    _KIMI: ("pixel_values", "image_grid_thw"),
    "MiniMaxM3VLProcessor": ("pixel_values", "image_grid_thw"),
    _STEP: ("pixel_values", "pixel_values_local", "num_local_patches"),
}
"""Processor -> what its model takes of an image."""
_EMPTY_THOUGHT: Final = "<think>\n\n</think>\n\n"
_PROBE: Final = "answer"


@dataclass
class StepVisualInputs(GenericVisualInputs):
    """Pixels of the whole images of Step-3.7, and of the parts into which large ones are cut."""

    pixel_values_local: torch.Tensor | None = None
    num_local_patches: torch.Tensor | None = None
    """Parts of each image [images]."""


def collator(processor: str) -> Collator:
    """Return the function that makes batches of a processor, by the name of its class.

    That of Bridge, if it has one that fits. Raises ValueError for a processor that is not known.
    """
    from megatron.bridge.data.collators.registry import resolve_model_collate

    if processor == sound_batches.PROCESSOR:
        return sound_batches.collate
    if processor == omni_batches.PROCESSOR:
        return omni_batches.collate
    if processor in nemotron_batches.PROCESSORS:
        return nemotron_batches.collate
    names = _PIXELS.get(processor)
    return resolve_model_collate(processor) if names is None else partial(_collate, names=names)


def _collate(
    examples: Sequence[Mapping[str, Any]],
    processor: Any,
    *,
    names: Sequence[str],
    sequence_length: int | None,
    pad_to_max_length: bool,
) -> dict[str, Any]:
    """Return tokens, labels and the mask of the loss [batch, length], and the pixels of all images.

    Labels are those of the next position. The loss counts each answer of the assistant and what ends it, not
    an empty thought that the template puts in front.
    """
    with use_processor_right_padding(processor):
        batch = dict(
            processor.apply_chat_template(
                [example["conversation"] for example in examples],
                tokenize=True,
                return_dict=True,
                processor_kwargs={"padding": True, "return_tensors": "pt"},
                **shared_chat_template_kwargs_from_examples(examples),
            )
        )
    ids, skipped = batch["input_ids"], extract_skipped_token_ids(processor)
    boundaries = _boundaries(processor)
    masks = [
        build_assistant_loss_mask(example, row, processor, skipped, boundary_config=boundaries)
        for example, row in zip(examples, ids, strict=True)
    ]
    counted = _next(torch.stack(masks).float(), 0)
    labels = _next(ids, IGNORE_INDEX)
    ignored = (counted == 0) | torch.isin(labels, skipped)
    found = {name: batch[name] for name in names if batch.get(name) is not None}
    visual = StepVisualInputs if type(processor).__name__ == _STEP else GenericVisualInputs
    result = {
        "input_ids": ids,
        "attention_mask": batch["attention_mask"],
        "position_ids": torch.arange(ids.shape[1]).repeat(len(ids), 1),
        "labels": labels.masked_fill(ignored, IGNORE_INDEX),
        "loss_mask": counted,
        "visual_inputs": visual(**found) if found else None,
    }
    prepare_sequence_batch(
        result,
        sequence_length=sequence_length,
        pad_to_max_length=pad_to_max_length,
        ignore_index=IGNORE_INDEX,
    )
    return result


def _next(values: torch.Tensor, last: int) -> torch.Tensor:
    """Return the values [batch, length] of the next position each."""
    return torch.nn.functional.pad(values[:, 1:], (0, 1), value=last)


def _boundaries(processor: Any) -> Any:
    """What begins and ends an answer in the processor's chat template.

    It begins with the first line that asks for an answer, since the template may open a thought behind it.
    Kimi's template opens it in the same line.
    """
    if type(processor).__name__ == _KIMI:
        return _kimi_assistant_mask_boundary_config(processor)
    asked = [{"role": "user", "content": [{"type": "text", "text": "question"}]}]
    answered = [*asked, {"role": "assistant", "content": [{"type": "text", "text": _PROBE}]}]
    before = processor.apply_chat_template(asked)
    asking = processor.apply_chat_template(asked, add_generation_prompt=True)
    start, line, _ = asking.removeprefix(before).partition("\n")
    end = processor.apply_chat_template(answered).rpartition(_PROBE)[2].strip()
    thought = tokenize_text_without_special_tokens(processor.tokenizer, _EMPTY_THOUGHT)
    return assistant_mask_boundary_config_from_markers(
        processor,
        assistant_start=start + line,
        assistant_end=end,
        trim_leading_token_sequences=(thought,),
    )
