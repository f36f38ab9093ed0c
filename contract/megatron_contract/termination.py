"""The JSON object that a trainer pod writes to its termination log."""

import json
from dataclasses import dataclass

from megatron_contract.exit_codes import REASONS, ExitCode
from megatron_contract.wire import Message, WireError


@dataclass(frozen=True, slots=True)
class TerminationMessage(Message):
    """Why a trainer pod ended."""

    reason: str
    """One of `exit_codes.REASONS`."""
    message: str = ""
    exit_code: int | None = None
    node_rank: int | None = None
    rank: int | None = None
    """Global rank that caused it; None where no rank did."""
    iteration: int | None = None
    checkpoint_iteration: int | None = None

    @property
    def completed(self) -> bool:
        """Whether the last iteration is done and its checkpoint verified."""
        return self.reason == REASONS[ExitCode.OK]

    @classmethod
    def parse(cls, text: str) -> "TerminationMessage | None":
        """The message in a container's termination log; None when another program wrote it."""
        try:
            return cls.from_json(json.loads(text))
        except (ValueError, WireError):
            return None
