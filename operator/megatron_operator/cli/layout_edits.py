"""The edits of a recipe that lead a run with checkpoints to another layout, planned as the operator plans."""

import copy
from collections.abc import Mapping
from typing import Any, Final

from megatron_operator.api.conditions import Condition, Phase
from megatron_operator.api.errors import InvalidRecipeError
from megatron_operator.api.parallel_dims import ParallelDims
from megatron_operator.cli.errors import CommandError
from megatron_operator.cli.limits import planning_limits
from megatron_operator.cli.run_status import is_outdated
from megatron_operator.lifecycle.checkpoint_compatibility import LAYOUT, RESHARDABLE
from megatron_operator.lifecycle.desired import Config, DesiredState, checkpoint_conflicts, desired_state
from megatron_operator.lifecycle.status_builder import StatusBuilder

Object = dict[str, Any]
OVER: Final = (Phase.SUCCEEDED, Phase.EXPORTING)
"""Phases of a run that has trained to its end."""


class LayoutEdits:
    """The edits of a recipe that set sizes of `parallelism`, and a number of accelerators.

    Raises CommandError for a run that has the layout, has ended, or cannot save.
    """

    def __init__(self, recipe: Object, sizes: Mapping[str, int], gpus: int | None) -> None:
        self._recipe, self._sizes = recipe, dict(sizes)
        self._spec = recipe["spec"]
        self._status = StatusBuilder.of(recipe, 0.0)
        self._count = int(self._spec["accelerator"]["count"])
        self._gpus = gpus if gpus != self._count else None
        contract = self._status.checkpoint.contract or {}
        self.must_save = contract.get(RESHARDABLE, "true") != "true"
        """Whether no checkpoint of the run can be loaded in the new layout yet."""
        self._check()

    @property
    def _where(self) -> str:
        return f"recipe {self._recipe['metadata']['name']}"

    def _check(self) -> None:
        phase, plan = self._status.current.phase, self._status.current.plan
        if phase in OVER:
            fix = "start a new recipe in the new layout with init.from.recipe"
            raise CommandError(self._where, "has trained to its end", fix)
        if plan is None:
            fix = "edit its parallelism; nothing was saved in another layout"
            raise CommandError(self._where, "has not been planned yet", fix)
        if self.must_save and phase == Phase.SUSPENDED:
            raise CommandError(
                self._where, "is suspended, and has to save in between", "set suspend to false first"
            )
        current = {field: getattr(plan, attribute) for field, attribute in LAYOUT}
        unchanged = all(current[field] == size for field, size in self._sizes.items())
        if unchanged and self._gpus is None and refusal(self._recipe) is None:
            raise CommandError(self._where, "has this layout already", "see megatron status")

    def first(self) -> Object | None:
        """The edit after which the run saves its optimizer state for any layout; None if it does.

        An edit of the layout that is refused now is taken back by it.
        """
        if not self.must_save:
            return None
        edit: Object = {} if self._elastic else {"recovery": {"elastic": {"minCount": self._count}}}
        contract, asked = self._status.checkpoint.contract or {}, self._spec.get("parallelism") or {}
        saved = {field: contract.get(f"parallelism.{field}") for field, _ in LAYOUT}
        back = {
            field: int(size)
            for field, size in saved.items()
            if size and asked.get(field, int(size)) != int(size)
        }
        return (edit | ({"parallelism": back} if back else {})) or None

    @property
    def _elastic(self) -> Object | None:
        found: Object | None = (self._spec.get("recovery") or {}).get("elastic")
        return found

    def last(self) -> Object:
        """The edit that sets the layout."""
        edit: Object = {"parallelism": dict(self._sizes)}
        if self._gpus is not None:
            edit["accelerator"] = {"count": self._gpus}
            least = (self._elastic or {}).get("minCount", self._count)
            # A run that never shrinks goes on so.
            if (self._elastic or self.must_save) and (least == self._count or least > self._gpus):
                edit["recovery"] = {"elastic": {"minCount": self._gpus}}
        return edit

    def undo(self) -> Object:
        """The edit that takes `last` back; null removes a field."""
        before = copy.deepcopy(self._spec)
        merge(before, self.first() or {})
        return _before(self.last(), before)

    def edits(self) -> list[Object]:
        """Both edits of `spec`, in their order."""
        return [edit for edit in (self.first(), self.last()) if edit]

    def result(self) -> Object:
        """The parts of `spec` that the edits concern, as they are after them."""
        edited = self._edited()["spec"]
        elastic = (edited.get("recovery") or {}).get("elastic")
        found: Object = {"parallelism": edited["parallelism"]}
        found |= {"accelerator": {"count": edited["accelerator"]["count"]}} if self._gpus else {}
        return found | ({"recovery": {"elastic": elastic}} if elastic else {})

    def _edited(self) -> Object:
        edited = copy.deepcopy(self._recipe)
        for edit in self.edits():
            merge(edited["spec"], edit)
        return edited

    def plan(self, config: Config) -> str:
        """The layout of the edited recipe.

        Raises InvalidRecipeError with what the operator would refuse, and CommandError where a run that was
        shrunk cannot have the layout now.
        """
        status = StatusBuilder.of(self._edited(), 0.0)
        shrunk = self._status.recovery.elastic
        try:
            desired = _desired(status, config)
        except InvalidRecipeError as refused:
            if shrunk is None or self._gpus is not None:
                raise
            raise CommandError(
                self._where,
                f"has {shrunk.count} of its {self._count} accelerators now: {refused.errors[0]}",
                "repeat it when the run has grown again, or name a layout that fits both",
            ) from None
        if not self.must_save and (conflicts := checkpoint_conflicts(status, desired)):
            raise InvalidRecipeError(conflicts)
        dims = ParallelDims.of_plan(desired.plan).describe(("tp", "pp", "cp", "ep", "dp"))
        return f"{dims} on {desired.plan.world_size} x {desired.run.resolved.accelerator_type}"


def _desired(status: StatusBuilder, config: Config) -> DesiredState:
    with planning_limits():
        return desired_state(status, config)


def merge(into: Object, edit: Mapping[str, Any]) -> None:
    """Apply a JSON merge patch (RFC 7396) to an object."""
    for key, value in edit.items():
        if isinstance(value, dict):
            merge(into.setdefault(key, {}), value)
        elif value is None:
            into.pop(key, None)
        else:
            into[key] = value


def _before(edit: Mapping[str, Any], spec: Mapping[str, Any]) -> Object:
    """The merge patch that takes an edit of `spec` back."""
    return {
        key: _before(value, spec.get(key) or {}) if isinstance(value, dict) else spec.get(key)
        for key, value in edit.items()
    }


def refusal(recipe: Object) -> str | None:
    """Why the operator refuses the newest edit, None where it does not or has not observed it yet."""
    condition = planned(recipe)
    if condition.get("status") != "False" or is_outdated(recipe):
        return None
    return str(condition.get("message"))


def planned(recipe: Object) -> Object:
    """The condition `Planned`, empty where there is none."""
    conditions = (recipe.get("status") or {}).get("conditions") or []
    return next((dict(each) for each in conditions if each["type"] == Condition.PLANNED), {})
