"""An interruption of a run, as the trainer reports it."""

from dataclasses import dataclass

from megatron_contract.wire import Message


@dataclass(frozen=True, slots=True)
class ReportedIncident(Message):
    """One interruption. Times are Unix seconds of the pod that recorded them, None until reached."""

    generation: int
    """The generation that started because of it."""
    detected_at: float
    kind: str = "pod"
    """One of rank, pod, hang, loss, store, stop; a reader treats an unknown one as `pod`."""
    cause: str = ""
    node_rank: int | None = None
    rank: int | None = None
    """Global rank."""
    iteration: int | None = None
    """The last iteration done before it."""
    resumed_from: int | None = None
    """Iteration of the checkpoint that the run resumed from."""
    last_step_at: float | None = None
    """When the last step before it was done."""
    met_at: float | None = None
    """When all pods had completed the rendezvous."""
    loaded_at: float | None = None
    """When the checkpoint was loaded."""
    first_step_at: float | None = None
    """When the first step after it was done."""
    caught_up_at: float | None = None
    """When the lost iterations had been repeated."""
