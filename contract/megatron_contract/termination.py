"""The JSON object that a pod writes to its termination log."""

import json
from dataclasses import dataclass
from typing import Annotated, Any, Final, Self

from megatron_contract.exit_codes import REASON_COMPLETED, REASONS, ExitCode
from megatron_contract.hardware import Evidence
from megatron_contract.limits import (
    MAX_TERMINATION_BYTES,
    Count,
    Finite,
    Identifier,
    OneOf,
    Text,
    cut_to_json,
)
from megatron_contract.wire import Message, WireError, load_json

MAX_MESSAGE_BYTES: Final = 3000
"""Bytes of the text as JSON; the other fields need some of MAX_TERMINATION_BYTES as well."""


@dataclass(frozen=True, slots=True)
class TerminationMessage(Message):
    """Why a pod ended. `megatron-train` and `megatron-prepare` both write it."""

    reason: Annotated[str, Identifier("")] = ""
    """One of `exit_codes.REASONS`."""
    message: Annotated[str, Text(MAX_TERMINATION_BYTES)] = ""
    exit_code: Count | None = None
    node_rank: Count | None = None
    rank: Count | None = None
    """Global rank that caused it; None if no rank did."""
    iteration: Count | None = None
    """The last iteration done."""
    checkpoint_iteration: Count | None = None
    """Iteration of the newest complete checkpoint."""
    evidence: Annotated[str, OneOf(("", *Evidence), "")] = ""
    """One of `hardware.Evidence`, if the hardware of the pod's node failed; empty if nothing shows that."""
    best_checkpoint_iteration: Count | None = None
    """Iteration of the complete checkpoint with the lowest validation loss, where that one is kept."""
    best_checkpoint_loss: Finite | None = None

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
        evidence: Evidence | None = None,
        best_checkpoint_iteration: int | None = None,
        best_checkpoint_loss: float | None = None,
    ) -> Self:
        """Build the message for an exit code, with the text cut to MAX_MESSAGE_BYTES as JSON."""
        text: str = Text(MAX_TERMINATION_BYTES).fit(message)
        return cls(
            REASONS[code],
            cut_to_json(text, MAX_MESSAGE_BYTES),
            int(code),
            node_rank,
            rank,
            iteration,
            checkpoint_iteration,
            evidence or "",
            best_checkpoint_iteration,
            best_checkpoint_loss,
        )

    @property
    def completed(self) -> bool:
        """Whether the last iteration is done and its checkpoint is verified."""
        return self.reason == REASON_COMPLETED

    def dumps(self, **more: Any) -> str:
        """The JSON object for the termination log, with the fields of `more`, within MAX_TERMINATION_BYTES.

        Where `more` would exceed that, it is left out: a torn message cannot be parsed.
        """
        for fields in (self.to_json() | more, self.to_json()):
            text = json.dumps(fields, ensure_ascii=False)
            if len(text.encode(errors="replace")) <= MAX_TERMINATION_BYTES:
                break
        return text

    @classmethod
    def parse(cls, text: str) -> Self | None:
        """Parse a container's termination log; None if it is not such a message."""
        try:
            return cls.from_json(load_json(text))
        except WireError:
            return None
