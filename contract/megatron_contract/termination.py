"""The JSON object that a pod writes to its termination log."""

from dataclasses import dataclass
from typing import Final, Self

from megatron_contract.exit_codes import REASON_COMPLETED, REASONS, ExitCode
from megatron_contract.wire import Message, WireError, load_json

MAX_MESSAGE_BYTES: Final = 3000
"""The kubelet reads 4096 bytes of a termination log; JSON escapes and the other fields need space as well."""


@dataclass(frozen=True, slots=True)
class TerminationMessage(Message):
    """Why a pod ended. `megatron-train` and `megatron-prepare` both write it."""

    reason: str = ""
    """One of `exit_codes.REASONS`."""
    message: str = ""
    exit_code: int | None = None
    node_rank: int | None = None
    rank: int | None = None
    """Global rank that caused it; None if no rank did."""
    iteration: int | None = None
    """The last iteration done."""
    checkpoint_iteration: int | None = None
    """Iteration of the newest complete checkpoint."""

    @classmethod
    def of(
        cls,
        code: ExitCode,
        message: str,
        *,
        node_rank: int | None = None,
        rank: int | None = None,
        iteration: int | None = None,
        checkpoint_iteration: int | None = None,
    ) -> Self:
        """Build the message for an exit code, with the text cut to MAX_MESSAGE_BYTES of UTF-8."""
        text = message.encode()[:MAX_MESSAGE_BYTES].decode(errors="ignore")
        return cls(REASONS[code], text, int(code), node_rank, rank, iteration, checkpoint_iteration)

    @property
    def completed(self) -> bool:
        """Whether the last iteration is done and its checkpoint is verified."""
        return self.reason == REASON_COMPLETED

    @classmethod
    def parse(cls, text: str) -> Self | None:
        """Parse a container's termination log; None if it is not such a message."""
        try:
            return cls.from_json(load_json(text))
        except WireError:
            return None
