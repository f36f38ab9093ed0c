"""The body of `GET /progress` of a trainer pod."""

from dataclasses import dataclass
from typing import Final, Self

from megatron_contract.incident import ReportedIncident
from megatron_contract.wire import Message, WireError

PROGRESS_SCHEMA: Final = 1
"""Increased when a reader of the previous version would misread a report; new fields alone do not count."""


@dataclass(frozen=True, slots=True)
class ReportedWarning(Message):
    """A condition that does not stop the run but needs attention."""

    reason: str = "Warning"
    """CamelCase identifier, for example `CheckpointVolumeLow`."""
    message: str = ""


@dataclass(frozen=True, slots=True)
class ProgressReport(Message):
    """The state of a run as one pod knows it. Unknown values are None; durations are seconds."""

    schema: int
    phase: str
    """One of starting, rendezvous, loading, training, evaluating, saving, finished, failed."""
    node_rank: int | None = None
    generation: int | None = None
    """Counts the starts of the whole gang; None before the first."""
    rank_restarts: int = 0
    """Restarts of this pod's ranks since the last new checkpoint."""
    iteration: int | None = None
    """The last iteration done."""
    train_iters: int | None = None
    """The number of iterations to do."""
    lm_loss: float | None = None
    learning_rate: float | None = None
    step_seconds: float | None = None
    tokens_per_second: float | None = None
    """Of the whole job."""
    tflops_per_gpu: float | None = None
    """Model TFLOP/s by Megatron's formula."""
    consumed_samples: int | None = None
    checkpoint_iteration: int | None = None
    """Iteration of the newest complete checkpoint."""
    checkpoint_time: str | None = None
    """When it was written, RFC 3339."""
    resumed_from: int | None = None
    """Iteration of the checkpoint that this generation loaded; None when it started from random weights."""
    started_at: str | None = None
    """When the pod started, RFC 3339."""
    updated_at: str | None = None
    """When this pod's own state changed last, RFC 3339."""
    message: str = ""
    incidents: tuple[ReportedIncident, ...] = ()
    """The newest incidents, oldest first."""
    warnings: tuple[ReportedWarning, ...] = ()
    useful_seconds: float | None = None
    """Wall time of the iterations that were kept."""
    first_started_at: float | None = None
    """When the run started, Unix seconds."""

    @classmethod
    def parse(cls, value: object) -> Self:
        """Parse the body of /progress.

        Raises WireError for another schema version or a value of the wrong type.
        """
        report = cls.from_json(value)
        if report.schema != PROGRESS_SCHEMA:
            raise WireError(
                f"unsupported progress schema {report.schema}; this version reads {PROGRESS_SCHEMA}"
            )
        return report
