"""Why a rank ends, as it reports to its launcher in the event `failed`."""

from dataclasses import dataclass
from typing import Annotated

from megatron_contract.hardware import Evidence
from megatron_contract.limits import OneOf
from megatron_contract.wire import Message


@dataclass(frozen=True, slots=True)
class RankFailure(Message):
    """The report of a rank about its own end."""

    exit_code: int
    message: str
    iteration: int | None = None
    """Set if the step of this iteration raised the failure, so that it may recur there."""
    evidence: Annotated[str, OneOf(("", *Evidence), "")] = ""
    """One of `hardware.Evidence`, if this rank's device failed."""
    unreadable: int | None = None
    """The iteration of a checkpoint that cannot be loaded."""
