"""An interruption of a run, as the trainer reports it."""

from dataclasses import dataclass
from typing import Annotated, Final

from megatron_contract.limits import Count, LongText, OneOf, UnixTime
from megatron_contract.wire import Message

KINDS: Final = ("rank", "pod", "hang", "loss", "store", "stop")
UNKNOWN_KIND: Final = "pod"


@dataclass(frozen=True, slots=True)
class ReportedIncident(Message):
    """One interruption. Times are Unix seconds of the pod that recorded them, None until reached."""

    generation: Count
    """The generation that started because of it."""
    detected_at: UnixTime
    kind: Annotated[str, OneOf(KINDS, UNKNOWN_KIND)] = UNKNOWN_KIND
    """One of KINDS; a reader treats another one as UNKNOWN_KIND."""
    cause: LongText = ""
    node_rank: Count | None = None
    rank: Count | None = None
    """Global rank."""
    iteration: Count | None = None
    """The last iteration done before it."""
    resumed_from: Count | None = None
    """Iteration of the checkpoint that the run resumed from."""
    last_step_at: UnixTime | None = None
    """When the last step before it was done."""
    met_at: UnixTime | None = None
    """When all pods had completed the rendezvous."""
    loaded_at: UnixTime | None = None
    """When the checkpoint was loaded."""
    first_step_at: UnixTime | None = None
    """When the first step after it was done."""
    caught_up_at: UnixTime | None = None
    """When the lost iterations had been repeated."""
