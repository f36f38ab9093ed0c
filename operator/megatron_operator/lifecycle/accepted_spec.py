"""Which spec a run follows: not an edit that is refused, or that waits for something."""

from dataclasses import replace
from typing import Final

from pydantic import ValidationError

from megatron_operator.api.accepted_spec import AcceptedSpec
from megatron_operator.api.conditions import Condition
from megatron_operator.api.fine_tuning import ExportSpec
from megatron_operator.api.recipe import RecoverySpec
from megatron_operator.lifecycle.observation import Limits
from megatron_operator.lifecycle.status_builder import StatusBuilder
from megatron_operator.manifests.metadata import digest

_APART_FROM_TRAINING: Final = ("export", "recovery", "suspend", "ttlSecondsAfterFinished")
"""Fields of the spec that change nothing of a training that is complete."""


def record_accepted(status: StatusBuilder) -> None:
    """Record what holds of the newest spec, once it is applied; before, what was recorded last stays."""
    if status.edited or not status.is_true(Condition.PLANNED):
        return
    export = status.spec.get("export")
    try:
        recovery = RecoverySpec.model_validate(status.spec.get("recovery") or {})
        moments = ExportSpec.model_validate(export).moments if export else None
    except ValidationError:
        return
    accepted = AcceptedSpec(
        max_restarts=recovery.max_restarts,
        hang_timeout=recovery.hang_timeout,
        rendezvous_timeout=recovery.rendezvous_timeout,
        exports=None if moments is None else list(moments),
        training_hash=training_hash(status),
    )
    status.set(accepted=accepted)


def training_hash(status: StatusBuilder) -> str:
    """Digest of what the spec states of the training, whatever platform and operator make of it.

    An export of the best checkpoint counts where it alone has the trainer keep that one.
    """
    spec = status.spec
    training = {name: each for name, each in spec.items() if name not in _APART_FROM_TRAINING}
    keeps_best = (spec.get("checkpoint") or {}).get("keepBest")
    exports_best = "best" in ((spec.get("export") or {}).get("when") or ())
    return digest([training, exports_best if keeps_best is None else keeps_best])


def recovery_limits(status: StatusBuilder) -> Limits:
    """The limits in `spec.recovery`; the defaults while that section is invalid.

    Those that end a run or restart all of its pods are of the spec that it follows.
    """
    try:
        limits = Limits.of(RecoverySpec.model_validate(status.spec.get("recovery") or {}))
    except ValidationError:
        limits = Limits.of(RecoverySpec())
    if (accepted := status.current.accepted) is None:
        return limits
    followed = Limits.parse(accepted.max_restarts, accepted.rendezvous_timeout, accepted.hang_timeout)
    return replace(followed, avoid_after=limits.avoid_after, elastic=limits.elastic)


def exports(status: StatusBuilder) -> bool:
    """Whether the run exports what it has trained."""
    accepted = status.current.accepted
    return bool(status.spec.get("export") if accepted is None else accepted.exports)
