"""What `megatron-prepare` adds to its termination message when it succeeds."""

from dataclasses import dataclass

from megatron_contract.wire import Message


@dataclass(frozen=True, slots=True)
class PreparationResult(Message):
    """A prepared corpus: counts, and the size in bytes of its two files."""

    documents: int
    tokens: int
    vocab_size: int
    data_path: str
    """Prefix for Megatron's --data-path; the files are this with `.bin` and `.idx`."""
    bin_bytes: int
    idx_bytes: int
