"""The verdict of the validating webhook: what the status would report, from the same functions."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from megatron_operator.api.errors import FieldError, InvalidRecipeError
from megatron_operator.lifecycle.desired import Config, checkpoint_conflicts, desired_state
from megatron_operator.lifecycle.status_builder import StatusBuilder


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether the API server may accept a recipe: the errors that prevent it, and warnings for its user."""

    errors: tuple[FieldError, ...] = ()
    warnings: tuple[str, ...] = ()


def review(request: Mapping[str, Any], config: Config) -> Verdict:
    """The verdict on the object of an AdmissionRequest, with the messages of `megatron validate`."""
    body = dict(request["object"])
    if leaves_plan_unchanged(request):
        return Verdict()
    metadata = {"uid": "", "generation": 1, "namespace": request["namespace"]} | body["metadata"]
    status = StatusBuilder.of(body | {"metadata": metadata}, 0.0)
    try:
        desired = desired_state(status, config)
    except InvalidRecipeError as error:
        return Verdict(tuple(error.errors))
    return Verdict(tuple(checkpoint_conflicts(status, desired)), tuple(desired.run.warnings))


def leaves_plan_unchanged(request: Mapping[str, Any]) -> bool:
    """Labels, finalizers and `suspend` may always change: an invalid recipe can be suspended and deleted."""
    if request["object"]["metadata"].get("deletionTimestamp"):
        return True
    if request.get("operation") != "UPDATE":
        return False
    before, after = (dict((request[which] or {}).get("spec") or {}) for which in ("oldObject", "object"))
    return {**before, "suspend": None} == {**after, "suspend": None}
