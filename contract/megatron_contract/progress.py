"""The body of `GET /progress` of a trainer pod."""

from dataclasses import dataclass
from typing import Final

from megatron_contract.incident import ReportedIncident
from megatron_contract.wire import Message, WireError

PROGRESS_SCHEMA: Final = 1


@dataclass(frozen=True, slots=True)
class ReportedWarning(Message):
    """Something a person should know of a run that goes on."""

    reason: str = "Warning"
    message: str = ""


@dataclass(frozen=True, slots=True)
class ProgressReport(Message):
    """A run as one pod sees it. Unknown values are None; durations are seconds."""

    schema: int
    phase: str
    node_rank: int | None = None
    generation: int | None = None
    """Counts the starts of the whole gang; None before the first."""
    rank_restarts: int = 0
    iteration: int | None = None
    train_iters: int | None = None
    lm_loss: float | None = None
    learning_rate: float | None = None
    step_seconds: float | None = None
    tokens_per_second: float | None = None
    tflops_per_gpu: float | None = None
    consumed_samples: int | None = None
    checkpoint_iteration: int | None = None
    checkpoint_time: str | None = None
    """RFC 3339."""
    resumed_from: int | None = None
    """Iteration of the checkpoint that this generation loaded; None when it began from random weights."""
    started_at: str | None = None
    """RFC 3339."""
    updated_at: str | None = None
    """RFC 3339."""
    message: str = ""
    incidents: tuple[ReportedIncident, ...] = ()
    warnings: tuple[ReportedWarning, ...] = ()
    useful_seconds: float | None = None
    """Wall time of the iterations that were kept."""
    first_started_at: float | None = None
    """When the run began, Unix seconds."""

    @classmethod
    def parse(cls, value: object) -> "ProgressReport":
        """Parse the body of /progress.

        Raises WireError for another schema version or a value of another type.
        """
        report = cls.from_json(value)
        if report.schema != PROGRESS_SCHEMA:
            raise WireError(
                f"unsupported progress schema {report.schema}; this version reads {PROGRESS_SCHEMA}"
            )
        return report
