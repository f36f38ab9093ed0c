"""The body of `GET /progress` of a trainer pod."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated, Final, Self

from megatron_contract.incident import ReportedIncident
from megatron_contract.limits import (
    MAX_EVALUATIONS,
    MAX_INCIDENTS,
    MAX_STAGES,
    MAX_STRAGGLERS,
    MAX_WARNINGS,
    Bytes,
    Count,
    Finite,
    Identifier,
    Items,
    LongText,
    OneOf,
    Rate,
    Seconds,
    Time,
    UnixTime,
)
from megatron_contract.wire import Message, WireError

PROGRESS_SCHEMA: Final = 1
"""Increased when a reader of the previous version would misread a report; new fields alone do not count."""

PHASES: Final = (
    "preparing",
    "converting",
    "starting",
    "rendezvous",
    "loading",
    "training",
    "evaluating",
    "saving",
    "finished",
    "failed",
)


@dataclass(frozen=True, slots=True)
class ReportedWarning(Message):
    """A condition that does not stop the run but needs attention."""

    reason: Annotated[str, Identifier("Warning")] = "Warning"
    """CamelCase identifier, for example `CheckpointVolumeLow`."""
    message: LongText = ""


@dataclass(frozen=True, slots=True)
class ReportedStraggler(Message):
    """A rank whose own work takes longer than that of its peers, so that all others wait for it.

    Own work is a step without the waits in collectives; peers are the other ranks of its pipeline stage.
    """

    rank: Count
    """Global rank."""
    node_rank: Count
    iteration: Count
    """Since which iteration."""
    slowdown: Rate
    """Its own time over that of its peers, the median over the last measured steps."""
    own_seconds: Seconds
    """Own time of a step."""
    peer_seconds: Seconds
    """Median of the peers' own time."""


@dataclass(frozen=True, slots=True)
class ReportedMemory(Message):
    """The most memory that a rank has reserved on its accelerator since it was started."""

    rank: Count
    """Global rank."""
    stage: Count
    """Pipeline stage."""
    bytes: Bytes


def fullest_ranks(ranks: Iterable[ReportedMemory]) -> tuple[ReportedMemory, ...]:
    """Of each pipeline stage the rank with the most memory, in order of stages."""
    found: dict[int, ReportedMemory] = {}
    for each in sorted(ranks, key=lambda each: (-each.bytes, each.rank)):
        found.setdefault(each.stage, each)
    return tuple(found[stage] for stage in sorted(found))


@dataclass(frozen=True, slots=True)
class ReportedEvaluation(Message):
    """An evaluation of the validation data."""

    iteration: Count
    loss: Finite


@dataclass(frozen=True, slots=True)
class PreparationProgress(Message):
    """How far the preparation of the data is, by all of its pods together."""

    documents: Count
    """Documents in complete shards."""
    bytes_done: Bytes
    """Bytes of the sources that have been read, as they are on the volume."""
    bytes_total: Bytes
    bytes_per_second: Rate | None = None
    seconds_left: Seconds | None = None
    step: Annotated[str, OneOf(("build", "check"), "build")] = "build"
    """`build`: the dataset is written; `check`: it is checked against what the run reads."""


@dataclass(frozen=True, slots=True)
class ConversionProgress(Message):
    """How far a conversion of weights is in its step."""

    step: Annotated[str, OneOf(("download", "convert", "audit"), "convert")]
    """`download`: files of a hub are written; `convert`: tensors are written; `audit`: source and result are
    read again and compared."""
    tensors_done: Count
    tensors_total: Count
    """An audit reads each tensor two or three times, and counts each time; a download counts none."""
    bytes_done: Bytes
    bytes_total: Bytes


OF_THE_ITERATION: Final = (
    "lm_loss",
    "learning_rate",
    "step_seconds",
    "tokens_per_second",
    "tflops_per_gpu",
    "consumed_samples",
)
"""Fields of ProgressReport that describe the last iteration done, and no other."""


@dataclass(frozen=True, slots=True)
class ProgressReport(Message):
    """The state of a run as one pod knows it. Unknown values are None; durations are seconds."""

    schema: Count
    phase: Annotated[str, OneOf(PHASES)]
    node_rank: Count | None = None
    generation: Count | None = None
    """Counts the starts of the whole gang; None before the first."""
    rank_restarts: Count = 0
    """Restarts of this pod's ranks since the last new checkpoint."""
    iteration: Count | None = None
    """The last iteration done."""
    train_iters: Count | None = None
    """The number of iterations to do."""
    lm_loss: Finite | None = None
    learning_rate: Finite | None = None
    step_seconds: Seconds | None = None
    tokens_per_second: Rate | None = None
    """Tokens per second of the whole job."""
    tflops_per_gpu: Rate | None = None
    """Model TFLOP/s by Megatron's formula."""
    consumed_samples: Count | None = None
    checkpoint_iteration: Count | None = None
    """Iteration of the newest complete checkpoint."""
    checkpoint_time: Time | None = None
    """When it was written, RFC 3339."""
    resumed_from: Count | None = None
    """Iteration of the checkpoint that this generation loaded; None when it started from random weights."""
    started_at: Time | None = None
    """When the pod started, RFC 3339."""
    updated_at: Time | None = None
    """When this pod's own state changed last, RFC 3339."""
    message: LongText = ""
    incidents: Annotated[tuple[ReportedIncident, ...], Items(MAX_INCIDENTS, newest=True)] = ()
    """The newest incidents, oldest first."""
    warnings: Annotated[tuple[ReportedWarning, ...], Items(MAX_WARNINGS)] = ()
    stragglers: Annotated[tuple[ReportedStraggler, ...], Items(MAX_STRAGGLERS)] = ()
    """The ranks that are slow now, slowest first."""
    memory: Annotated[tuple[ReportedMemory, ...], Items(MAX_STAGES)] = ()
    """Of each pipeline stage the rank with the most memory; none on CPUs."""
    preparation: PreparationProgress | None = None
    """Only of a pod that prepares data, whose phase is `preparing`."""
    conversion: ConversionProgress | None = None
    """Only of a pod that imports or exports weights, whose phase is `converting`."""
    useful_seconds: Seconds | None = None
    """Wall time of the iterations that were kept."""
    first_started_at: UnixTime | None = None
    """When the run started, Unix seconds."""
    save_seconds: Seconds | None = None
    """Wall time of the whole run in which saves held up the training."""
    evaluate_seconds: Seconds | None = None
    """Wall time of the whole run in evaluations."""
    validation_iteration: Count | None = None
    """Iteration of the last evaluation of the validation data; None before the first."""
    validation_loss: Finite | None = None
    best_validation_iteration: Count | None = None
    """Iteration of the evaluation with the lowest loss."""
    best_validation_loss: Finite | None = None
    evaluations: Annotated[tuple[ReportedEvaluation, ...], Items(MAX_EVALUATIONS, newest=True)] = ()
    """Evaluations in order of iterations; of many, some over the whole run, with the best and the last."""
    best_checkpoint_iteration: Count | None = None
    """Iteration of the complete checkpoint with the lowest validation loss, where that one is kept."""
    best_checkpoint_loss: Finite | None = None

    @classmethod
    def parse(cls, value: object) -> Self:
        """Parse the body of /progress.

        Raises WireError for another schema version, a value of the wrong type or an unknown phase.
        """
        report = cls.from_json(value)
        if report.schema != PROGRESS_SCHEMA:
            raise WireError(
                f"unsupported progress schema {report.schema}; this version reads {PROGRESS_SCHEMA}"
            )
        return report
