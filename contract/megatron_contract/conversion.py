"""What a conversion of weights adds to the termination message of its pod."""

from dataclasses import dataclass

from megatron_contract.limits import Count
from megatron_contract.wire import Message


@dataclass(frozen=True, slots=True)
class ConversionResult(Message):
    """The result of an audit that passed."""

    tensors: Count
    """Tensors that were compared."""
    bytes: Count
    """Their size."""
