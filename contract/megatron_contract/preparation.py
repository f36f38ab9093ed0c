"""What `megatron-prepare` adds to its termination message when it succeeds."""

from dataclasses import dataclass

from megatron_contract.limits import Bytes, Count, LongText
from megatron_contract.wire import Message


@dataclass(frozen=True, slots=True)
class PreparationResult(Message):
    """A prepared corpus: counts, and the size in bytes of its two files."""

    documents: Count
    tokens: Count
    vocab_size: Count
    data_path: LongText
    """Prefix for Megatron's --data-path; the files are this with `.bin` and `.idx`."""
    bin_bytes: Bytes
    idx_bytes: Bytes
