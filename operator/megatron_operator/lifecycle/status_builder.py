"""The status of one recipe under construction, with the recipe that it belongs to."""

from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from pydantic import BaseModel

from megatron_operator.api.conditions import Condition, Phase
from megatron_operator.api.labels import KIND, STORED_API_VERSION
from megatron_operator.api.reasons import Reason
from megatron_operator.api.recovery_status import RecoveryStatus
from megatron_operator.api.status import CheckpointStatus, MegatronRecipeStatus, Progress, RecipeCondition
from megatron_operator.api.times import timestamp
from megatron_operator.lifecycle.status_reading import read_status
from megatron_operator.lifecycle.status_size import (
    LONGEST_CONDITION,
    MAX_STATUS_BYTES,
    cut,
    cut_utf8,
    json_bytes,
    within_budget,
)

_ORDER: Final = {str(kind): position for position, kind in enumerate(Condition)}
LONGEST_EVENT: Final = 1024
"""Bytes of an Event's message; the API server refuses more."""


class RecipeKey(NamedTuple):
    """Namespace and name of a MegatronRecipe."""

    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


@dataclass(frozen=True, slots=True)
class RecipeEvent:
    """A Kubernetes Event to post once the status is written."""

    reason: str
    message: str
    warning: bool = False


@dataclass(slots=True)
class StatusBuilder:
    """A recipe as it was read, the status that will be written, and the Events to post afterwards."""

    body: dict[str, Any]
    """The MegatronRecipe."""
    now: float
    """Seconds since the epoch, by the API server's clock."""
    current: MegatronRecipeStatus
    """The status so far."""
    events: list[RecipeEvent] = field(default_factory=list)
    internal_error: Exception | None = None
    """An unexpected error of this reconcile."""
    dropped: tuple[str, ...] = ()
    """Paths of what was left out of the recipe's own status; the next write removes it."""
    read: MegatronRecipeStatus = field(init=False, repr=False)
    """The status as it was read."""
    _wired: tuple[MegatronRecipeStatus, dict[str, Any]] | None = field(default=None, init=False, repr=False)
    """A status, and its JSON: a reconcile compares it several times."""

    def __post_init__(self) -> None:
        """The status so far is the one that was read."""
        self.read = self.current

    @classmethod
    def of(cls, body: dict[str, Any], now: float) -> "StatusBuilder":
        """Start from the recipe's own status, without the parts that this version cannot read."""
        current, dropped = read_status(body.get("status"))
        return cls(body, now, current, dropped=dropped)

    @property
    def key(self) -> RecipeKey:
        """Namespace and name."""
        return RecipeKey(self.body["metadata"]["namespace"], self.body["metadata"]["name"])

    @property
    def uid(self) -> str:
        """UID of the recipe."""
        return str(self.body["metadata"]["uid"])

    @property
    def generation(self) -> int:
        """Generation of the spec."""
        return int(self.body["metadata"]["generation"])

    @property
    def edited(self) -> bool:
        """Whether the spec has a generation that the status does not reflect yet."""
        return self.current.observed_generation != self.generation

    @property
    def spec(self) -> dict[str, Any]:
        """The spec as JSON, not validated."""
        return dict(self.body.get("spec") or {})

    @property
    def suspended(self) -> bool:
        """`spec.suspend`."""
        return bool(self.spec.get("suspend"))

    @property
    def phase(self) -> str | None:
        """`status.phase`."""
        return self.current.phase

    @property
    def ended(self) -> bool:
        """Whether the run has succeeded or failed."""
        return self.phase in (Phase.SUCCEEDED, Phase.FAILED)

    @property
    def recovery(self) -> RecoveryStatus:
        """`status.recovery`."""
        return self.current.recovery or RecoveryStatus()

    @property
    def progress(self) -> Progress:
        """`status.progress`."""
        return self.current.progress or Progress()

    @property
    def checkpoint(self) -> CheckpointStatus:
        """`status.checkpoint`."""
        return self.current.checkpoint or CheckpointStatus()

    def set(self, **changes: Any) -> None:
        """Set fields of the status. It stays the same object where all of them have these values."""
        self.current = _updated(self.current, changes)

    def set_recovery(self, **changes: Any) -> None:
        """Set fields of `status.recovery`."""
        self.set(recovery=_updated(self.recovery, changes))

    def observe_generation(self) -> None:
        """Record that the status reflects the spec as it is."""
        if self.edited:
            self.set(omitted=None)
        self.set(observed_generation=self.generation)

    def forget_generation(self) -> None:
        """Record that the status does not reflect the newest spec."""
        self.set(observed_generation=self.generation - 1)

    def condition(self, kind: Condition) -> RecipeCondition | None:
        """The condition of this type; None when it is not set."""
        return next((c for c in self.current.conditions if c.type == kind), None)

    def is_true(self, kind: Condition) -> bool:
        """Whether the condition of this type is set and True."""
        condition = self.condition(kind)
        return condition is not None and condition.status == "True"

    def is_false(self, kind: Condition) -> bool:
        """Whether the condition of this type is set and False."""
        condition = self.condition(kind)
        return condition is not None and condition.status == "False"

    def set_condition(self, kind: Condition, status: bool | None, reason: str, message: str = "") -> None:
        """Set a condition; its lastTransitionTime changes only when its status does."""
        text = {True: "True", False: "False", None: "Unknown"}[status]
        old = self.condition(kind)
        since = timestamp(self.now) if old is None or old.status != text else old.last_transition_time
        new = RecipeCondition(
            type=kind,
            status=text,
            reason=reason,
            message=cut(message, LONGEST_CONDITION),
            last_transition_time=since,
            observed_generation=self.generation,
        )
        if new == old:
            return
        others = [c for c in self.current.conditions if c.type != kind]
        self.set(conditions=sorted([*others, new], key=_position))

    def remove_conditions(self, *kinds: Condition) -> None:
        """Remove conditions that no longer apply."""
        self.set(conditions=[c for c in self.current.conditions if c.type not in kinds])

    def add_event(self, reason: str, message: str, *, warning: bool = False) -> None:
        """Post an Event once the status is written."""
        self.events.append(RecipeEvent(reason, cut_utf8(message, LONGEST_EVENT), warning))

    def fail(self, reason: Reason, cause: str) -> None:
        """End the run until its spec changes."""
        self.set(phase=Phase.FAILED)
        self.set_condition(Condition.RUNNING, False, reason, cause)
        self.set_condition(Condition.FAILED, True, reason, cause)
        self.add_event(reason, cause, warning=True)

    def changed(self) -> bool:
        """Whether the status differs from the one that was read, or that one is too large."""
        if self.current is self.read and not self.dropped and not self._too_large():
            return False
        return self._moved() or self.wire() != (self.body.get("status") or {})

    def _too_large(self) -> bool:
        """Whether the status that was read exceeds its budget; an earlier version may have written it."""
        return json_bytes(self.body.get("status") or {}) > MAX_STATUS_BYTES

    def _moved(self) -> bool:
        """Whether the run has done an iteration: most writes are for that, and JSON need not be compared."""
        before, now = self.read.progress, self.current.progress
        return before is not None and now is not None and before.iteration != now.iteration

    def wire(self) -> dict[str, Any]:
        """The status as JSON, within the size that the API server stores without harm to others.

        Not to be changed: it is kept until another status is set.
        """
        if self._wired is None or self._wired[0] is not self.current:
            self._wired = self.current, within_budget(self.current.wire())
        return self._wired[1]

    def patch(self) -> dict[str, Any]:
        """The body for a server-side apply of the status; it only applies to the version that was read."""
        metadata = self.body["metadata"]
        return {
            "apiVersion": STORED_API_VERSION,
            "kind": KIND,
            "metadata": {
                "name": metadata["name"],
                "namespace": metadata["namespace"],
                "uid": metadata["uid"],
                "resourceVersion": metadata["resourceVersion"],
            },
            "status": self.wire(),
        }


def _updated[M: BaseModel](model: M, changes: dict[str, Any]) -> M:
    """The model with these fields; the same object where it has them already: a reconcile sets most again."""
    if all(getattr(model, name) == value for name, value in changes.items()):
        return model
    return model.model_copy(update=changes)


def _position(condition: RecipeCondition) -> int:
    """The same order whatever was set first; types of a newer version come last."""
    return _ORDER.get(condition.type, len(_ORDER))
