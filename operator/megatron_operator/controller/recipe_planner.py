"""Plans a recipe for the reconciler; where that is not possible, its status has the reason."""

import enum

from megatron_operator.api.conditions import Condition, Phase
from megatron_operator.api.errors import InvalidRecipeError, PlanningLimitError
from megatron_operator.api.reasons import Reason
from megatron_operator.controller.api_client import EXPECTED_ERRORS
from megatron_operator.controller.config_source import ConfigSource
from megatron_operator.controller.planning import Planning
from megatron_operator.lifecycle.desired import DesiredState, checkpoint_conflicts
from megatron_operator.lifecycle.job_status import set_internal_error, set_planned, set_refused
from megatron_operator.lifecycle.status_builder import RecipeKey, StatusBuilder


class Unplanned(enum.Enum):
    """Why a recipe has no desired state."""

    PENDING = "it is being planned, and reconciled again as soon as the plan is made"
    REFUSED = "it was refused, or planning failed; a condition explains it"


class RecipePlanner:
    """Plans recipes, and remembers which configuration refused them."""

    def __init__(self, planning: Planning, config: ConfigSource) -> None:
        self._planning = planning
        self._config = config
        self._refused: dict[RecipeKey, tuple[str, int, int]] = {}
        """UID and generation of refused specs, and the revision of the configuration that refused them."""

    async def plan(self, status: StatusBuilder, *, running: bool) -> DesiredState | Unplanned:
        """The desired state, or why there is none. `running` is as for `set_refused`.

        The plan is not in the status yet: a job may have to stay as it is.

        Raises one of EXPECTED_ERRORS when the API server cannot be used.
        """
        version = self._version(status)
        try:
            desired = await self._planning.desired(status)
            if desired is None:
                return Unplanned.PENDING
            errors = checkpoint_conflicts(status, desired)
        except EXPECTED_ERRORS:
            raise
        except InvalidRecipeError as error:
            limit = isinstance(error, PlanningLimitError)
            set_refused(status, Reason.PLANNER_TIMEOUT if limit else Reason.REFUSED, error, running=running)
            self._refused[status.key] = version
            return Unplanned.REFUSED
        except Exception as error:
            set_internal_error(status, error, running=running or status.ended)
            return Unplanned.REFUSED
        if errors:
            incompatible = InvalidRecipeError(errors)
            set_refused(status, Reason.CHECKPOINT_INCOMPATIBLE, incompatible, running=running)
            self._refused[status.key] = version
            return Unplanned.REFUSED
        set_planned(status, desired)
        return desired

    @property
    def revision(self) -> int:
        """Changes with platform and catalog."""
        return self._config.revision

    def refusal_is_outdated(self, status: StatusBuilder) -> bool:
        """Whether the spec was refused by another platform, catalog or operator, so that it is planned again.

        A run that has ended is left alone until its spec changes.
        """
        if status.ended or not status.is_false(Condition.PLANNED):
            return False
        return status.phase == Phase.REFUSED or self._refused.get(status.key) != self._version(status)

    def forget(self, key: RecipeKey) -> None:
        """Drop what is known of a recipe that no longer exists."""
        self._planning.forget(key)
        self._refused.pop(key, None)

    def _version(self, status: StatusBuilder) -> tuple[str, int, int]:
        return status.uid, status.generation, self.revision
