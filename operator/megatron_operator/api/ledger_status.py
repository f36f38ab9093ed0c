"""`MegatronRecipe.status.ledger`: where the time of a run went."""

from pydantic import Field

from megatron_operator.api.base import ApiModel


class LedgerMark(ApiModel):
    """What the run does from a moment on, until the next mark."""

    time: str
    """RFC 3339."""
    category: str
    """One of the categories of `status.ledger`."""
    cause: str | None = None
    """Reason of the condition Running, or the cause of the incident."""
    node: str | None = None
    """Node of the incident, where it has one."""
    accelerators: int = 0
    """Accelerators that the run holds meanwhile."""


class LedgerLoss(ApiModel):
    """Time that was lost to one cause."""

    category: str
    """One of the categories of `status.ledger`."""
    cause: str | None = None
    """Reason of the condition Running, or the cause of the incident."""
    node: str | None = None
    """Node of the incident, where it has one."""
    seconds: float
    """Sum of the time, in seconds."""


class LedgerWeek(ApiModel):
    """Accelerator time of one week."""

    week: str
    """Date of its Monday, UTC: `2026-11-23`."""
    accelerator_seconds: float
    """Seconds times the accelerators that the run held."""
    lost_accelerator_seconds: float
    """What of it was not training, saving or evaluation."""


class TimeLedger(ApiModel):
    """Where the time since the recipe's creation went; `megatron ledger` adds up both parts.

    Categories: queue, prepare, schedule, start, load, train, save, evaluate, redo, detect, hang, idle.
    """

    settled_at: str
    """Up to when the sums below reach, RFC 3339; for a run that is over, its end."""
    seconds: dict[str, float] = Field(default_factory=dict)
    """Seconds by category up to settledAt."""
    accelerator_seconds: dict[str, float] = Field(default_factory=dict)
    """The same times the accelerators that the run held."""
    losses: list[LedgerLoss] = Field(default_factory=list)
    """What is lost of `seconds` by cause and node, largest first, at most 32."""
    weeks: list[LedgerWeek] | None = None
    """`acceleratorSeconds` by week up to settledAt, oldest first, the newest 60. Time that was settled by a
    release without weeks is in none."""
    marks: list[LedgerMark] = Field(default_factory=list)
    """Changes of state since settledAt, at most 40. Their time is not final: incidents may lie over it."""
    save_seconds: float | None = None
    """Seconds of the whole run in which saves held up the training, as the pods report."""
    evaluate_seconds: float | None = None
    """Seconds of the whole run in evaluations, as the pods report."""
