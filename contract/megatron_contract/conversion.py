"""What a conversion of weights adds to the termination message of its pod."""

from dataclasses import dataclass
from typing import Annotated

from megatron_contract.limits import LONGEST_NAME, Count, Finite, Text
from megatron_contract.wire import Message


@dataclass(frozen=True, slots=True)
class ConversionResult(Message):
    """The result of an audit that passed."""

    tensors: Count
    """Tensors that were compared."""
    bytes: Count
    """Their size."""
    iteration: Count | None = None
    """Iteration of the checkpoint that was exported; None for an import, and for weights of iteration 0."""
    validation_loss: Finite | None = None
    """Loss of the validation data at this iteration, where the run has evaluated it."""
    revision: Annotated[str, Text(LONGEST_NAME)] | None = None
    """Commit of a hub's model that was imported; None for a folder that was not downloaded."""
