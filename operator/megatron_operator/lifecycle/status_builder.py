"""A recipe as it is looked at: its body, and the status that is being written anew."""

from dataclasses import dataclass, field
from typing import Any, Final

from pydantic import ValidationError

from megatron_operator.api.conditions import Condition, Phase
from megatron_operator.api.labels import API_VERSION, KIND
from megatron_operator.api.status import (
    CheckpointStatus,
    MegatronRecipeStatus,
    Progress,
    RecipeCondition,
    RecoveryStatus,
)
from megatron_operator.api.times import timestamp
from megatron_operator.controller.workqueue import Key

LONGEST_MESSAGE: Final = 4096


@dataclass(frozen=True, slots=True)
class Notice:
    """A Kubernetes Event to be posted once the status is written."""

    reason: str
    message: str
    warning: bool = False


@dataclass(slots=True)
class Draft:
    """What is known of a recipe at one look, and what its status will say."""

    body: dict[str, Any]
    now: float
    status: MegatronRecipeStatus
    notices: list[Notice] = field(default_factory=list)

    @classmethod
    def of(cls, body: dict[str, Any], now: float) -> "Draft":
        """A status that another version wrote and this one cannot read is begun anew."""
        try:
            status = MegatronRecipeStatus.model_validate(body.get("status") or {})
        except ValidationError:
            status = MegatronRecipeStatus()
        return cls(body, now, status)

    @property
    def key(self) -> Key:
        return Key(self.body["metadata"]["namespace"], self.body["metadata"]["name"])

    @property
    def uid(self) -> str:
        return str(self.body["metadata"]["uid"])

    @property
    def generation(self) -> int:
        return int(self.body["metadata"]["generation"])

    @property
    def spec(self) -> dict[str, Any]:
        return dict(self.body.get("spec") or {})

    @property
    def suspended(self) -> bool:
        return bool(self.spec.get("suspend"))

    @property
    def phase(self) -> str | None:
        return self.status.phase

    @property
    def recovery(self) -> RecoveryStatus:
        return self.status.recovery or RecoveryStatus()

    @property
    def progress(self) -> Progress:
        return self.status.progress or Progress()

    @property
    def checkpoint(self) -> CheckpointStatus:
        return self.status.checkpoint or CheckpointStatus()

    def set(self, **changes: Any) -> None:
        """Change fields of the status."""
        self.status = self.status.model_copy(update=changes)

    def set_recovery(self, **changes: Any) -> None:
        self.set(recovery=self.recovery.model_copy(update=changes))

    def condition(self, kind: Condition) -> RecipeCondition | None:
        return next((c for c in self.status.conditions if c.type == kind), None)

    def is_true(self, kind: Condition) -> bool:
        condition = self.condition(kind)
        return condition is not None and condition.status == "True"

    def tell(self, kind: Condition, status: bool | None, reason: str, message: str = "") -> None:
        """Set a condition; its time moves only when its status does."""
        text = {True: "True", False: "False", None: "Unknown"}[status]
        old = self.condition(kind)
        moved = timestamp(self.now) if old is None or old.status != text else old.last_transition_time
        new = RecipeCondition(
            type=kind,
            status=text,
            reason=reason,
            message=message[:LONGEST_MESSAGE],
            last_transition_time=moved,
            observed_generation=self.generation,
        )
        if old is not None and new.model_copy(update={"observed_generation": old.observed_generation}) == old:
            new = old.model_copy(update={"observed_generation": self.generation})
        conditions = [new if c.type == kind else c for c in self.status.conditions]
        self.set(conditions=conditions if old is not None else [*conditions, new])

    def clear(self, *kinds: Condition) -> None:
        """Take conditions back that no longer say anything."""
        self.set(conditions=[c for c in self.status.conditions if c.type not in kinds])

    def notice(self, reason: str, message: str, *, warning: bool = False) -> None:
        self.notices.append(Notice(reason, message[:1000], warning))

    def changed(self) -> bool:
        return self.status.wire() != (self.body.get("status") or {})

    def patch(self) -> dict[str, Any]:
        """For a server-side apply of the status, only onto the version that was looked at."""
        metadata = self.body["metadata"]
        return {
            "apiVersion": API_VERSION,
            "kind": KIND,
            "metadata": {
                "name": metadata["name"],
                "namespace": metadata["namespace"],
                "uid": metadata["uid"],
                "resourceVersion": metadata["resourceVersion"],
            },
            "status": self.status.wire(),
        }

    def fail(self, reason: str, cause: str) -> None:
        """The run is over until its spec changes."""
        self.set(phase=Phase.FAILED)
        self.tell(Condition.RUNNING, False, reason, cause)
        self.tell(Condition.FAILED, True, reason, cause)
        self.notice(reason, cause, warning=True)
