"""What a run reports, as values: readings of its progress, its incidents and attempts."""

from dataclasses import dataclass
from typing import Any

from megatron_operator.api.recovery_status import Incident, RecoveryStatus
from megatron_operator.api.status import Evaluation, MegatronRecipeStatus
from megatron_operator.cli.timeline import TimelineEntry

Object = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Reading:
    """Progress of a run as the operator last wrote it. None where it is not known."""

    phase: str | None
    time: str | None = None
    """When the iteration last changed, RFC 3339."""
    iteration: int | None = None
    train_iters: int | None = None
    """Iterations of the whole run."""
    lm_loss: float | None = None
    validation_loss: float | None = None
    """Of the last evaluation."""
    learning_rate: float | None = None
    step_seconds: float | None = None
    tokens_per_second: float | None = None
    tflops_per_gpu: float | None = None
    checkpoint_iteration: int | None = None
    restarts: int = 0
    goodput: float | None = None
    """Share: step time of the iterations that count, divided by wall time since the run's first start."""

    @classmethod
    def of(cls, status: MegatronRecipeStatus) -> "Reading":
        """The reading of a status."""
        progress, recovery, validation = status.progress, status.recovery, status.validation
        fields = (
            "time", "iteration", "train_iters", "lm_loss", "learning_rate", "step_seconds",
            "tokens_per_second", "tflops_per_gpu",
        )  # fmt: skip
        return cls(
            status.phase,
            **({} if progress is None else {field: getattr(progress, field) for field in fields}),
            validation_loss=None if validation is None else validation.loss,
            checkpoint_iteration=None if status.checkpoint is None else status.checkpoint.iteration,
            restarts=0 if recovery is None else recovery.restarts,
            goodput=None if recovery is None else recovery.goodput,
        )


@dataclass(frozen=True, slots=True)
class Attempt:
    """A stretch of training between two incidents."""

    number: int
    """1 for the run's first."""
    since: str | None
    """First step, RFC 3339; of the first attempt when the recipe was created; None before the first step."""
    resumed_from: int | None
    """Iteration of the checkpoint that was loaded; 0 for none, None where it is not known."""
    until: str | None = None
    """When the incident that ended it was detected, RFC 3339; None for the newest attempt."""
    iteration: int | None = None
    """Its last iteration; None for the newest attempt."""
    incident: Incident | None = None
    """What ended it."""


@dataclass(frozen=True, slots=True)
class History:
    """What interrupted a run, and what each interruption cost."""

    recovery: RecoveryStatus
    """Totals: restarts by kind, lost iterations and seconds, goodput, nodes avoided."""
    incidents: tuple[Incident, ...]
    """Oldest first; the newest 20."""
    attempts: tuple[Attempt, ...]
    """Oldest first; one more than the incidents that interrupted training."""
    timeline: tuple[TimelineEntry, ...]
    """Incidents, Events and changes of conditions in order of time, as `megatron history` prints them."""
    evaluations: tuple[Evaluation, ...] = ()
    """Of the validation data, oldest first; of more than 40, some over the whole run."""


def attempts(created: str, incidents: tuple[Incident, ...]) -> tuple[Attempt, ...]:
    """The stretches of training between the incidents.

    Incidents that follow each other before the run trains again end one attempt.
    """
    found: list[Attempt] = []
    number = incidents[0].number if incidents else 1
    since: str | None = created if number == 1 else None
    resumed: int | None = None
    for i, incident in enumerate(incidents):
        if found and since is None:
            # The gang failed again before its first step.
            number -= 1
        else:
            found.append(
                Attempt(
                    number, since, resumed, incident.time, iteration=incident.iteration, incident=incident
                )
            )
        number += 1
        shared = any(each.recovered_at == incident.recovered_at for each in incidents[i + 1 : i + 2])
        since, resumed = (None if shared else incident.recovered_at), incident.resumed_from
    return (*found, Attempt(number, since, resumed))
