"""What interrupted a run, as the trainer reports it."""

from dataclasses import dataclass

from megatron_contract.wire import Message


@dataclass(frozen=True, slots=True)
class ReportedIncident(Message):
    """One interruption. Times are Unix seconds of the pod that saw them, None until they are reached."""

    generation: int
    """The generation that began because of it."""
    detected_at: float
    kind: str = "pod"
    """One of rank, pod, hang, loss, store, stop; a reader treats an unknown one as `pod`."""
    cause: str = ""
    node_rank: int | None = None
    rank: int | None = None
    """Global rank."""
    iteration: int | None = None
    """The last iteration that was done before it."""
    resumed_from: int | None = None
    """Iteration of the checkpoint that the run resumed from."""
    last_step_at: float | None = None
    met_at: float | None = None
    """When all pods had completed the rendezvous."""
    loaded_at: float | None = None
    first_step_at: float | None = None
    caught_up_at: float | None = None
    """When the iterations that were lost had been repeated."""
